package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// startTimeout bounds one try to open a leadership.
	startTimeout = 5 * time.Second
	// stuckTransfer is how long a new leader may be told that it is just handing
	// over.
	stuckTransfer = 2 * time.Second
	// startPause is the wait before the next try.
	startPause = 100 * time.Millisecond
	// workPatience is how long an elected replica waits for the work of its last
	// leadership to end.
	workPatience = 10 * time.Second
)

// leadership holds what this replica knows of its own leadership. A goroutine
// that only drains raft's channel tells it; another one runs the leader's work.
type leadership struct {
	changed chan struct{} // holds a token after each change of elected

	mu       sync.Mutex
	elected  bool // newest value of raft's channel
	resigned bool // by resign; elections do not count any more
	// suspended: elected, but no work begins meanwhile.
	suspended bool
	cancel    context.CancelFunc // of the present leadership; nil if there is none
	term      uint64             // of the leadership that has started, else 0
	work      []func(context.Context, uint64)
	start     func(func(context.Context, uint64)) // runs one more piece of work; nil if there is none to run
}

func newLeadership() *leadership {
	return &leadership{changed: make(chan struct{}, 1)}
}

// set takes a value of raft's channel. On a loss everything that was done for
// the leadership is cancelled before anything else. It never blocks: raft's main
// loop stands still while its channel is full, and a replica in that state looks
// like a good follower but is none (hashicorp/consul#6852).
func (l *leadership) set(elected bool) {
	l.mu.Lock()
	l.elected = elected && !l.resigned
	if !l.elected {
		l.term = 0
		if l.cancel != nil {
			l.cancel()
		}
	}
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// resign ends the present leadership and every later one.
func (l *leadership) resign() {
	l.mu.Lock()
	l.resigned = true
	l.mu.Unlock()
	l.set(false)
}

// suspend ends the work of the leadership of a term; it does not begin again
// before resume. False if that leadership is over.
func (l *leadership) suspend(term uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != term || term == 0 || l.suspended {
		return false
	}
	l.term, l.suspended = 0, true
	l.cancel()
	return true
}

// resume lets work begin again, behind another LeaderStarted, if the replica still
// leads.
func (l *leadership) resume() {
	l.mu.Lock()
	l.suspended = false
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// begin returns a context for a leadership, nil if this replica is not elected.
func (l *leadership) begin(parent context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.elected || l.suspended {
		return nil
	}
	ctx, cancel := context.WithCancel(parent)
	l.cancel = cancel
	return ctx
}

// run starts the leader's work for a leadership that has started, and returns
// when it was lost and all work has ended. It calls stuck when that holds up the
// next leadership.
func (l *leadership) run(ctx context.Context, term uint64, started func(), stuck func()) {
	var running sync.WaitGroup
	start := func(work func(context.Context, uint64)) {
		running.Go(func() { work(ctx, term) })
	}
	l.mu.Lock()
	if ctx.Err() == nil {
		l.term, l.start = term, start
		for _, work := range l.work {
			start(work)
		}
	}
	l.mu.Unlock()
	started()

	<-ctx.Done()
	l.mu.Lock()
	l.term, l.start = 0, nil
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	for waited := time.Duration(0); ; waited += startPause {
		select {
		case <-ended:
			return
		case <-time.After(startPause):
		}
		if !l.isElected() {
			waited = 0
		} else if waited > workPatience {
			stuck()
			<-ended
			return
		}
	}
}

func (l *leadership) isElected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.elected
}

func (l *leadership) leadWith(work func(context.Context, uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work = append(l.work, work)
	if l.start != nil {
		l.start(work)
	}
}

func (l *leadership) current() (bool, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term != 0, l.term
}

// LeadWith registers work that only a leader does. It is called in a goroutine
// of its own after LeaderStarted was applied, once for each leadership, with a
// context that ends first thing when the leadership is lost. The next leadership
// does not start before it has returned. Registered while this replica leads, it
// starts at once.
func (r *Replica) LeadWith(work func(ctx context.Context, term uint64)) {
	r.leadership.leadWith(work)
}

// Leadership reports whether this replica leads and its leadership has started
// its work (LeaderStarted applied), and in which term.
func (r *Replica) Leadership() (leading bool, term uint64) {
	return r.leadership.current()
}

// drainElections reads raft's channel and nothing else, until raft has ended.
func (r *Replica) drainElections(elections <-chan bool) {
	for {
		select {
		case elected := <-elections:
			r.leadership.set(elected)
			r.readiness.poke()
		case <-r.raftEnded:
			return
		}
	}
}

// lead runs one leadership after the other until the context ends. Two never
// overlap.
func (r *Replica) lead(ctx context.Context) {
	for {
		select {
		case <-r.leadership.changed:
		case <-ctx.Done():
			return
		}
		round := r.leadership.begin(ctx)
		if round == nil {
			continue
		}
		if term, ok := r.openLeadership(round); ok {
			r.leadership.run(round, term, r.readiness.poke, func() { r.fail(ErrWorkStuck) })
		}
	}
}

// openLeadership tries until LeaderStarted is applied, or gives up when the
// leadership was lost.
func (r *Replica) openLeadership(ctx context.Context) (term uint64, ok bool) {
	began := time.Now()
	for {
		if r.Distrusted() != "" {
			r.stepAside(ctx)
			return 0, false
		}
		term, err := r.tryOpenLeadership(ctx)
		if err == nil {
			r.logger.Info("leading", "term", term)
			return term, true
		}
		if ctx.Err() != nil {
			return 0, false
		}
		if errors.Is(err, ErrWrongCluster) || errors.Is(err, ErrStoreFailed) {
			r.fail(err)
			return 0, false
		}
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) && time.Since(began) > max(stuckTransfer, 2*r.options.Timings.Election) {
			// The library's flag is never cleared; only a restart does it
			// (hashicorp/raft#696).
			r.fail(fmt.Errorf("%w for %s", ErrTransferStuck, time.Since(began).Round(time.Second)))
			return 0, false
		}
		r.logger.Warn("leadership could not start yet", "error", err)
		select {
		case <-time.After(startPause):
		case <-ctx.Done():
			return 0, false
		}
	}
}

func (r *Replica) tryOpenLeadership(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := r.barrier(ctx); err != nil {
		return 0, err
	}
	// Should the leadership be lost and won again from here on, the command's
	// term is not its entry's and the command does nothing.
	term := r.raft.CurrentTerm()
	if err := r.initCluster(ctx); err != nil {
		return 0, err
	}
	return term, accepted(r.proposer.start(ctx, &slimcppb.Command{
		Term: term,
		Payload: &slimcppb.Command_LeaderStarted{LeaderStarted: &slimcppb.LeaderStarted{
			Term: term, ReplicaId: r.ReplicaID(), BootId: r.bootID,
		}},
	}))
}

// initCluster gives a new cluster its id and the newest schema: no older replica can
// be in it yet. It is called behind a barrier, so that the state is complete.
func (r *Replica) initCluster(ctx context.Context) error {
	if id := r.store.View().ClusterID(); id != "" || r.ClusterID() != "" {
		return r.identity.adopt(id)
	}
	err := accepted(r.proposer.start(ctx, &slimcppb.Command{
		Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{
			ClusterId: uuid.NewString(), ActiveSchema: fsm.SchemaVersion,
		}},
	}))
	if err != nil {
		return err
	}
	return r.identity.adopt(r.store.View().ClusterID())
}

// accepted returns the error of a proposal, or that of Apply.
func accepted(result fsm.Result, err error) error {
	if err == nil && result.Err != nil {
		err = fmt.Errorf("command refused: %w", result.Err)
	}
	return err
}
