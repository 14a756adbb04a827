package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const replicaID = "cp-1"

// raftLog stands for the log of a lone replica: it outlives the replica's boots
// and applies each command at once.
type raftLog struct {
	store *fsm.Store

	mu     sync.Mutex
	index  uint64
	term   uint64
	random *rand.Rand
}

func newRaftLog(seed uint64) *raftLog {
	return &raftLog{store: fsm.New(), random: rand.New(rand.NewPCG(seed, 1))}
}

// append applies one command as an entry of the given term, through its bytes,
// as a log does.
func (l *raftLog) append(term uint64, command *slimcppb.Command) (fsm.Result, error) {
	encoded, err := proto.Marshal(command)
	if err != nil {
		return fsm.Result{}, fmt.Errorf("%w: %w", cluster.ErrInvalidCommand, err)
	}
	if len(encoded) > cluster.MaxCommandBytes {
		return fsm.Result{}, cluster.ErrTooLarge
	}
	logged := &slimcppb.Command{}
	if err := proto.Unmarshal(encoded, logged); err != nil {
		return fsm.Result{}, fmt.Errorf("%w: %w", cluster.ErrInvalidCommand, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	if logged.Generation == 0 && logged.GetInitCluster() == nil {
		logged.Generation = l.store.View().Generation()
	}
	logged.Schema = l.store.View().ActiveSchema()
	logged.TimeUnixNanos, logged.Seed = time.Now().UnixNano(), l.random.Uint64()
	return l.store.Apply(l.index, term, &slimcppb.Entry{Commands: []*slimcppb.Command{logged}})[0], nil
}

// save returns the state as a snapshot.
func (l *raftLog) save() ([]byte, error) {
	var saved bytes.Buffer
	err := l.store.View().Snapshot().Write(&saved)
	return saved.Bytes(), err
}

// restore replaces the state as a leader does.
func (l *raftLog) restore(saved []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rewritten bytes.Buffer
	options := fsm.RestoreOptions{Now: time.Now()}
	if _, err := fsm.RewriteSnapshot(&rewritten, bytes.NewReader(saved), l.store.View(), options); err != nil {
		return err
	}
	return l.store.Restore(&rewritten)
}

// nextTerm begins a term.
func (l *raftLog) nextTerm() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term++
	return l.term
}

// Replica is one boot of the replica, as the packages above the cluster see it.
type Replica struct {
	log    *raftLog
	bootID string

	mu      sync.Mutex
	down    bool
	term    uint64        // of the present leadership; 0: no leader is known
	since   time.Time     // of the last change of term
	changed chan struct{} // closed and replaced when one of the fields changes
	stalled bool
	// forgetful proposals are applied, but their outcome is not told.
	forgetful int
	refuse    func(*slimcppb.Command) error
}

func newReplica(log *raftLog, boot int) *Replica {
	return &Replica{log: log, bootID: fmt.Sprintf("boot-%d", boot), since: time.Now(), changed: make(chan struct{})}
}

// ReplicaID implements southbound.Proposer.
func (r *Replica) ReplicaID() string { return replicaID }

// BootID implements southbound.Proposer.
func (r *Replica) BootID() string { return r.bootID }

// LeaderKnown implements southbound.Proposer.
func (r *Replica) LeaderKnown() (known bool, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term != 0 && !r.down, r.since
}

// Read implements southbound.Proposer.
func (r *Replica) Read(context.Context) (*fsm.View, error) {
	if known, _ := r.LeaderKnown(); !known {
		return nil, cluster.ErrNoLeader
	}
	return r.log.store.View(), nil
}

// Propose implements southbound.Proposer.
func (r *Replica) Propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	term, err := r.admit(ctx, command)
	if err != nil {
		return fsm.Result{}, err
	}
	result, err := r.log.append(term, command)
	if err != nil {
		return fsm.Result{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forgetful > 0 {
		r.forgetful--
		return fsm.Result{}, &cluster.UnknownOutcomeError{Cause: errors.New("leadership lost")}
	}
	return result, nil
}

// ProposeAsLeader implements reconciler.Proposer.
func (r *Replica) ProposeAsLeader(ctx context.Context, term uint64, command *slimcppb.Command) (fsm.Result, error) {
	r.mu.Lock()
	current := r.term
	r.mu.Unlock()
	if current != term {
		return fsm.Result{}, fmt.Errorf("%w: the leadership of term %d is over", cluster.ErrNotLeader, term)
	}
	command.Term = term
	return r.Propose(ctx, command)
}

// admit waits while the log is stalled and returns the entry's term.
func (r *Replica) admit(ctx context.Context, command *slimcppb.Command) (uint64, error) {
	handedOver := false
	for {
		r.mu.Lock()
		term, stalled, changed := r.term, r.stalled, r.changed
		var err error
		switch {
		case r.down:
			err = cluster.ErrShutdown
		case term == 0:
			err = cluster.ErrNoLeader
		case r.refuse != nil:
			err = r.refuse(command)
		}
		r.mu.Unlock()
		switch {
		case err != nil && handedOver:
			return 0, &cluster.UnknownOutcomeError{Cause: err}
		case err != nil:
			return 0, err
		case !stalled:
			return term, nil
		}
		handedOver = true
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, &cluster.UnknownOutcomeError{Cause: ctx.Err()}
		}
	}
}

func (r *Replica) change(apply func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	apply()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Stall makes proposals wait, or go on, as a disk that hangs does.
func (r *Replica) Stall(on bool) { r.change(func() { r.stalled = on }) }

// Forget makes the next proposals take effect without their outcome being told.
func (r *Replica) Forget(count int) { r.change(func() { r.forgetful = count }) }

// Refuse makes proposals fail for which the function returns an error; nil ends
// that.
func (r *Replica) Refuse(refuse func(*slimcppb.Command) error) {
	r.change(func() { r.refuse = refuse })
}

func (r *Replica) setTerm(term uint64) { r.change(func() { r.term, r.since = term, time.Now() }) }

func (r *Replica) stop() { r.change(func() { r.down, r.term = true, 0 }) }
