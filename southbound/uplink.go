package southbound

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

var (
	errLeaderChanged = errors.New("another replica leads")
	errLeaderSilent  = errors.New("the leader says nothing")
	errNotAttached   = errors.New("the leader did not answer the attachment")
)

// uplink is one attachment of a follower to a leader, from the follower's side.
type uplink struct {
	relay    *Relay
	leaderID string
	term     uint64 // the leader's
	complete bool   // both streams are open; Relay.mu guards it

	ctx     context.Context // ends with the attachment; its cause says why
	cancel  context.CancelCauseFunc
	events  *eventQueue
	answers *messageQueue[*slimcppb.RelayAnswer]
	heard   atomic.Int64 // when the leader spoke last, in nanoseconds since started
	started time.Time

	eventStream grpc.BidiStreamingClient[slimcppb.RelayEvent, slimcppb.RelaySignal]
	callStream  grpc.BidiStreamingClient[slimcppb.RelayAnswer, slimcppb.RelayCall]
}

func newUplink(ctx context.Context, relay *Relay, leaderID string) *uplink {
	u := &uplink{
		relay: relay, leaderID: leaderID, events: newEventQueue(),
		answers: newMessageQueue[*slimcppb.RelayAnswer](maxRelayBytes), started: time.Now(),
	}
	u.ctx, u.cancel = context.WithCancelCause(ctx)
	return u
}

// open opens both streams and says which nodes this replica holds (protocol S2).
func (u *uplink) open(eventsConn, callsConn *grpc.ClientConn) (err error) {
	if u.eventStream, err = slimcppb.NewRelayServiceClient(eventsConn).Events(u.ctx); err != nil {
		return err
	}
	s := u.relay.service
	holdings, token := s.holdings(), uuid.NewString()
	err = u.eventStream.Send(&slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Attach{Attach: &slimcppb.Attach{
		BootId: s.proposer.BootID(), Counter: holdings.counter, Live: holdings.live, Token: token,
	}}})
	if err != nil {
		return err
	}
	signal, err := u.eventStream.Recv()
	if err != nil {
		return err
	}
	if signal.GetAttached() == nil {
		return errNotAttached
	}
	u.term = signal.GetAttached().GetTerm()
	// Lists are large and say the same over and over.
	u.callStream, err = slimcppb.NewRelayServiceClient(callsConn).Calls(u.ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return err
	}
	if err := u.callStream.Send(&slimcppb.RelayAnswer{Token: token}); err != nil {
		return err
	}
	for _, session := range holdings.callable {
		u.ready(session)
	}
	return nil
}

// serve returns when the attachment has ended, with the reason.
func (u *uplink) serve() error {
	var running sync.WaitGroup
	for _, part := range []func() error{u.sendEvents, u.receiveSignals, u.sendAnswers, u.receiveCalls, u.watch} {
		running.Go(func() { u.cancel(part()) })
	}
	running.Wait()
	return context.Cause(u.ctx)
}

func (u *uplink) sendEvents() error {
	ticker := time.NewTicker(relayTick)
	defer ticker.Stop()
	for {
		for event := u.events.take(); event != nil; event = u.events.take() {
			if err := u.eventStream.Send(event); err != nil {
				return err
			}
		}
		select {
		case <-u.events.ready:
		case <-ticker.C:
			if err := u.eventStream.Send(&slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Tick{Tick: &slimcppb.Tick{}}}); err != nil {
				return err
			}
		case <-u.ctx.Done():
			return context.Cause(u.ctx)
		}
	}
}

func (u *uplink) receiveSignals() error {
	for {
		signal, err := u.eventStream.Recv()
		if err != nil {
			return err
		}
		u.heard.Store(int64(time.Since(u.started)))
		if signal.GetDrainingNoted() != nil {
			u.relay.drainingNoted()
		}
	}
}

