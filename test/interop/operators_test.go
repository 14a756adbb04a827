//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// changePeriod is how often operators make a change. Without a pause they would
// take the processors from the nodes that are measured.
const changePeriod = 20 * time.Millisecond

// operators make one change after the other, on all replicas in turn.
type operators struct {
	changes int
	stop    context.CancelFunc
	working sync.WaitGroup
}

func startOperators(t *testing.T, replicas []*process.Replica) *operators {
	t.Helper()
	endpoints := make([]string, len(replicas))
	for i, r := range replicas {
		endpoints[i] = r.Northbound
	}
	caller := observer.NewCaller(t, endpoints...)
	ctx, stop := context.WithCancel(t.Context())
	o := &operators{stop: stop}
	o.working.Go(func() {
		ticker := time.NewTicker(changePeriod)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if err := caller.AddSegment(t.Context(), fmt.Sprintf("segment-%d", o.changes)); err != nil {
				t.Errorf("change %d failed twice: %v", o.changes, err)
				return
			}
			o.changes++
		}
	})
	t.Cleanup(o.rest)
	return o
}

func (o *operators) rest() {
	o.stop()
	o.working.Wait()
}

// finish ends the work, and checks that none of it is lost.
func (o *operators) finish(t *testing.T, l *lab) {
	t.Helper()
	o.rest()
	list, err := l.API().ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	const ofEveryCluster = 1
	if got := len(list.GetSegments()) - ofEveryCluster; got != o.changes {
		t.Errorf("%d segments, want one for each of %d changes", got, o.changes)
	}
	t.Logf("%d changes by operators", o.changes)
}
