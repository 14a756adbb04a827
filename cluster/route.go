package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// leaderPatience is how long a proposal waits for a leader.
const leaderPatience = 5 * time.Second

// propose is Propose; with wait it waits for room.
func (r *Replica) propose(ctx context.Context, command *slimcppb.Command, wait bool) (fsm.Result, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	if err := r.awaitState(ctx); err != nil {
		return fsm.Result{}, err
	}
	encoded, err := r.proposer.encode(command)
	if err != nil {
		return fsm.Result{}, err
	}
	if err := r.proposer.admission.acquire(ctx, len(encoded), wait); err != nil {
		return fsm.Result{}, err
	}
	if r.options.Peers == nil {
		return r.proposer.await(ctx, &proposal{encoded: encoded})
	}
	patient, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	var open error // of an attempt whose outcome is not known
	for {
		changed := r.readiness.watch()
		out := r.proposeOnce(ctx, encoded)
		if errors.Is(out.err, ErrUnknownOutcome) {
			open = out.err
		}
		// What was surely not proposed may be sent again, and so may what has a
		// request id: it takes effect once (protocol X1).
		again := errors.Is(out.err, ErrNoLeader) || errors.Is(out.err, ErrNotLeader) ||
			errors.Is(out.err, ErrUnknownOutcome) && command.GetRequestId() != ""
		if !again || !r.waitLeaderChange(patient, changed) {
			return out.result, stillOpen(open, out.err)
		}
		if err := r.proposer.admission.acquire(ctx, len(encoded), true); err != nil {
			return fsm.Result{}, stillOpen(open, err)
		}
	}
}

// stillOpen returns the error of a proposal: that an attempt surely had no effect
// says nothing about one before it.
func stillOpen(open, err error) error {
	if err == nil || open == nil {
		return err
	}
	return open
}

// awaitState waits, as long as for a leader, until one of several replicas has a
// state to decide under: what it proposes before would be refused for its
// generation (protocol X3).
func (r *Replica) awaitState(ctx context.Context) error {
	if r.options.Peers == nil || r.store.View().Generation() != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	for {
		changed := r.readiness.watch()
		if r.store.View().Generation() != 0 {
			return nil
		}
		if !r.waitLeaderChange(ctx, changed) {
			if r.isOutside() {
				return errOutside
			}
			return fmt.Errorf("%w: this replica has no state yet", ErrNoLeader)
		}
	}
}

// proposeOnce proposes an admitted command here, or at the leader. The admission
// is used up.
func (r *Replica) proposeOnce(ctx context.Context, encoded []byte) outcome {
	waiting := &proposal{encoded: encoded}
	if leader := r.leaderID(); leader == "" || leader == r.ReplicaID() {
		result, err := r.proposer.await(ctx, waiting)
		return outcome{result: result, err: err}
	}
	defer r.proposer.release(waiting)
	return r.forwarder.await(ctx, waiting)
}

// routePause is how long a proposal waits at most until it looks again where to
// go: not everything that helps is announced.
const routePause = 100 * time.Millisecond

// waitLeaderChange waits until something changed about who leads, or for a
// moment; false when the context has ended or the replica stops.
func (r *Replica) waitLeaderChange(ctx context.Context, changed <-chan struct{}) bool {
	timer := time.NewTimer(routePause)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-r.done:
		return false
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// withLeader calls with a connection to the leader that stands. The call's context
// ends when another replica leads: the old leader may be one that is stopped and
// never answers.
func (r *Replica) withLeader(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error {
	leader := r.leaderID()
	conn, err := r.leaderConn()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			changed := r.readiness.watch()
			if now := r.leaderID(); now != leader && now != "" {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := waitConnected(ctx, conn); err != nil {
		return err
	}
	return call(ctx, conn)
}

// leaderConn returns the connection to the leader. It returns ErrNoLeader if
// nobody leads or this replica does.
func (r *Replica) leaderConn() (*grpc.ClientConn, error) {
	_, id := r.raft.LeaderWithID()
	switch {
	case id == "":
		return nil, ErrNoLeader
	case string(id) == r.ReplicaID():
		return nil, fmt.Errorf("%w: this replica is about to lead", ErrNoLeader)
	case r.network == nil:
		return nil, fmt.Errorf("%w: %s does", ErrNotLeader, id)
	}
	return r.connTo(string(id), false)
}

// LeaderConn returns the connection to the leader's cluster port, for services
// that were registered with RegisterPeerService, and its id. It returns
// ErrNoLeader if nobody leads or this replica does.
func (r *Replica) LeaderConn(bulk bool) (conn *grpc.ClientConn, leaderID string, err error) {
	_, id := r.raft.LeaderWithID()
	if conn, err = r.leaderConn(); err != nil || !bulk {
		return conn, string(id), err
	}
	conn, err = r.connTo(string(id), true)
	return conn, string(id), err
}
