package cluster_test

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// lead makes the address of one replica lead to another one. Connections to where it
// led before end.
func (n *network) lead(name, to string) {
	n.mu.Lock()
	n.addresses[name+":1"] = n.addresses[to+":1"]
	var ending []net.Conn
	for conn, ends := range n.conns {
		if ends[1] == name+":1" {
			ending = append(ending, conn)
		}
	}
	n.mu.Unlock()
	for _, conn := range ending {
		_ = conn.Close()
	}
}

// throughout checks a condition for a while.
func throughout(tb testing.TB, d time.Duration, what string, condition func() bool) {
	tb.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		if !condition() {
			tb.Fatal("not throughout:", what)
		}
	}
}

func leads(replica *cluster.Replica) bool {
	leading, _ := replica.Leadership()
	return leading
}

// B-100: a dead member's address leads to another member, which does not count twice:
// cut off alone it elects nobody, keeps its term, and acknowledges nothing. The other
// two go on as soon as they meet.
func TestReusedAddressIsNoSecondVote(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	b := e.replicas["b"]
	e.kill("c")
	e.network.lead("c", "b")
	e.serves("a", nil)
	e.serves("b", nil)
	e.network.separate("a", []string{"b", "c"}, true)
	e.network.separate("b", []string{"a"}, true)
	term := b.Raft().CurrentTerm()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var asking sync.WaitGroup
	asking.Go(func() {
		if _, err := b.Propose(ctx, register(1)); err == nil {
			t.Error("b alone has acknowledged a change")
		}
	})
	throughout(t, 3*time.Second, "b leads nobody", func() bool { return !leads(b) && b.Raft().CurrentTerm() == term })
	asking.Wait()
	e.network.separate("b", []string{"a", "c"}, true)
	e.network.separate("a", []string{"c"}, false)
	e.start("c")
	e.serves("a", nil)
	e.serves("c", nil)
	e.network.separate("b", []string{"a", "c"}, false)
	e.waitVoters("a", "b", "c")
}

// B-100: five replicas, one of them dead, whose address leads to the leader. The
// leader and one other are cut off: they acknowledge nothing.
func TestReusedAddressMakesNoSecondMajority(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	names := []string{"a", "b", "c", "d", "e"}
	e.form(names...)
	e.transfer("a")
	e.kill("e")
	e.network.lead("e", "b")
	proposeWithRetry(t, e.replicas["a"], register(1))
	for _, name := range []string{"a", "b"} {
		e.network.separate(name, []string{"c", "d"}, true)
	}
	e.network.separate("c", []string{"e"}, true)
	e.network.separate("d", []string{"e"}, true)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := e.replicas["a"].Propose(ctx, register(2)); err == nil {
		t.Error("two of five acknowledged a change")
	}
	for _, name := range []string{"a", "b"} {
		e.network.separate(name, []string{"c", "d"}, false)
	}
	e.network.separate("c", []string{"e"}, false)
	e.network.separate("d", []string{"e"}, false)
	e.start("e")
	e.waitVoters(names...)
	proposeWithRetry(t, e.replicas["d"], register(3))
}

// B-101: replicas that come back with each other's addresses are found by their ids,
// and the members' addresses become right, while a leader lives and while none does.
func TestReplicasExchangeTheirAddresses(t *testing.T) {
	t.Parallel()
	for name, circle := range map[string][]string{"two followers": {"b", "c"}, "all three": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnsemble(t)
			e.form("a", "b", "c")
			e.transfer("a")
			proposeWithRetry(t, e.replicas["a"], register(1))
			ids := map[string]string{} // by the address where each is to be
			first := e.dirs[circle[0]]
			for i, seat := range circle {
				ids[seat+":1"] = e.replicas[circle[(i+1)%len(circle)]].ReplicaID()
			}
			for _, seat := range circle {
				e.kill(seat)
			}
			for i, seat := range circle {
				if e.dirs[seat] = first; i+1 < len(circle) {
					e.dirs[seat] = e.dirs[circle[i+1]]
				}
			}
			for _, seat := range circle {
				e.start(seat)
			}
			for _, seat := range []string{"a", "b", "c"} {
				replica := e.replicas[seat]
				e.serves(seat, []int{1})
				eventually(t, "addresses are right on "+seat, func() bool {
					for _, member := range replica.Members() {
						if want, moved := ids[member.Address]; moved && want != member.ReplicaID {
							return false
						}
					}
					return true
				})
			}
			target := e.replicas["c"].ReplicaID()
			eventually(t, "the leadership is transferred", func() bool {
				for _, replica := range e.replicas {
					if leads(replica) {
						to, err := replica.TransferLeadership(t.Context(), target)
						return err == nil && to == target
					}
				}
				return false
			})
			leader := e.leader()
			e.kill(leader)
			e.start(leader)
			for _, seat := range []string{"a", "b", "c"} {
				e.serves(seat, []int{1})
			}
		})
	}
}

// stranger speaks Raft to a replica under a hello of its own making.
type stranger struct {
	*raft.NetworkTransport
}

