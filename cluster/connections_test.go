package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/slim-cp/slim-cp/cluster"
)

// Public faults of the connections between replicas.

// held is a service between replicas whose calls last until they are cut off.
type held struct {
	began chan struct{}
	ended chan time.Time
}

func (h *held) register(server grpc.ServiceRegistrar) {
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Held", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Hold", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			h.began <- struct{}{}
			<-stream.Context().Done()
			h.ended <- time.Now()
			return stream.Context().Err()
		},
	}}}, h)
}

// inBubble forms two replicas, of which b leads and serves calls that last.
func inBubble(t *testing.T, test func(t *testing.T, e *ensemble, calls *held)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnsemble(t)
		e.network.pipes = map[string]*pipeListener{}
		calls := &held{began: make(chan struct{}, 1), ended: make(chan time.Time, 1)}
		e.register = calls.register
		for _, name := range []string{"a", "b"} {
			e.start(name)
		}
		e.unite("a", "b")
		e.waitVoters("a", "b")
		e.transfer("b")
		test(t, e, calls)
	})
}

// B-36: with everything swallowed between two replicas both ends of a call know
// within 40 s.
func TestHalfOpenConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, e *ensemble, calls *held) {
		conn, _, err := e.replicas["a"].LeaderConn(false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.Held/Hold")
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
		<-calls.began
		thaw := e.network.freezeLink("a", "b")
		defer thaw()
		cut := time.Now()
		if err := stream.RecvMsg(nil); err == nil {
			t.Error("an answer came")
		}
		if took := time.Since(cut); took > 40*time.Second {
			t.Errorf("the caller knew after %s", took)
		}
		select {
		case at := <-calls.ended:
			if took := at.Sub(cut); took > 40*time.Second {
				t.Errorf("the called knew after %s", took)
			}
		case <-time.After(3 * time.Minute):
			t.Error("the called does not know after three minutes")
		}
	})
}

// B-37: client and server agree on pings: a connection without calls stays.
func TestIdleConnectionsStay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, e *ensemble, _ *held) {
		idle, _, err := e.replicas["a"].LeaderConn(true) // nobody calls over it
		if err != nil {
			t.Fatal(err)
		}
		idle.Connect()
		eventually(t, "it stands", func() bool { return idle.GetState() == connectivity.Ready })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if idle.WaitForStateChange(ctx, connectivity.Ready) {
			t.Errorf("without calls it is %s", idle.GetState())
		}
	})
}

// B-40: bulk has a connection of its own.
func TestBulkHasItsOwnConnection(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b")
	e.transfer("b")
	control, _, err := e.replicas["a"].LeaderConn(false)
	if err != nil {
		t.Fatal(err)
	}
	bulk, leader, err := e.replicas["a"].LeaderConn(true)
	if err != nil || leader != e.replicas["b"].ReplicaID() {
		t.Fatal(leader, err)
	}
	if control == bulk {
		t.Error("bulk and calls share a connection")
	}
	again, _, err := e.replicas["a"].LeaderConn(true)
	if err != nil || again != bulk {
		t.Errorf("each transfer has another connection: %v", err)
	}
}

// B-32: who is a member is what Raft's configuration says, at any moment, and after
// a restart.
func TestMembershipIsRafts(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	expect := func(when string, wanted bool) {
		t.Helper()
		for name := range e.replicas {
			eventually(t, fmt.Sprintf("%s: on %s", when, name), func() bool {
				replica := e.replicas[name]
				known := slices.ContainsFunc(replica.Members(), func(m cluster.Member) bool { return m.ReplicaID == "x-00000000" })
				shown := slices.ContainsFunc(replica.Status(t.Context()).Members, func(m cluster.MemberStatus) bool { return m.ReplicaID == "x-00000000" })
				return known == wanted && shown == wanted
			})
		}
	}
	byTheLeader := func(what string, change func(*raft.Raft) raft.IndexFuture) {
		t.Helper()
		eventually(t, what, func() bool { // a busy machine may lose a leader
			for _, replica := range e.replicas {
				if change(replica.Raft()).Error() == nil {
					return true
				}
			}
			return false
		})
	}
	byTheLeader("added", func(r *raft.Raft) raft.IndexFuture { return r.AddNonvoter("x-00000000", "x:1", 0, time.Second) })
	expect("added behind our back", true)
	e.kill("c")
	waitReady(t, e.start("c"))
	expect("after a restart", true)
	byTheLeader("removed", func(r *raft.Raft) raft.IndexFuture { return r.RemoveServer("x-00000000", 0, time.Second) })
	expect("removed behind our back", false)
}
