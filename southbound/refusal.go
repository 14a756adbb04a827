package southbound

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// decisionTimeout bounds the wait for a leader's decision about a node that it
	// turned away before; a node gives up for good after 10 s (protocol A5).
	decisionTimeout = 5 * time.Second
	// maxTurnedAway bounds the memory of nodes that were refused after all.
	maxTurnedAway = 1000
)

// refuse turns a node away for good, so only if a linearizable view says so too:
// a secret may just have been added. Without a leader the node is answered and
// waits in quarantine (protocol A6).
func (st *stream) refuse(reason error) error {
	view, ok := st.leadersView()
	if !ok {
		return st.waitInQuarantine(reason)
	}
	if reason = st.judge(view); reason == nil {
		return st.serveNode()
	}
	return st.sayRefused(reason)
}

// leadersView returns a linearizable view, false if no leader answers in time.
func (st *stream) leadersView() (*fsm.View, bool) {
	if known, _ := st.service.proposer.LeaderKnown(); !known {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(st.ctx, answerTimeout)
	defer cancel()
	view, err := st.service.proposer.Read(ctx)
	return view, err == nil
}

// sayRefused answers a registration with failure.
func (st *stream) sayRefused(reason error) error {
	st.noteRefused(reason)
	st.service.forgetTurnedAway(st.registration.nodeID)
	st.outbox.offer(registerResponse(st.registration.requestID, false))
	st.flush()
	return refusal(reason)
}

func (st *stream) noteRefused(reason error) {
	st.log.Warn("registration refused", "reason", reason)
	st.service.stats.refusals.Add(1)
}

// refusal is what ends the stream of a node that was refused.
func refusal(reason error) error {
	for _, denied := range []error{errDenied, fsm.ErrNoSecret, fsm.ErrReplayed} {
		if errors.Is(reason, denied) {
			return fmt.Errorf("%w: %w", errDenied, reason)
		}
	}
	return fmt.Errorf("%w: %w", errBadRegistration, reason)
}

// waitInQuarantine keeps a node until a leader answers, and has it judged then.
// The end of the stream costs a node nothing now: if it is not refused it comes
// back and is registered.
func (st *stream) waitInQuarantine(reason error) error {
	defer st.enterQuarantine(reason)()
	retry := backoff{}
	for {
		if view, ok := st.leadersView(); ok {
			reason = st.judge(view)
			break
		}
		if !retry.wait(st.ctx) {
			return context.Cause(st.ctx)
		}
		if st.service.isDraining() {
			return st.drain()
		}
	}
	st.flush()
	if reason == nil {
		return errUndecided
	}
	st.noteRefused(reason)
	return refusal(reason)
}

// holdUndecided keeps a node in quarantine whose registration was proposed and
// is not decided yet.
func (st *stream) holdUndecided() error {
	defer st.enterQuarantine(errUndecided)()
	select {
	case <-st.committed:
		st.service.forgetTurnedAway(st.registration.nodeID)
		return errUndecided
	case reason := <-st.refused:
		st.noteRefused(reason)
		return refusal(reason)
	case <-st.service.draining:
		return st.drain()
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	}
}

// enterQuarantine answers a node as if it were registered; nothing that it says
// from then on counts.
func (st *stream) enterQuarantine(reason error) (leave func()) {
	st.log.Warn("no leader to decide about a registration, the node waits in quarantine", "reason", reason)
	st.mu.Lock()
	st.discard = true
	st.mu.Unlock()
	st.service.quarantine.enter()
	st.outbox.offer(registerResponse(st.registration.requestID, true))
	st.setAnswered()
	return st.service.quarantine.leave
}

// isTurnedAway reports whether a leader refused the node after it was answered:
// its next registration is decided by a leader first (protocol A5).
func (s *Service) isTurnedAway(nodeID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.turnedAway[nodeID]
	return known
}

func (s *Service) rememberTurnedAway(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.turnedAway) < maxTurnedAway {
		s.turnedAway[nodeID] = struct{}{}
	}
}

func (s *Service) forgetTurnedAway(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.turnedAway, nodeID)
}
