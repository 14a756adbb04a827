package cluster_test

import (
	"context"
	"errors"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// Whoever waits for a leader is told when none can be elected, and waits again when
// one can.
func TestNobodyWaitsForALeaderWithoutAQuorum(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	a := e.replicas["a"]
	waiting, stop := a.WhileQuorum(t.Context())
	defer stop()
	e.kill("b")
	proposeWithRetry(t, a, register(1)) // two of three are enough
	if err := waiting.Err(); err != nil {
		t.Fatalf("with a quorum: %v", context.Cause(waiting))
	}
	e.kill("c")
	ended := func() bool {
		ctx, stop := a.WhileQuorum(t.Context())
		defer stop()
		return ctx.Err() != nil
	}
	eventually(t, "nobody waits any more", func() bool { return waiting.Err() != nil && ended() })
	var lost *cluster.QuorumLostError
	if err := context.Cause(waiting); !errors.As(err, &lost) || !errors.Is(err, cluster.ErrNoLeader) ||
		lost.Answering != 1 || lost.Voters != 3 || len(lost.Missing) != 2 {
		t.Errorf("the reason is %v", err)
	}
	e.start("b")
	eventually(t, "callers wait again", func() bool { return !ended() })
	proposeWithRetry(t, a, register(2))
}
