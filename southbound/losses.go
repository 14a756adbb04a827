package southbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// proposeTimeout bounds one try of a proposal.
	proposeTimeout = 5 * time.Second
	firstRetry     = 50 * time.Millisecond
	longestRetry   = 2 * time.Second
	// lossWorkers bounds the SessionLost proposals in flight.
	lossWorkers = 16
)

// losses proposes SessionLost for streams that have ended, until each is
// committed (protocol S2).
type losses struct {
	service *Service

	mu      sync.Mutex
	queue   []fsm.SessionName
	workers int
	waiting map[fsm.SessionName]struct{} // queued, or being proposed
}

func newLosses(s *Service) *losses {
	return &losses{service: s, waiting: map[fsm.SessionName]struct{}{}}
}

// add never blocks. A stopping replica leaves its sessions to the leader
// (protocol A3).
func (l *losses) add(name fsm.SessionName) {
	if l.service.isDraining() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, name)
	l.waiting[name] = struct{}{}
	if l.workers < lossWorkers {
		l.workers++
		l.service.running.Go(l.work)
	}
}

func (l *losses) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// holds reports whether the end of a session is not committed yet.
func (l *losses) holds(name fsm.SessionName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waiting := l.waiting[name]
	return waiting
}

func (l *losses) next() (fsm.SessionName, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.workers--
		return fsm.SessionName{}, false
	}
	name := l.queue[0]
	l.queue = l.queue[1:]
	return name, true
}

func (l *losses) work() {
	for {
		name, ok := l.next()
		if !ok {
			return
		}
		l.propose(name)
		l.mu.Lock()
		delete(l.waiting, name)
		l.mu.Unlock()
	}
}

func (l *losses) propose(name fsm.SessionName) {
	ctx := l.service.background
	command := &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{
		Session: name.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_ENDED,
	}}}
	retry := backoff{}
	for {
		result, err := l.service.propose(ctx, command)
		if err == nil && !retriable(result.Err) {
			return
		}
		if !retry.wait(ctx) {
			return
		}
	}
}

// propose is one try of a proposal, decided under the present generation.
func (s *Service) propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	command.Generation = s.store.View().Generation()
	return s.proposer.Propose(ctx, command)
}

// retriable reports whether Apply refused a command for what will pass.
func retriable(err error) bool {
	return errors.Is(err, fsm.ErrStaleGeneration) || errors.Is(err, fsm.ErrNotInitialised)
}

// backoff waits longer each time, with jitter, so that streams that lost their
// leader together do not all try at once.
type backoff struct{ tries int }

// wait returns false if the context ended first.
func (b *backoff) wait(ctx context.Context) bool {
	delay := min(firstRetry<<min(b.tries, 10), longestRetry)
	b.tries++
	timer := time.NewTimer(delay/2 + rand.N(delay/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
