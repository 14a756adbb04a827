package ensemble_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// others are the names of all replicas but one.
func others(name string) []string {
	return slices.DeleteFunc([]string{"a", "b", "c"}, func(other string) bool { return other == name })
}

// A replica that reaches nobody keeps its streams, and its nodes their links. Back
// again, it registers the streams whose sessions were given up meanwhile (protocol
// D4, S5).
func TestIsolatedReplicaKeepsItsStreams(t *testing.T) {
	e := form(t)
	followers := e.followers()
	lone, other := followers[0], followers[1]
	e.join("g0", "n1", lone)
	e.join("g1", "n1", other)
	e.join("g2", "n1", e.leader())
	e.converged()
	links, before := linkIDs(e.view()), sessions(e.view())
	streams := lone.nodes.Stats().Streams
	stopWatching := e.watchDelivery("")

	e.links.isolate(lone.name, others(lone.name), true)
	e.eventually("the leader gives the replica's sessions up", func() error {
		for _, r := range e.running() {
			if leading, _ := r.Leadership(); !leading || r == lone {
				continue
			}
			record, _ := r.store.View().Node("g0/n1")
			if !record.Connected() && record.LastSession.Reason == slimcppb.LossReason_LOSS_REASON_UNREACHABLE {
				return nil
			}
		}
		return errors.New("g0/n1 has a session")
	})
	e.throughout(orphanPatience+2*orphanSpread+time.Second, "an isolated replica keeps its streams", func() error {
		if now := lone.nodes.Stats().Streams; now != streams {
			return fmt.Errorf("%d streams, had %d", now, streams)
		}
		return nil
	})

	e.links.isolate(lone.name, others(lone.name), false)
	e.converged()
	stopWatching()
	wantEqual(t, "links", linkIDs(e.view()), links)
	after := sessions(e.view())
	if after["g0/n1"] == before["g0/n1"] {
		t.Error("the session that was given up is back under its name")
	}
	if after["g0/n1"].ReplicaID != lone.ReplicaID() {
		t.Errorf("the session is on %s, want %s: the stream was closed", after["g0/n1"].ReplicaID, lone.ReplicaID())
	}
	delete(after, "g0/n1")
	delete(before, "g0/n1")
	wantEqual(t, "the other sessions", after, before)
}

// A replica that cannot follow the leader, but reaches a member that does, lets its
// nodes go: the leader cannot reach them (protocol D4).
func TestReplicaWithoutLeaderLetsItsNodesGo(t *testing.T) {
	e := form(t)
	leader, followers := e.leader(), e.followers()
	cutOff, other := followers[0], followers[1]
	node := e.join("g0", "n1", cutOff, other)
	e.join("g1", "n1", other)
	e.converged()
	e.links.isolate(cutOff.name, []string{leader.name}, true)
	e.eventually("the node is on another replica", func() error {
		record, _ := other.store.View().Node(node.ID())
		if session, ok := record.CommandSession(); !ok || session.Name.ReplicaID == cutOff.ReplicaID() {
			return fmt.Errorf("its sessions are %v", record.Sessions)
		}
		return nil
	})
	if cutOff.nodes.Stats().Streams > 0 {
		t.Error("the replica without a leader still holds streams")
	}
	e.links.isolate(cutOff.name, []string{leader.name}, false)
	e.converged()
}

// A replica whose state is not that of the majority lets its nodes go: what it would
// tell them may be wrong (protocol X4).
func TestReplicaWithAWrongStateLetsItsNodesGo(t *testing.T) {
	e := form(t)
	odd, other := e.followers()[0], e.followers()[1]
	node := e.join("g0", "n1", odd, other)
	e.join("g1", "n1", other)
	e.converged()
	links := linkIDs(e.view())
	reason := "the state differs from that of a majority"
	odd.wrong.Store(&reason)
	e.eventually("the node is on another replica", func() error {
		record, _ := other.store.View().Node(node.ID())
		if session, ok := record.CommandSession(); !ok || session.Name.ReplicaID == odd.ReplicaID() {
			return fmt.Errorf("its sessions are %v", record.Sessions)
		}
		return nil
	})
	if odd.nodes.Stats().Streams > 0 {
		t.Error("the replica still holds streams")
	}
	e.converged()
	wantEqual(t, "links", linkIDs(e.view()), links)
}

// A leader that is cut off loses its leadership; what it decided comes too late.
func TestLeaderCutOff(t *testing.T) {
	e := form(t)
	old, followers := e.leader(), e.followers()
	e.join("g0", "n1", old)
	e.join("g1", "n1", followers[0])
	e.join("g2", "n1", followers[1])
	e.converged()
	links, before := linkIDs(e.view()), sessions(e.view())
	_, oldTerm := old.Leadership()
	stopWatching := e.watchDelivery("")
	e.links.isolate(old.name, others(old.name), true)
	e.eventually("another replica leads", func() error {
		for _, r := range followers {
			if leading, term := r.Leadership(); leading && term > oldTerm {
				return nil
			}
		}
		return errors.New("nobody does")
	})
	e.links.isolate(old.name, others(old.name), false)
	e.converged()
	stopWatching()
	wantEqual(t, "links", linkIDs(e.view()), links)
	after := sessions(e.view())
	for _, id := range []string{"g1/n1", "g2/n1"} {
		if after[id] != before[id] {
			t.Errorf("the session of %s changed", id)
		}
	}
}

