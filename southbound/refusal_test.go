package southbound_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// nodePatience is how long a node waits for an answer before it gives up for
// good.
const nodePatience = 10 * time.Second

func TestBadCredentialsWithoutALeader(t *testing.T) {
	for what, c := range map[string]struct {
		secret string // of group a, when the leader is there
		code   codes.Code
	}{
		"still bad":   {secretOfB, codes.PermissionDenied},
		"good by now": {secretOfA, codes.Unavailable}, // the node comes back
	} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.require(map[string]string{"a": secretOfB})
				r.replica.setLeader(false)
				n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
				if !success {
					t.Fatal("refused without a leader")
				}
				n.announce("x")
				pass(2 * time.Hour) // the token was judged when it was read
				n.silent()
				if ids := r.service.Provisional(); len(ids) > 0 {
					t.Errorf("%v in quarantine are shown as connected", ids)
				}
				r.require(map[string]string{"a": c.secret})
				r.replica.setLeader(true)
				if code := n.end(); code != c.code {
					t.Errorf("stream ended with %s, want %s", code, c.code)
				}
				if n := len(r.registrations()); n != 0 {
					t.Errorf("%d registrations", n)
				}
			})
		})
	}
}

// turnAway has a node answered without a leader and refused by one afterwards.
func (r *rig) turnAway(group, id string) {
	r.t.Helper()
	r.require(map[string]string{group: secretOfA})
	r.replica.setLeader(false)
	n, success := r.ask(proven(group, id, token(r.t, secretOfA, group, id, 0)))
	if !success {
		r.t.Fatal("refused without a leader")
	}
	r.require(nil)
	r.replica.setLeader(true)
	if code := n.end(); code != codes.PermissionDenied {
		r.t.Fatalf("stream ended with %s", code)
	}
}

func TestNodeThatWasTurnedAwayWaitsForALeader(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.turnAway("a", "n")
		r.require(map[string]string{"a": secretOfA})
		r.replica.setLeader(false)
		start := time.Now()
		n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if waited := time.Since(start); !success || waited >= nodePatience {
			t.Fatalf("success %v after %s: the node gives up", success, waited)
		}
		n.announce("x")
		pass(time.Minute)
		n.silent() // not even a first message: it is not registered
		r.replica.setLeader(true)
		if code := n.end(); code != codes.Unavailable {
			t.Errorf("stream ended with %s", code)
		}
		if n := len(r.registrations()); n != 0 {
			t.Errorf("%d registrations", n)
		}
		if _, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0))); !success || len(r.registrations()) != 1 {
			t.Error("the node is not registered when it is back")
		}
	})
}

func TestNodeThatWasTurnedAwayIsAnsweredInTime(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.turnAway("a", "n")
		r.require(map[string]string{"a": secretOfA})
		resume := r.replica.stall() // a leader answers reads, and nothing gets committed
		start := time.Now()
		n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if waited := time.Since(start); !success || waited >= nodePatience {
			t.Fatalf("success %v after %s: the node gives up", success, waited)
		}
		pass(time.Minute)
		n.silent()
		resume()
		if code := n.end(); code != codes.Unavailable {
			t.Errorf("stream ended with %s", code)
		}
		r.replica.setLeader(false) // it was let in: no leader need say so again
		back, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if !success {
			t.Fatal("the node is refused when it is back")
		}
		back.answer(back.next())
		r.replica.setLeader(true)
		eventually(t, "only its new session is left", func() bool {
			known, _ := r.replica.store.View().Node("a/n")
			return len(known.Sessions) == 1
		})
	})
}

func TestNodeThatWasTurnedAwayIsRefusedIfALeaderSaysSo(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.turnAway("a", "n")
		r.require(map[string]string{"a": secretOfA})
		resume := r.replica.stall()
		n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if !success {
			t.Fatal("refused before the leader said so")
		}
		r.require(nil)
		resume()
		if code := n.end(); code != codes.PermissionDenied {
			t.Errorf("stream ended with %s", code)
		}
	})
}

func TestProvisionalNodesAreTold(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "known")
		synctest.Wait()
		if ids := r.service.Provisional(); len(ids) != 0 {
			t.Errorf("%v are not in the state", ids)
		}
		r.replica.setLeader(false)
		r.join("b", "n2")
		r.join("a", "n1")
		r.join("a", "n1") // on another stream
		gone := r.join("a", "gone")
		gone.hangUp()
		synctest.Wait()
		if ids := r.service.Provisional(); len(ids) != 2 || ids[0] != "a/n1" || ids[1] != "b/n2" {
			t.Errorf("provisional nodes %v", ids)
		}
		r.replica.setLeader(true)
		eventually(t, "all are in the state", func() bool { return len(r.service.Provisional()) == 0 })
	})
}

func incoming(linkID string) *controllerpb.ConnectionEntry {
	return &controllerpb.ConnectionEntry{
		LinkId: &linkID, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING,
	}
}

// What a node reports beyond the size of one command must not be taken as down.
func TestLongReport(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		a := r.join("a", "node-a")
		b := r.join("b", "node-b", external("b.example:1"))
		id := r.linkTo("b")
		b.claim(id)
		synctest.Wait()
		a.silent()
		again := request("b", "node-b", external("b.example:1"))
		for i := range 11_000 {
			// Of this cluster, too: the replica may not have caught up with them.
			if other := fmt.Sprintf("%s%04x", id[:len(id)-4], i); other != id {
				again.Connections = append(again.Connections, incoming(other), incoming(other))
			}
		}
		again.Connections = append(again.Connections, incoming(id))
		n, message := r.register(again)
		n.answer(message)
		registered := r.registrations()[2]
		if size := proto.Size(registered); size+64<<10 > cluster.MaxCommandBytes {
			t.Errorf("the command has %d bytes, its details aside", size)
		}
		once := map[string]bool{}
		for _, link := range registered.GetLinks() {
			once[link.GetLinkId()] = true
		}
		if len(once) != len(registered.GetLinks()) {
			t.Errorf("%d links are told as %d", len(once), len(registered.GetLinks()))
		}
		eventually(t, "the last link of the report is up", func() bool {
			link, _ := r.replica.store.View().Link(id)
			return link.DestNode == "b/node-b" && link.Status == fsm.LinkApplied
		})
	})
}
