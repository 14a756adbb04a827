package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A replica that stops waits for no leader that cannot be.
func TestStoppingReplicaWaitsForALeaderOnlyWhileThereMayBeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leaderless atomic.Pointer[time.Time]
		ctx, cancel := whileLeaderKnown(t.Context(), func() (bool, time.Time) {
			if since := leaderless.Load(); since != nil {
				return false, *since
			}
			return true, time.Time{}
		})
		defer cancel()
		<-time.After(3 * time.Second)
		if ctx.Err() != nil {
			t.Error("it ended while a leader was known")
		}
		now := time.Now()
		leaderless.Store(&now)
		select {
		case <-ctx.Done():
			if took := time.Since(now); took < leaderlessLimit {
				t.Errorf("it ended after %s", took)
			}
		case <-time.After(time.Second):
			t.Error("it goes on without a leader")
		}
	})
}
