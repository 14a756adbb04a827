package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// confirmTimeout bounds the wait for a majority that confirms a leader.
const confirmTimeout = time.Second

// View returns what this replica has applied so far. It never blocks, and it may
// be behind what the leader has answered.
func (r *Replica) View() *fsm.View { return r.store.View() }

// Read returns a view that holds every command whose outcome was known to
// somebody before the read began (protocol X2). A replica that does not lead asks
// the leader for the index to wait for. While no leader is ready it waits, at
// most 10 s if the context has no deadline, and returns ErrNoLeader. A read may
// always be repeated.
func (r *Replica) Read(ctx context.Context) (*fsm.View, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	for {
		if r.life.Err() != nil {
			return nil, r.stopCause()
		}
		if reason := r.Distrusted(); reason != "" {
			return nil, fmt.Errorf("%w here: this replica is out of service: %s", ErrNoLeader, reason)
		}
		if err := r.WaitReady(ctx); err != nil {
			if ctx.Err() != nil && r.isOutside() {
				err = errOutside
			} else if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", ErrNoLeader, err)
			}
			return nil, err
		}
		changed := r.readiness.watch()
		index, err := r.indexToWaitFor(ctx)
		if err == nil {
			err = r.store.WaitApplied(ctx, index)
		}
		if err == nil {
			return r.store.View(), nil
		}
		if r.life.Err() == nil && (r.options.Peers == nil || !r.waitLeaderChange(ctx, changed)) {
			return nil, err
		}
	}
}

// errOutside is an ErrNoLeader that says why there is none.
var errOutside = fmt.Errorf("%w: this replica is not a member of a cluster, it waits for init or join", ErrNoLeader)

// isOutside reports whether this replica is not a member of a cluster yet.
func (r *Replica) isOutside() bool { return r.options.Peers != nil && len(r.Members()) == 0 }

func (r *Replica) indexToWaitFor(ctx context.Context) (uint64, error) {
	if leading, _ := r.Leadership(); leading || r.options.Peers == nil {
		index, _, err := r.readIndex(ctx)
		return index, err
	}
	return r.remoteIndex.join(ctx)
}

// askReadIndex asks the leader for an index to wait for. It blocks until the leader
// answers, another one leads, or 10 s have passed.
func (r *Replica) askReadIndex() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), defaultDeadline)
	defer cancel()
	defer context.AfterFunc(r.forwarder.ctx, cancel)()
	var index uint64
	err := r.withLeader(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		response, err := slimcppb.NewReplicaServiceClient(conn).ReadIndex(ctx, &slimcppb.ReadIndexRequest{})
		if err != nil {
			return fmt.Errorf("%w: %s", ErrNoLeader, status.Convert(err).Message())
		}
		index = response.GetIndex()
		return nil
	})
	return index, err
}

// readIndex returns, on a leader, the index of a state that holds all that was
// answered before the call.
func (r *Replica) readIndex(ctx context.Context) (index, term uint64, err error) {
	leading, term := r.Leadership()
	if !leading {
		return 0, 0, r.leads()
	}
	// The index of the state itself: raft's applied index counts entries that
	// are only queued for it.
	index = r.store.View().Index()
	confirmed, err := r.verification.join(ctx)
	if err != nil {
		return 0, 0, err
	}
	if leading, now := r.Leadership(); !leading || now != term || confirmed != term {
		return 0, 0, ErrNoLeader
	}
	return index, term, nil
}

// verifyLeader returns the term in which this replica surely led after the call
// began.
func (r *Replica) verifyLeader() (term uint64, err error) {
	leading, term := r.Leadership()
	if !leading {
		return 0, r.leads()
	}
	if r.options.Peers == nil || r.options.without.readConfirmation {
		if err := r.raft.VerifyLeader().Error(); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNoLeader, err)
		}
		return term, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	defer context.AfterFunc(r.forwarder.ctx, cancel)()
	return term, r.confirmTerm(ctx, term)
}

