//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// Each replica in turn is stopped and started again. No operator's call fails that
// is tried twice, and no change is lost.
func TestRollingRestart(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	waitTolerance(t, replicas[0], 1)
	var endpoints []string
	for _, r := range replicas {
		endpoints = append(endpoints, r.Northbound)
	}
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	made := 0
	calling.Go(func() {
		caller := observer.NewCaller(t, endpoints...)
		for ctx.Err() == nil {
			if err := caller.AddSegment(t.Context(), fmt.Sprintf("segment-%d", made)); err != nil {
				t.Errorf("change %d: %v", made, err)
				return
			}
			made++
		}
	})
	for _, r := range replicas {
		r.Stop(t)
		r.Start(t)
		waitTolerance(t, r, 1)
	}
	stop()
	calling.Wait()
	t.Logf("%d changes", made)
	list, err := observer.Dial(t, endpoints[0]).API().ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(list.GetSegments()) - 1; got != made {
		t.Errorf("%d segments, want %d", got, made)
	}
}