// Nobody departs for a while after a leader change, although the session is given
// up before (protocol D3).
func TestNobodyDepartsRightAfterALeaderChange(t *testing.T) {
	settings := defaults()
	settings.hold = 4 * time.Second
	e := formWith(t, settings)
	dead := e.leader()
	survivors := e.followers()
	e.join("pair", "goes", dead) // the first of its group holds the links
	e.join("other", "n1", survivors[1])
	e.converged()
	e.join("pair", "stays", survivors[0])
	e.converged()
	began := time.Now()
	e.kill(dead.name)
	var lost, departed time.Duration
	e.eventually("the node departs", func() error {
		record, _ := e.view().Node("pair/goes")
		if !record.Connected() && lost == 0 {
			lost = time.Since(began)
		}
		if record.State != fsm.NodeDeparted {
			return errors.New("it is there")
		}
		departed = time.Since(began)
		return nil
	})
	if grace := time.Duration(e.graces.GetReplicaMs()) * time.Millisecond; lost < grace || lost >= e.hold {
		t.Errorf("the session was given up after %v, want it between %v and %v", lost, grace, e.hold)
	}
	if departed < e.hold {
		t.Errorf("the node departed after %v, want %v at least", departed, e.hold)
	}
}

// Nor does anybody when a replica is back: its nodes may be about to come back too.
func TestNobodyDepartsRightAfterAReplicaIsBack(t *testing.T) {
	settings := defaults()
	settings.hold, settings.graces.ReplicaMs = 2*time.Second, 60_000
	e := formWith(t, settings)
	follower, other := e.followers()[0], e.followers()[1]
	node := e.join("pair", "goes", follower) // the first of its group holds the links
	e.join("other", "n1", e.leader())
	e.converged()
	e.join("pair", "stays", other)
	e.converged()
	e.throughout(e.hold, "the leadership is no longer new", func() error { return nil })
	e.kill(follower.name)
	node.Kill()
	back := time.Now()
	e.start(follower.name)
	e.eventually("the node departs", func() error {
		if record, _ := e.view().Node(node.ID()); record.State != fsm.NodeDeparted {
			return fmt.Errorf("its state is %v", record.State)
		}
		return nil
	})
	if took := time.Since(back); took < e.hold {
		t.Errorf("it departed after %v, want %v at least", took, e.hold)
	}
}

// The nodes of a replica that shuts down are not taken over before they could come
// back (protocol A3, D2).
func TestDrainingReplica(t *testing.T) {
	e := form(t)
	leaving, other := e.followers()[0], e.followers()[1]
	e.join("pair", "moves", leaving, other)
	e.join("other", "n1", e.leader())
	e.converged()
	e.join("pair", "stays", other)
	e.converged()
	links := linkIDs(e.view())
	e.drain(leaving)
	e.eventually("the node is back", func() error {
		session, ok := sessions(e.view())["pair/moves"]
		if !ok || session.ReplicaID != other.ReplicaID() {
			return fmt.Errorf("its session is %v", session)
		}
		return nil
	})
	e.converged()
	if now := linkIDs(e.view()); !maps.Equal(now, links) {
		t.Errorf("links changed:\n got %v\nwant %v", now, links)
	}
}

// A node that does not come back from a replica that shut down is given the whole
// departure grace, sibling or not.
func TestDrainedNodeHasItsFullGrace(t *testing.T) {
	settings := defaults()
	settings.hold, settings.graces.DepartureMs = 100*time.Millisecond, 3000
	e := formWith(t, settings)
	leaving, other := e.followers()[0], e.followers()[1]
	e.join("pair", "goes", leaving)
	e.join("other", "n1", e.leader())
	e.converged()
	e.join("pair", "stays", other)
	e.converged()
	began := time.Now()
	e.drain(leaving)
	e.eventually("the node departs", func() error {
		record, _ := e.view().Node("pair/goes")
		if record.State != fsm.NodeDeparted {
			return fmt.Errorf("its state is %v", record.State)
		}
		if record.LastSession.Reason != slimcppb.LossReason_LOSS_REASON_DRAINING {
			t.Fatalf("its session was lost for reason %v", record.LastSession.Reason)
		}
		return nil
	})
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("it departed after %v", took)
	}
}

// The end of a node on a replica that was not reached for a second would not be
// noticed, and a dial with credentials cannot be bounded: there is none (protocol
// C7).
func TestUnreachedNodeIsNotDialledWithCredentials(t *testing.T) {
	settings := defaults()
	settings.graces.ReplicaMs = 60_000
	e := formWith(t, settings)
	leader, lone := e.leader(), e.followers()[0]
	e.joinWith("secure", "n1", func(o *dataplane.NodeOptions) { o.TLSRequired = true }, lone)
	e.converged()
	e.eventually("the replica is reached", func() error {
		if !leader.router.Reached(lone.ReplicaID()) {
			return errors.New("it is not")
		}
		return nil
	})
	e.links.isolate(lone.name, others(lone.name), true)
	e.eventually("the replica is not reached", func() error {
		if leader.router.Reached(lone.ReplicaID()) {
			return errors.New("it is")
		}
		return nil
	})
	e.joinWith("dials", "n1", func(o *dataplane.NodeOptions) {
		o.OutboundCredentials = []string{"https://n1.secure.example:1"}
	}, leader)
	e.eventually("there is a link", func() error {
		if link, ok := leader.store.View().LinkBetween("dials", "secure"); !ok || link.SourceNode != "dials/n1" || !link.NeedsCredentials() {
			return fmt.Errorf("it is %+v", link)
		}
		return nil
	})
	e.throughout(2*time.Second, "a node that is not reached is not dialled", func() error {
		if link, _ := leader.store.View().LinkBetween("dials", "secure"); link.Status != fsm.LinkPending {
			return fmt.Errorf("the link is %s", link.Status)
		}
		return nil
	})
	e.links.isolate(lone.name, others(lone.name), false)
	e.converged()
}
