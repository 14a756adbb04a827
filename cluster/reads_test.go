package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
)

func TestReadSeesWhatWasAnswered(t *testing.T) {
	replica := start(t, cluster.Options{DataDir: t.TempDir()})
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 20 {
				node := caller*100 + i
				propose(t, replica, register(node))
				view, err := replica.Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if !hasNode(view, node) {
					t.Errorf("node %d was answered and is not read", node)
				}
			}
		})
	}
	callers.Wait()
}

func TestReadWaitsForLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica, err := open(t, cluster.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t, replica)
		view, err := replica.Read(t.Context())
		if err != nil || view.ClusterID() == "" {
			t.Errorf("read during the election: %v", err)
		}
	})
}

func TestReadWithoutLeaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		logs.setFailure(errors.New("no space left on device"))
		replica, err := open(t, cluster.Options{}.WithLogs(logs.wrap))
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t, replica)
		began := time.Now()
		if _, err := replica.Read(context.Background()); !errors.Is(err, cluster.ErrNoLeader) {
			t.Errorf("read without a leader: %v", err)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// A leader whose main loop hangs cannot know that it still leads.
func TestReadIsNotAnsweredUnverified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		unblock := logs.block()
		var callers sync.WaitGroup
		callers.Go(func() { propose(t, replica, register(1)) })
		synctest.Wait()
		for range 100 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := replica.Read(ctx); !errors.Is(err, cluster.ErrNoLeader) {
					t.Errorf("read from a hanging leader: %v", err)
				}
			})
		}
		<-time.After(2 * time.Second)
		unblock()
		callers.Wait()
		view, err := replica.Read(t.Context())
		if err != nil || !hasNode(view, 1) {
			t.Errorf("read afterwards: %v", err)
		}
	})
}