func newStranger(t *testing.T, e *ensemble, clusterID, hello string) stranger {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := peer.NewPort(peer.Options{
		Listener: listener,
		Dial:     e.network.dial("stranger"),
		Hello: func() *slimcppb.Hello {
			return &slimcppb.Hello{ClusterId: clusterID, ReplicaId: hello, BootId: "boot", Advertise: "stranger:1"}
		},
		Admit:   func(context.Context, *slimcppb.Hello) error { return nil },
		Refused: func(*slimcppb.HelloAnswer, error) {},
		Logger:  hclog.NewNullLogger(),
	})
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: strangerLayer{Listener: port.Raft(), port: port}, Timeout: 2 * time.Second, Logger: hclog.NewNullLogger(), MaxPool: 1,
	})
	t.Cleanup(func() {
		_ = transport.Close()
		transport.CloseStreams()
		_ = port.Close()
	})
	return stranger{transport}
}

type strangerLayer struct {
	net.Listener
	port *peer.Port
}

func (l strangerLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, _, err := l.port.Dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RAFT, string(address))
	return conn, err
}

// B-102: whoever is no member, speaks for another one, or names a term that cannot be,
// is not believed: the cluster goes on in its term.
func TestStrangersRaftIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	clusterID, member := e.replicas["a"].ClusterID(), e.replicas["c"].ReplicaID()
	leader, term := e.replicas["a"].ReplicaID(), e.replicas["a"].Raft().CurrentTerm()
	e.kill("c") // its id is free to be taken
	for name, c := range map[string]struct {
		clusterID, hello, header string
		term, index              uint64
		says                     string
	}{
		"an id that no member has":        {clusterID, "x-00000000", "x-00000000", term + 1, 0, "not a member"},
		"in the name of the leader":       {clusterID, "x-00000000", leader, term, 0, "in the name of another"},
		"a member's id, the largest term": {clusterID, member, member, math.MaxUint64, 0, "out of range"},
		"a member's id, the largest index": {
			clusterID, member, member, term + 1, math.MaxUint64 - 1, "out of range",
		},
		"another cluster": {"another", member, member, term + 1, 0, ""},
		"no cluster":      {"", member, member, term + 1, 0, ""},
	} {
		s := newStranger(t, e, c.clusterID, c.hello)
		for _, target := range []string{"a", "b"} {
			err := s.AppendEntries("any", raft.ServerAddress(target+":1"), &raft.AppendEntriesRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(c.header), Addr: []byte("stranger:1")},
				Term:      c.term, PrevLogEntry: c.index,
			}, &raft.AppendEntriesResponse{})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, at %s: %v", name, target, err)
			}
			if err != nil && c.says == "" && strings.Contains(err.Error(), clusterID) {
				t.Errorf("%s, at %s: the refusal tells the cluster's id: %v", name, target, err)
			}
		}
	}
	if alarm := e.replicas["b"].Alarm(); !strings.Contains(alarm, "out of range") || !strings.Contains(alarm, member) {
		t.Errorf("alarm %q", alarm)
	}
	proposeWithRetry(t, e.replicas["b"], register(1))
	if now := e.replicas["a"].Raft().CurrentTerm(); now > term+10 {
		t.Errorf("term %d, before it was %d", now, term)
	}
	e.start("c")
	e.waitVoters("a", "b", "c")
}

// B-103: a replica was away while the leader was replaced. It votes for, and follows,
// one that it has never heard of: else two of three could have no leader.
func TestReplacedWhileAway(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	keep := func(o *cluster.Options) { o.Peers.Autopilot.DeadServerCleanup = false }
	for _, name := range []string{"a", "b", "c", "d"} {
		e.start(name, keep)
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("b")
	e.kill("c")
	eventually(t, "d joins", func() bool { return e.replicas["d"].Join(t.Context(), "b:1") == nil })
	eventually(t, "d votes", func() bool { return voters(e.replicas["b"])["d"] })
	eventually(t, "a is removed", func() bool { return e.replicas["b"].Remove(t.Context(), "a") == nil })
	waitDone(t, e.replicas["a"])
	e.kill("a")
	e.transfer("d")
	proposeWithRetry(t, e.replicas["d"], register(1))
	e.kill("b")
	e.start("c", keep)
	eventually(t, "c and d are two of three", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := e.replicas["c"].Propose(ctx, register(2))
		return err == nil
	})
	if view, err := e.replicas["c"].Read(t.Context()); err != nil || !hasNode(view, 1) {
		t.Errorf("what was acknowledged is gone: %v", err)
	}
}

// B-104: the library remembers whom it voted for by address, so that another replica
// at that address gets the same vote again. It sees ids in the place of addresses.
func TestVoteIsRememberedByID(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a := e.replicas["a"].ReplicaID()
	for _, name := range []string{"b", "c"} {
		replica := e.replicas[name]
		eventually(t, name+" takes the id for the leader's address", func() bool {
			address, id := replica.Raft().LeaderWithID()
			return string(id) == a && string(address) == a
		})
	}
}

// A connection to a replica is made wherever it answers, even at an address that its
// configuration has for another one; and never to another replica.
func TestConnectionsAreToIDs(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	e.network.lead("b", "c")
	e.network.isolate("b", true)
	e.network.isolate("b", false)
	id := e.replicas["b"].ReplicaID()
	for _, status := range e.replicas["a"].Status(t.Context()).Members {
		if status.ReplicaID == id && status.BootID != "" && status.BootID != e.replicas["b"].BootID() {
			t.Errorf("another replica answers for b: %+v", status)
		}
	}
	e.kill("b")
	e.start("b")
	e.waitVoters("a", "b", "c")
	if errors.Is(e.replicas["a"].Err(), cluster.ErrDuplicate) {
		t.Error(e.replicas["a"].Err())
	}
}
