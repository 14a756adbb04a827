package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
)

// B-54: an elected replica whose last leadership's work does not end would be a
// leader that does nothing; it stops.
func TestWorkThatNeverEndsStopsAnElectedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		finish := make(chan struct{})
		replica.LeadWith(func(context.Context, uint64) { <-finish })
		logs.setFailure(errors.New("no space left on device"))
		_, _ = replica.Propose(t.Context(), register(0))
		synctest.Wait()
		<-time.After(time.Minute)
		if err := replica.Err(); err != nil {
			t.Fatalf("without an election it stopped: %v", err)
		}
		logs.setFailure(nil)
		<-time.After(time.Minute)
		if err := replica.Err(); !errors.Is(err, cluster.ErrWorkStuck) {
			t.Errorf("elected, it stopped with %v", err)
		}
		close(finish)
	})
}

// rounds records the leader's work.
type rounds struct {
	mu      sync.Mutex
	terms   []uint64
	running int
}

// work returns work that lasts a while longer than its leadership.
func (r *rounds) work(t *testing.T, replica *cluster.Replica, linger time.Duration) func(context.Context, uint64) {
	t.Helper()
	return func(ctx context.Context, term uint64) {
		r.mu.Lock()
		r.terms = append(r.terms, term)
		if r.running++; r.running > 1 {
			t.Error("two leaderships' work at once")
		}
		r.mu.Unlock()
		if got := replica.View().LeaderTerm(); got != term {
			t.Errorf("work of term %d began when LeaderStarted of term %d was applied", term, got)
		}
		<-ctx.Done()
		if leading, _ := replica.Leadership(); leading {
			t.Error("the context ended while the replica led")
		}
		<-time.After(linger)
		r.mu.Lock()
		r.running--
		r.mu.Unlock()
	}
}

func (r *rounds) seen() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint64(nil), r.terms...)
}

// loseLeadership makes the replica step down and waits until it leads again.
func loseLeadership(t *testing.T, replica *cluster.Replica, logs *faultyLogs) {
	t.Helper()
	logs.setFailure(errors.New("no space left on device"))
	_, _ = replica.Propose(t.Context(), register(0))
	synctest.Wait()
	logs.setFailure(nil)
	waitReady(t, replica)
}

func TestLeaderWorkRunsOncePerLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica, err := open(t, cluster.Options{}.WithLogs(logs.wrap))
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t, replica)
		var early, late rounds
		replica.LeadWith(early.work(t, replica, 3*time.Second))
		waitReady(t, replica)
		synctest.Wait()
		if got := early.seen(); len(got) != 1 {
			t.Fatalf("work began for terms %v", got)
		}
		replica.LeadWith(late.work(t, replica, 0))
		synctest.Wait()
		loseLeadership(t, replica, logs)
		synctest.Wait()
		loseLeadership(t, replica, logs)
		synctest.Wait()
		for _, r := range []*rounds{&early, &late} {
			got := r.seen()
			if len(got) != 3 || got[0] >= got[1] || got[1] >= got[2] {
				t.Errorf("work began for terms %v", got)
			}
		}
	})
}

func TestLeaderStartedIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		for range 3 {
			logs.setFailure(errors.New("no space left on device"))
			_, _ = replica.Propose(t.Context(), register(0))
			unblock := logs.block()
			logs.setFailure(nil)
			<-time.After(time.Second)
			// Elected, and its first write hangs.
			if _, err := replica.Propose(t.Context(), register(1)); !errors.Is(err, cluster.ErrNoLeader) {
				t.Errorf("proposal before LeaderStarted: %v", err)
			}
			unblock()
			waitReady(t, replica)
		}
		first := logs.firstCommands()
		if len(first) != 4 || first[0].GetInitCluster() == nil {
			t.Fatalf("%d leaderships, the first began with %v", len(first), first[0])
		}
		for _, command := range first[1:] {
			if command.GetLeaderStarted() == nil {
				t.Errorf("a leadership began with %v", command)
			}
		}
	})
}

func TestLeaderWorkEndsBeforeShutdownReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica := start(t, cluster.Options{})
		ended := false
		replica.LeadWith(func(ctx context.Context, _ uint64) {
			<-ctx.Done()
			<-time.After(time.Second)
			ended = true
		})
		stop(t, replica)
		if !ended {
			t.Error("work still runs")
		}
	})
}

// TestElectionsComeAndGo tells the replica of elections and losses in any order
// and at any moment, as raft's channel may.
func TestElectionsComeAndGo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			elected bool
			pause   time.Duration
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				elected: rapid.Bool().Draw(rt, "elected"),
				pause:   time.Duration(rapid.SampledFrom([]int{0, 0, 1, 50, 2000}).Draw(rt, "pause")) * time.Millisecond,
			}
		}), 1, 20).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			replica := start(t, cluster.Options{})
			var seen rounds
			replica.LeadWith(seen.work(t, replica, time.Second))
			for _, s := range steps {
				replica.Lead(s.elected)
				if leading, _ := replica.Leadership(); leading && !s.elected {
					t.Error("leads after a loss")
				}
				if s.pause > 0 {
					<-time.After(s.pause)
				}
			}
			replica.Lead(true)
			waitReady(t, replica)
			propose(t, replica, register(1))
		})
	})
}

func TestTermFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		_, old := replica.Leadership()
		if result, err := replica.ProposeAsLeader(t.Context(), old, register(1)); err != nil || result.Err != nil {
			t.Fatal(err, result.Err)
		}
		written := logs.written()
		if decided := written[len(written)-1].GetCommands()[0]; decided.GetTerm() != old {
			t.Errorf("a decision of term %d is in the log under term %d", old, decided.GetTerm())
		}
		loseLeadership(t, replica, logs)
		before := replica.LastLogIndex()
		if _, err := replica.ProposeAsLeader(t.Context(), old, register(2)); !errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("proposal of an old leadership: %v", err)
		}
		if replica.LastLogIndex() != before {
			t.Error("a proposal of an old leadership entered the log")
		}
		// One that slips in is dropped by Apply.
		slipped := register(2)
		slipped.Term = old
		result, err := replica.Propose(t.Context(), slipped)
		if err != nil || !errors.Is(result.Err, fsm.ErrStaleTerm) {
			t.Errorf("command of an old term: %v, %v", err, result.Err)
		}
		if hasNode(replica.View(), 2) {
			t.Error("a command of an old term took effect")
		}
	})
}

func TestLeaderKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		logs.setFailure(errors.New("no space left on device"))
		_, _ = replica.Propose(t.Context(), register(0))
		synctest.Wait()
		lost := time.Now()
		<-time.After(10 * time.Millisecond)
		known, since := replica.LeaderKnown()
		if known || since.After(lost) || replica.Ready() {
			t.Errorf("leader known %v since %s, lost at %s, ready %v", known, since, lost, replica.Ready())
		}
		logs.setFailure(nil)
		waitReady(t, replica)
		synctest.Wait()
		known, since = replica.LeaderKnown()
		if !known || !since.After(lost) {
			t.Errorf("leader known %v since %s", known, since)
		}
		<-time.After(time.Minute)
		replica.Poke()
		synctest.Wait()
		if _, later := replica.LeaderKnown(); later != since {
			t.Errorf("leader known since %s, a minute later since %s", since, later)
		}
	})
}
