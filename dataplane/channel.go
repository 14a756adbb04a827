package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// registrationTimeout bounds the wait for a RegisterNodeResponse.
const registrationTimeout = 10 * time.Second

// channel is a controller's side of one control plane: the stream that there is
// now, and the next one when it ends.
type channel struct {
	c      *controller
	server Server

	connected   chan struct{} // closed when the first stream stands
	failedStart chan struct{} // closed when that will never be
	done        chan struct{} // closed when run has returned
	// deregistered is closed by a DeregisterNodeResponse.
	deregistered chan struct{}
	began, left  sync.Once

	// The controller's mu guards the following.
	phase   Phase
	failure error
	session *session // nil: no stream
}

func newChannel(c *controller, server Server) *channel {
	return &channel{
		c:            c,
		server:       server,
		connected:    make(chan struct{}),
		failedStart:  make(chan struct{}),
		done:         make(chan struct{}),
		deregistered: make(chan struct{}),
		phase:        Connecting,
	}
}

// run connects, registers and obeys until the process ends or the node gives this
// control plane up.
func (ch *channel) run() {
	defer close(ch.done)
	defer ch.closeSession()
	for first := true; ch.c.ctx.Err() == nil; first = false {
		err := ch.live(first)
		switch {
		case ch.c.ctx.Err() != nil, ch.hasLeft():
			return
		case err == nil:
			continue // real nodes reconnect at once, without any back-off
		case !ch.c.node.options.ReconnectForever || errors.Is(err, ErrPanicked):
			ch.setPhase(Lost, err)
			ch.c.node.logger.Warn("gave up on the control plane", "error", err)
			if errors.Is(err, ErrStart) {
				close(ch.failedStart)
			}
			ch.linger()
			return
		}
		ch.closeSession()
		if pause, _ := (Backoff{}).wait(2); !sleep(ch.c.ctx, pause) {
			return
		}
	}
}

// live is one stream from dialling to its end. It returns nil if the stream
// ended after the registration, and otherwise what makes a real node give up.
func (ch *channel) live(first bool) error {
	ch.setPhase(Connecting, nil)
	ch.c.dropOutgoing()
	kind := ErrReconnect
	if first {
		kind = ErrStart
	}
	s, err := ch.connect()
	if err != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	ch.began.Do(func() { close(ch.connected) })
	ch.setPhase(Joining, nil)
	response, err := ch.register(s)
	if err != nil {
		return err
	}
	ch.c.node.logger.Debug("registered")
	ch.setPhase(Registered, nil)
	if err := ch.c.adopt(s, response); err != nil {
		return err
	}
	ch.c.replay(s)
	if err := ch.serve(s); err != nil {
		return err
	}
	ch.closeSession()
	return nil
}

// register sends the registration and what was queued, and waits for the answer.
// Everything else that comes before it is skipped, without an acknowledgement.
func (ch *channel) register(s *session) (*controllerpb.RegisterNodeResponse, error) {
	ch.openSession(s, ch.c.registration())
	timeout := time.NewTimer(registrationTimeout)
	defer timeout.Stop()
	for {
		select {
		case got := <-s.incoming:
			if got.err != nil {
				return nil, fmt.Errorf("%w: stream error waiting for registration response: %w", ErrHandshake, got.err)
			}
			response := got.message.GetRegisterNodeResponse()
			if response == nil {
				continue
			}
			if !response.GetSuccess() {
				return nil, ErrRejected
			}
			return response, nil
		case <-timeout.C:
			return nil, fmt.Errorf("%w: timed out", ErrHandshake)
		case <-ch.c.ctx.Done():
			return nil, ch.c.ctx.Err()
		}
	}
}

// serve handles one message at a time until the stream ends. While it handles
// one it neither reads nor notices the end of the stream.
func (ch *channel) serve(s *session) error {
	stall, ctx := &ch.c.node.stall, ch.c.ctx
	for {
		if stall.pass(ctx) != nil {
			return nil
		}
		select {
		case got := <-s.incoming:
			if got.err != nil {
				ch.c.node.logger.Debug("control stream ended", "error", got.err)
				return nil
			}
			if stall.pass(ctx) != nil {
				return nil
			}
			if err := ch.handle(s, got.message); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (ch *channel) handle(s *session, message *controllerpb.ControlMessage) error {
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommand:
		return ch.c.obey(s, message.GetMessageId(), payload.ConfigCommand)
	case *controllerpb.ControlMessage_ConnectionListRequest:
		ch.c.listConnections(s, message.GetMessageId())
	case *controllerpb.ControlMessage_RouteListRequest:
		ch.c.listRoutes(s, message.GetMessageId())
	case *controllerpb.ControlMessage_DeregisterNodeResponse:
		if payload.DeregisterNodeResponse.GetSuccess() && ch.c.isLeaving() {
			ch.left.Do(func() { close(ch.deregistered) })
		}
	}
	return nil // everything else means nothing to a node
}

// linger is what is left of a channel that was given up: it keeps an open stream,
// goes on announcing on it and answers nothing. A dead control task does not even
// see the stream's end.
func (ch *channel) linger() {
	s := ch.currentSession()
	for s != nil && !ch.panicked() {
		select {
		case got := <-s.incoming:
			if got.err != nil {
				ch.closeSession()
				s = nil
			}
		case <-ch.c.ctx.Done():
			return
		}
	}
	<-ch.c.ctx.Done()
}

func (ch *channel) panicked() bool {
	ch.c.mu.Lock()
	defer ch.c.mu.Unlock()
	return errors.Is(ch.failure, ErrPanicked)
}

func (ch *channel) setPhase(phase Phase, failure error) {
	ch.c.mu.Lock()
	defer ch.c.mu.Unlock()
	ch.phase, ch.failure = phase, failure
	close(ch.c.changed)
	ch.c.changed = make(chan struct{})
}

// sayGoodbye sends a deregistration.
func (ch *channel) sayGoodbye() error {
	ch.c.mu.Lock()
	s, phase := ch.session, ch.phase
	ch.c.mu.Unlock()
	if s == nil || phase != Registered {
		return ErrStreamEnded
	}
	s.send(&controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{DeregisterNodeRequest: &controllerpb.DeregisterNodeRequest{
			Node: &controllerpb.Node{Id: ch.c.node.options.ID},
		}},
	})
	return nil
}

// awaitGoodbye waits for the answer to a deregistration.
func (ch *channel) awaitGoodbye(ctx context.Context) error {
	select {
	case <-ch.deregistered:
		return nil
	case <-ch.done:
		select {
		case <-ch.deregistered: // the answer was the stream's last word
			return nil
		default:
			return ErrStreamEnded
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hasLeft reports that the stream of a leaving node ended: it does not reconnect.
func (ch *channel) hasLeft() bool {
	if !ch.c.isLeaving() {
		return false
	}
	ch.closeSession()
	return true
}
