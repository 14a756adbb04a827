package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// quorumInterval is how often a replica without a leader asks who answers.
	quorumInterval = 250 * time.Millisecond
	// quorumAskTimeout bounds an answer. It is short: callers are told within 2 s, of
	// which it may take one until a lost leader is noticed.
	quorumAskTimeout = 500 * time.Millisecond
	// quorumHold is for how long the quorum has to be lost until callers do not wait
	// for a leader any more: a replica that is just being started comes back sooner.
	quorumHold = 250 * time.Millisecond
	// quorumLogDelay is for how long until the log says so.
	quorumLogDelay = 5 * time.Second
)

// QuorumLostError says that no leader can be elected. It is an ErrNoLeader.
type QuorumLostError struct {
	Answering, Voters int
	Missing           []string // who does not answer
}

func (e *QuorumLostError) Error() string {
	return fmt.Sprintf("no leader, quorum lost: %d of %d replicas answer, %d are needed (no answer from %s): start the others again; "+
		"if they are lost for good, save what this one has with slim-cp snapshot save --stale, stop it, and run slim-cp cluster recover",
		e.Answering, e.Voters, e.Voters/2+1, strings.Join(e.Missing, ", "))
}

// Is makes errors.Is(err, ErrNoLeader) true.
func (e *QuorumLostError) Is(target error) bool { return target == ErrNoLeader }

// quorum is what a replica knows of the quorum while it has no leader.
type quorum struct {
	mu    sync.Mutex
	since time.Time // when it was found lost; zero: it is not
	told  bool      // in the log
	// waiting ends, with the reason, when nobody should wait for a leader.
	waiting context.Context
	end     context.CancelCauseFunc
}

// note keeps what was found between two times: nil if there is a quorum.
func (q *quorum) note(lost *QuorumLostError, began, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if lost == nil {
		q.since = time.Time{}
		if q.waiting != nil && q.waiting.Err() != nil {
			q.waiting = nil
		}
		return
	}
	if q.since.IsZero() {
		q.since = began
	}
	if now.Sub(q.since) >= quorumHold {
		q.context()
		q.end(lost)
	}
}

// context returns the one that ends when the quorum is lost. q.mu is held.
func (q *quorum) context() context.Context {
	if q.waiting == nil {
		q.waiting, q.end = context.WithCancelCause(context.Background())
	}
	return q.waiting
}

// report says whether there is something for the log.
func (q *quorum) report(now time.Time) (lost, back bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.told && q.since.IsZero():
		q.told = false
		return false, true
	case !q.told && !q.since.IsZero() && now.Sub(q.since) >= quorumLogDelay:
		q.told = true
		return true, false
	}
	return false, false
}

// WhileQuorum returns a context that also ends, with a QuorumLostError as its cause,
// when no leader can be elected: whoever waits for one is told at once.
func (r *Replica) WhileQuorum(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	r.quorum.mu.Lock()
	lost := r.quorum.context()
	r.quorum.mu.Unlock()
	stop := context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })
	return ctx, func() { stop(); cancel(nil) }
}

// watchQuorum asks the other voters whether they are there while this replica has no
// leader.
func (r *Replica) watchQuorum(ctx context.Context) {
	ticker := time.NewTicker(quorumInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		lost := r.lookForQuorum(ctx)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		r.quorum.note(lost, began, now)
		if lost != nil && r.draining.Load() {
			continue // the others were stopped, too
		}
		switch lostNow, back := r.quorum.report(now); {
		case lostNow:
			r.logger.Error("the quorum is lost, no change is possible", "reason", lost)
		case back:
			r.logger.Info("there is a quorum again")
		}
	}
}

// lookForQuorum says why no leader can be elected, nil if one leads or can be.
func (r *Replica) lookForQuorum(ctx context.Context) *QuorumLostError {
	if r.leaderID() != "" {
		return nil
	}
	var voters []Member
	for _, member := range r.Members() {
		if member.Voter {
			voters = append(voters, member)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, quorumAskTimeout)
	defer cancel()
	lost := &QuorumLostError{Voters: len(voters)}
	for _, status := range r.describeThese(ctx, voters) {
		if status.BootID == "" {
			lost.Missing = append(lost.Missing, status.ReplicaID)
		}
	}
	lost.Answering = lost.Voters - len(lost.Missing)
	if lost.Voters == 0 || lost.Answering > lost.Voters/2 || r.leaderID() != "" {
		return nil
	}
	return lost
}
