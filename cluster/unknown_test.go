package cluster_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
)

// Whether an entry of a leader that is cut off takes effect the next leader decides.
// A command without a request id must not be proposed once more meanwhile: it might
// take effect twice. The caller is told that its outcome is not known.
func TestUnknownOutcomeIsNotProposedAgain(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	old := e.replicas["a"]
	e.network.isolate("a", true)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := old.Propose(ctx, register(1))
		ended <- err
	}()
	eventually(t, "another one leads", func() bool {
		for _, name := range []string{"b", "c"} {
			if leading, _ := e.replicas[name].Leadership(); leading {
				return true
			}
		}
		return false
	})
	e.network.isolate("a", false)
	select {
	case err := <-ended:
		if !errors.Is(err, cluster.ErrUnknownOutcome) {
			t.Errorf("a proposal of a leader that was cut off: %v, want an unknown outcome", err)
		}
	case <-time.After(2 * patience):
		t.Fatal("the proposal did not end")
	}
	last := proposeWithRetry(t, old, register(2))
	for name, replica := range e.replicas {
		if !reaches(replica, last.Index, patience) {
			t.Fatalf("%s does not follow", name)
		}
		if hasNode(replica.View(), 1) {
			t.Errorf("%s: the command was proposed once more", name)
		}
	}
}