func (u *uplink) sendAnswers() error {
	for {
		for answer, ok := u.answers.take(); ok; answer, ok = u.answers.take() {
			if err := u.callStream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-u.answers.ready:
		case <-u.ctx.Done():
			return context.Cause(u.ctx)
		}
	}
}

func (u *uplink) receiveCalls() error {
	for {
		call, err := u.callStream.Recv()
		if err != nil {
			return err
		}
		u.handle(call)
	}
}

// watch ends the attachment when another replica leads, or the leader is silent:
// a connection that hangs tells nothing.
func (u *uplink) watch() error {
	for pause(u.ctx, leaderLook) {
		if _, leader, err := u.relay.peers.LeaderConn(false); err == nil && leader != u.leaderID {
			return errLeaderChanged
		}
		if time.Since(u.started)-time.Duration(u.heard.Load()) > relaySilence {
			return errLeaderSilent
		}
	}
	return context.Cause(u.ctx)
}

// handle does what the leader wants done. Calls of one session keep their order;
// none of them blocks. The fence is the service's (protocol C14).
func (u *uplink) handle(message *slimcppb.RelayCall) {
	s, id := u.relay.service, message.GetCallId()
	done := func(answer Answer) { u.answer(answer.relayed(id)) }
	late := func() { u.answer(&slimcppb.RelayAnswer{CallId: id, Late: true}) }
	var silent func()
	if message.GetTellSilence() {
		silent = func() { u.answer(&slimcppb.RelayAnswer{CallId: id, Silent: true}) }
	}
	call := callFromProto(message)
	switch message.GetKind() {
	case slimcppb.CallKind_CALL_KIND_FIRST:
		first, ok := s.FirstCommand(call.Session)
		if !ok {
			done(Answer{Err: ErrNoSession})
			return
		}
		first.OnAnswer(done, late, silent)
	case slimcppb.CallKind_CALL_KIND_END, slimcppb.CallKind_CALL_KIND_END_NOTIFY:
		notifyNode := message.GetKind() == slimcppb.CallKind_CALL_KIND_END_NOTIFY
		s.End(call.Term, call.Session, notifyNode, func(err error) { done(Answer{Err: err}) })
	default:
		call.Late, call.Silent = late, silent
		s.Call(call, done)
	}
}

// answer queues an answer. If there is no room for a list its caller learns so.
func (u *uplink) answer(message *slimcppb.RelayAnswer) {
	if u.answers.put(message) {
		return
	}
	short := &slimcppb.RelayAnswer{
		CallId: message.GetCallId(), Late: message.GetLate(), MessageId: message.GetMessageId(),
		Error: slimcppb.CallError_CALL_ERROR_ANSWER_TOO_LARGE,
	}
	if !u.answers.put(short) {
		u.cancel(errRelayOverrun)
	}
}

func (u *uplink) put(key eventKey, event *slimcppb.RelayEvent) {
	if err := u.events.put(key, event); err != nil {
		u.cancel(err)
	}
}

func (u *uplink) ready(h held) {
	u.put(eventKey{counter: h.session.Counter, kind: eventReady}, &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Ready{
		Ready: &slimcppb.SessionReady{NodeId: h.nodeID, Counter: h.session.Counter, First: h.first.relayedPush()},
	}})
}

func (u *uplink) ended(nodeID string, session fsm.SessionName) {
	u.put(eventKey{counter: session.Counter, kind: eventEnded}, &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Ended{
		Ended: &slimcppb.SessionEnded{NodeId: nodeID, Counter: session.Counter},
	}})
}

func (u *uplink) burst(nodeID string, session fsm.SessionName) {
	u.put(eventKey{counter: session.Counter, kind: eventBurst}, &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Burst{
		Burst: &slimcppb.SessionBurst{NodeId: nodeID, Counter: session.Counter},
	}})
}

func (u *uplink) drain() {
	u.put(eventKey{kind: eventDraining}, &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Draining{Draining: &slimcppb.Draining{}}})
}
