package cluster_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
)

// Public faults around leaderships and their work.

// B-06: work that does not end with its leadership holds up its replica's next
// leadership, and nothing else.
func TestWorkThatDoesNotEndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	ended := make(chan struct{})
	finish := sync.OnceFunc(func() { close(ended) })
	defer finish()
	var leaderships atomic.Int64
	e.replicas["a"].LeadWith(func(context.Context, uint64) {
		leaderships.Add(1)
		<-ended
	})
	eventually(t, "the work runs", func() bool { return leaderships.Load() == 1 })
	for range 3 { // more changes than a channel would take
		e.network.isolate("a", true)
		eventually(t, "it does not lead", func() bool { leading, _ := e.replicas["a"].Leadership(); return !leading })
		e.network.isolate("a", false)
		eventually(t, "it follows", func() bool {
			if raftReplica := e.replicas["a"].Raft(); raftReplica.State() == raft.Leader {
				_ = raftReplica.LeadershipTransfer().Error() // a busy machine elected it
			}
			return e.replicas["a"].Ready()
		})
	}
	last := propose(t, e.replicas["a"], register(1))
	if !reaches(e.replicas["a"], last.Index, patience) {
		t.Error("it does not follow")
	}
	// Elected once more it does not begin while the old work runs (B-54).
	eventually(t, "it is elected", func() bool {
		for _, name := range []string{"b", "c"} {
			if leading, _ := e.replicas[name].Leadership(); leading {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, _ = e.replicas[name].TransferLeadership(ctx, "a")
				cancel()
			}
		}
		return e.replicas["a"].Raft().VerifyLeader().Error() == nil
	})
	if leading, _ := e.replicas["a"].Leadership(); leading || leaderships.Load() != 1 {
		t.Error("two leaderships' work at once")
	}
	finish()
	eventually(t, "the next leadership begins", func() bool { return leaderships.Load() >= 2 })
}

// B-07: after a transfer that failed the same one is not tried again in its term.
func TestTransferIsTriedOnceInATerm(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	disk := &faultyLogs{}
	e.start("a")
	e.start("b", func(o *cluster.Options) { *o = o.WithLogs(disk.wrap) })
	e.start("c")
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	disk.setFailure(errors.New("no space left on device"))
	propose(t, e.replicas["a"], register(1))
	if to, err := e.replicas["a"].TransferLeadership(t.Context(), "b"); err == nil || errors.Is(err, cluster.ErrMembership) {
		t.Fatalf("transfer to a follower that cannot catch up: %q, %v", to, err)
	}
	if _, err := e.replicas["a"].TransferLeadership(t.Context(), "b"); !errors.Is(err, cluster.ErrMembership) || !strings.Contains(err.Error(), "in this term") {
		t.Errorf("the same transfer again: %v", err)
	}
	propose(t, e.replicas["a"], register(2))
	disk.setFailure(nil)
	// Who names nobody gets another one.
	eventually(t, "a transfer to another replica", func() bool {
		to, err := e.replicas["a"].TransferLeadership(t.Context(), "")
		return err == nil && to == e.replicas["c"].ReplicaID()
	})
	// The next term is another matter.
	e.transfer("a")
	e.transfer("b")
}

// B-07: with two such transfers the library refuses every write once its replica
// leads again; that replica stops. Goroutines of the library stay behind, so it is
// done in a process of its own.
func TestLeaderStuckInATransferStops(t *testing.T) {
	inProcess(t, func() bool {
		e := newEnsemble(t)
		e.form("a", "b", "c")
		e.transfer("a")
		a, b := e.replicas["a"], e.replicas["b"]
		thaw := e.network.freezeLink("a", "b")
		defer thaw()
		propose(t, a, register(1))
		for tried := 0; tried < 2; { // past our own refusal
			err := a.Raft().LeadershipTransferToServer(raft.ServerID(b.ReplicaID()), "b:1").Error()
			if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
				tried++
			}
		}
		e.network.separate("a", []string{"c"}, true)
		eventually(t, "it does not lead", func() bool { leading, _ := a.Leadership(); return !leading })
		e.network.separate("a", []string{"c"}, false)
		eventually(t, "it leads again, and stops", func() bool {
			for name, other := range map[string]string{"b": "c", "c": "b"} {
				if leading, _ := e.replicas[name].Leadership(); !leading {
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := e.replicas[name].TransferLeadership(ctx, "a")
				cancel()
				if err != nil {
					_, _ = e.replicas[name].TransferLeadership(t.Context(), other) // another term
				}
			}
			return a.Err() != nil
		})
		waitDone(t, a)
		return errors.Is(a.Err(), cluster.ErrTransferStuck)
	})
}