// confirmTerm asks the other voters for their terms, until a majority of all voters
// is in that of this replica's leadership. Its own is asked for too: it may have
// voted for another one and not yet know that it leads no more. Who leads a later term was voted for by a majority, so by one
// of these, after it answered: what was answered before the call was so by this
// replica, or by one before it. The library's own verification takes an answer to a
// heartbeat for one, which may have been sent before the call, by a process that
// stood still since; and it counts non-voters.
func (r *Replica) confirmTerm(ctx context.Context, term uint64) error {
	if now := r.raft.CurrentTerm(); now != term {
		return fmt.Errorf("%w: this replica led term %d and is in %d", ErrNoLeader, term, now)
	}
	var others []raft.Server
	voters, mine := 0, 0
	for _, server := range r.raft.GetConfiguration().Configuration().Servers {
		switch {
		case server.Suffrage != raft.Voter:
			continue
		case string(server.ID) == r.ReplicaID():
			mine = 1
		default:
			others = append(others, server)
		}
		voters++
	}
	needed := voters/2 + 1 - mine
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	answers := make(chan error, len(others))
	for _, server := range others {
		asking.Go(func() { answers <- r.askTerm(ctx, server, term) })
	}
	missing := errors.New("nobody votes")
	for range others {
		if needed <= 0 {
			break
		}
		if err := <-answers; err != nil {
			missing = err
			continue
		}
		needed--
	}
	if needed > 0 {
		return fmt.Errorf("%w: leadership was not confirmed: %w", ErrNoLeader, missing)
	}
	return nil
}

// askTerm returns nil if a voter is in the term.
func (r *Replica) askTerm(ctx context.Context, voter raft.Server, term uint64) error {
	conn, err := r.connTo(string(voter.ID), false)
	if err != nil {
		return err
	}
	answer, err := slimcppb.NewReplicaServiceClient(conn).Confirm(ctx, &slimcppb.ConfirmRequest{})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s", voter.ID, status.Convert(err).Message())
	case answer.GetReplicaId() != string(voter.ID):
		return fmt.Errorf("%s answers in place of %s", answer.GetReplicaId(), voter.ID)
	case answer.GetTerm() != term:
		return fmt.Errorf("%s is in term %d, this replica in %d", voter.ID, answer.GetTerm(), term)
	}
	return nil
}

// verification lets reads that come while leadership is being verified share
// the next verification: it starts after all of them have begun, and however
// many reads wait, there is one call to the library, or to the leader, which
// answers with the index to wait for.
type verification struct {
	calls  *calls
	verify func() (answer uint64, err error) // an index, or a term

	mu      sync.Mutex
	next    *verified
	running bool
}

type verified struct {
	done   chan struct{}
	answer uint64 // set before done is closed
	err    error
}

// join waits for a verification that starts after this call.
func (v *verification) join(ctx context.Context) (uint64, error) {
	v.mu.Lock()
	if v.next == nil {
		v.next = &verified{done: make(chan struct{})}
	}
	mine := v.next
	if !v.running {
		v.running = v.calls.run(v.loop)
	}
	running := v.running
	v.mu.Unlock()
	if !running {
		return 0, ErrShutdown
	}
	select {
	case <-mine.done:
		return mine.answer, mine.err
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: leadership was not confirmed in time: %w", ErrNoLeader, ctx.Err())
	}
}

// loop verifies until nobody waits.
func (v *verification) loop() {
	for {
		v.mu.Lock()
		mine := v.next
		v.next = nil
		if mine == nil {
			v.running = false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		mine.answer, mine.err = v.verify()
		close(mine.done)
	}
}

// barrier returns when all entries before it are applied here. Only a leader
// can do it.
func (r *Replica) barrier(ctx context.Context) error {
	err := r.calls.await(ctx, func() error { return r.raft.Barrier(enqueueTimeout).Error() })
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) {
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return err
}