// B-31: a leader whose clock is an hour off, or goes back, leads as well as any
// other, and the state's time never goes back.
func TestWrongClockOfALeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	offsets := map[string]*atomic.Int64{}
	for name, offset := range map[string]time.Duration{"a": time.Hour, "b": -time.Hour, "c": 0} {
		ahead := &atomic.Int64{}
		ahead.Store(int64(offset))
		offsets[name] = ahead
		e.start(name, steady, func(o *cluster.Options) {
			o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		})
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	var last time.Time
	lost := 0
	for i, name := range []string{"c", "a", "b", "c", "a"} {
		e.transfer(name)
		term := e.replicas[name].View().LeaderTerm()
		proposeWithRetry(t, e.replicas[name], register(i))
		offsets[name].Add(-int64(30 * time.Minute)) // set back while it leads
		for range 30 {
			proposeWithRetry(t, e.replicas["c"], register(100+i))
			<-time.After(10 * time.Millisecond)
			view := e.replicas[name].View()
			if view.Clock().Before(last) {
				t.Fatalf("the state's time went from %s back to %s", last, view.Clock())
			}
			last = view.Clock()
		}
		offsets[name].Add(int64(30 * time.Minute))
		if leading, now := e.replicas[name].Leadership(); !leading || now != term {
			lost++
		}
	}
	if lost > 1 { // one may be a busy machine's
		t.Errorf("%d leaders lost their leadership", lost)
	}
	if ahead := time.Until(last); ahead < 20*time.Minute {
		t.Errorf("the state's time is %s ahead of ours: the clocks made no difference", ahead)
	}
}

// B-52: what a leader decided takes no effect once another one leads, even if it is
// handed to the new leader.
func TestFormerLeadersDecisionsTakeNoEffect(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	old := e.replicas["a"]
	_, term := old.Leadership()
	thaw := e.network.freeze("a")
	defer thaw()
	// Decided while it leads, and with Raft until it wakes up.
	var deciding sync.WaitGroup
	for i := range 3 {
		deciding.Go(func() { _, _ = old.ProposeAsLeader(t.Context(), term, register(i)) })
	}
	eventually(t, "another one leads", func() bool {
		for _, name := range []string{"b", "c"} {
			if leading, now := e.replicas[name].Leadership(); leading && now > term {
				return true
			}
		}
		return false
	})
	thaw()
	deciding.Wait()
	if _, err := old.ProposeAsLeader(t.Context(), term, register(4)); !errors.Is(err, cluster.ErrNotLeader) {
		t.Errorf("a decision of an old leadership: %v", err)
	}
	late := register(5)
	late.Term = term
	if _, err := old.Propose(t.Context(), late); !errors.Is(err, cluster.ErrInvalidCommand) {
		t.Errorf("a decision of an old leadership that was forwarded: %v", err)
	}
	last := propose(t, old, register(6))
	for name, replica := range e.replicas {
		if !reaches(replica, last.Index, patience) {
			t.Fatalf("%s does not follow", name)
		}
		for i := range 6 {
			if hasNode(replica.View(), i) {
				t.Errorf("%s: decision %d of an old leadership took effect", name, i)
			}
		}
	}
}

// B-53, B-54: with the leadership going round, each job is done once, the work of
// one leadership at a time runs in the whole cluster, and followers hold none.
func TestLeadershipGoesRound(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	const jobs = 300
	var rounds sync.Map // term: who worked in it
	for name, replica := range e.replicas {
		replica.LeadWith(func(ctx context.Context, term uint64) {
			if other, taken := rounds.LoadOrStore(term, name); taken {
				t.Errorf("%v and %s worked in term %d", other, name, term)
			}
			// What is to be done is read from the state, and nothing else is kept.
			for ctx.Err() == nil {
				done := replica.View().NodeCount()
				if done == jobs {
					return
				}
				patient, cancel := context.WithTimeout(ctx, time.Second)
				_, _ = replica.ProposeAsLeader(patient, term, register(done))
				cancel()
			}
		})
	}
	for _, name := range []string{"b", "c", "a", "c", "b", "a"} {
		e.transfer(name)
	}
	eventually(t, "all jobs are done", func() bool { return e.replicas["a"].View().NodeCount() == jobs })
	view, err := e.replicas["b"].Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for node := range view.Nodes() {
		if len(node.Sessions) != 1 {
			t.Errorf("job %s was done %d times", node.ID, len(node.Sessions))
		}
	}
	for _, name := range e.followers() {
		if leading, term := e.replicas[name].Leadership(); leading {
			t.Errorf("%s works in term %d", name, term)
		}
	}
}

// B-55: a leader sees in its own state what it was told has happened.
func TestLeaderReadsItsOwnWrites(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	leader := e.replicas[e.leader()]
	_, term := leader.Leadership()
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for i := range 30 {
				node := caller*100 + i
				result, err := leader.ProposeAsLeader(t.Context(), term, register(node))
				if err := errors.Join(err, result.Err); err != nil {
					t.Error(err)
					return
				}
				if view := leader.View(); view.Index() < result.Index || !hasNode(view, node) {
					t.Errorf("answered at index %d, and the state is that of index %d", result.Index, view.Index())
				}
			}
		})
	}
	callers.Wait()
}
