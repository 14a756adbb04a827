package southbound

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

var (
	errRelayEnded    = errors.New("relay ended")
	errRelayReplaced = errors.New("the replica attached again")
	errRelaySilent   = errors.New("the replica says nothing")
	errNoAttach      = status.Error(codes.InvalidArgument, "the first event must be attach")
)

// attachment is a follower that is attached to this leader, from the leader's
// side.
type attachment struct {
	custody   *custody
	replicaID string

	ctx    context.Context // ends with the attachment; its cause says why
	cancel context.CancelCauseFunc
	heard  atomic.Int64 // when the replica spoke last, in nanoseconds since started
	// started is also the origin of heard.
	started time.Time
	// signals are what the replica is told beside ticks.
	signals chan *slimcppb.RelaySignal
	calls   *messageQueue[*slimcppb.RelayCall]

	// Set by attach, before the custody knows the attachment.
	token   string
	bootID  string
	counter uint64
	live    map[uint64]struct{} // at the moment of the attach

	mu       sync.Mutex
	closed   bool
	calling  bool // the stream of the calls is open
	draining bool
	sessions map[uint64]held // that can be called, by counter
	pending  map[uint64]*relayedCall
	// overdue are the calls of a session that may be answered late.
	overdue  map[uint64][]uint64
	lastCall uint64
}

// relayedCall waits for its answer.
type relayedCall struct {
	counter uint64       // of the session
	done    func(Answer) // nil: it was answered with a timeout
	late    func()       // nil, as silent: nobody cares
	silent  func()
}

func newAttachment(c *custody, replicaID string) *attachment {
	a := &attachment{
		custody: c, replicaID: replicaID, started: time.Now(),
		signals:  make(chan *slimcppb.RelaySignal, 4),
		calls:    newMessageQueue[*slimcppb.RelayCall](maxRelayBytes),
		sessions: map[uint64]held{}, pending: map[uint64]*relayedCall{}, overdue: map[uint64][]uint64{},
	}
	a.ctx, a.cancel = context.WithCancelCause(c.ctx)
	return a
}

// end ends the attachment; the first cause counts. Calls that were not answered
// fail.
func (a *attachment) end(cause error) {
	a.cancel(cause)
	a.mu.Lock()
	a.closed = true
	pending := a.pending
	a.pending = nil
	a.mu.Unlock()
	a.custody.detached(a)
	for _, call := range pending {
		if call.done != nil {
			go call.done(Answer{Err: ErrUnreachable})
		}
	}
}

// cause returns what ends the RPCs of an attachment that is over.
func (a *attachment) cause() error {
	cause := context.Cause(a.ctx)
	if _, ok := status.FromError(cause); ok {
		return cause
	}
	return status.Error(codes.Unavailable, cause.Error())
}

func (a *attachment) hear() { a.heard.Store(int64(time.Since(a.started))) }

func (a *attachment) heardAt() time.Time { return a.started.Add(time.Duration(a.heard.Load())) }

func (a *attachment) silentFor() time.Duration { return time.Since(a.heardAt()) }

// receiveEvents takes the replica's events until the stream ends.
func (a *attachment) receiveEvents(stream slimcppb.RelayService_EventsServer) error {
	event, err := stream.Recv()
	if err != nil {
		return err
	}
	if event.GetAttach() == nil {
		return errNoAttach
	}
	a.attach(event.GetAttach())
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		a.hear()
		a.take(event)
	}
}

// attach makes the attachment the replica's present one.
func (a *attachment) attach(message *slimcppb.Attach) {
	a.token, a.bootID, a.counter = message.GetToken(), message.GetBootId(), message.GetCounter()
	a.live = make(map[uint64]struct{}, len(message.GetLive()))
	for _, counter := range message.GetLive() {
		a.live[counter] = struct{}{}
	}
	a.hear()
	a.custody.attached(a)
	a.signals <- &slimcppb.RelaySignal{Signal: &slimcppb.RelaySignal_Attached{Attached: &slimcppb.Attached{Term: a.custody.term}}}
}

// denies reports whether the attach says that a session of the replica is over
// (protocol S2).
func (a *attachment) denies(session fsm.SessionName) bool {
	if session.BootID != a.bootID {
		return true
	}
	_, live := a.live[session.Counter]
	return session.Counter <= a.counter && !live
}

func (a *attachment) take(event *slimcppb.RelayEvent) {
	switch event := event.GetEvent().(type) {
	case *slimcppb.RelayEvent_Ready:
		a.sessionReady(event.Ready)
	case *slimcppb.RelayEvent_Ended:
		counter := event.Ended.GetCounter()
		a.mu.Lock()
		delete(a.sessions, counter)
		for _, id := range a.overdue[counter] {
			delete(a.pending, id)
		}
		delete(a.overdue, counter)
		a.mu.Unlock()
		a.custody.router.tell(func(h *Hooks) { h.ended(event.Ended.GetNodeId(), a.name(counter)) })
	case *slimcppb.RelayEvent_Burst:
		a.custody.router.tell(func(h *Hooks) { h.burst(event.Burst.GetNodeId(), a.name(event.Burst.GetCounter())) })
	case *slimcppb.RelayEvent_Draining:
		a.mu.Lock()
		a.draining = true
		a.mu.Unlock()
		a.custody.logger.Info("a replica is shutting down", "replica", a.replicaID)
		a.custody.draining(a)
		select {
		case a.signals <- &slimcppb.RelaySignal{Signal: &slimcppb.RelaySignal_DrainingNoted{DrainingNoted: &slimcppb.DrainingNoted{}}}:
		default: // it was told already
		}
	}
}

// name is that of one of the replica's sessions.
func (a *attachment) name(counter uint64) fsm.SessionName {
	return fsm.SessionName{ReplicaID: a.replicaID, BootID: a.bootID, Counter: counter}
}

func (a *attachment) sessionReady(message *slimcppb.SessionReady) {
	h := held{nodeID: message.GetNodeId(), session: a.name(message.GetCounter())}
	h.first = firstFromProto(message.GetFirst(), h.nodeID)
	a.mu.Lock()
	a.sessions[h.session.Counter] = h
	calling := a.calling
	a.mu.Unlock()
	if calling {
		a.custody.router.tell(func(hooks *Hooks) { hooks.ready(h.nodeID, h.session) })
	}
}

// beginCalls: from here on sessions can be called.
func (a *attachment) beginCalls() {
	a.mu.Lock()
	a.calling = true
	sessions := make([]held, 0, len(a.sessions))
	for _, h := range a.sessions {
		sessions = append(sessions, h)
	}
	a.mu.Unlock()
	for _, h := range sessions {
		a.custody.router.tell(func(hooks *Hooks) { hooks.ready(h.nodeID, h.session) })
	}
}

func (a *attachment) firstCommand(session fsm.SessionName) (First, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.sessions[session.Counter]
	if !ok || !a.calling || h.session != session {
		return First{}, false
	}
	first, ok := h.firstCommand()
	if !ok {
		return first, false
	}
	first.relayed = func(done func(Answer), late, silent func()) {
		a.call(&slimcppb.RelayCall{
			Kind: slimcppb.CallKind_CALL_KIND_FIRST, Term: a.custody.term, NodeId: h.nodeID, Session: session.Proto(),
			TellSilence: silent != nil,
		}, relayedCall{done: done, late: late, silent: silent})
	}
	return first, true
}

// call queues a request. Its done is called once, from another goroutine, late at
// most once behind an ErrTimeout.
func (a *attachment) call(message *slimcppb.RelayCall, call relayedCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		go call.done(Answer{Err: ErrUnreachable})
		return
	}
	a.lastCall++
	message.CallId = a.lastCall
	if !a.calls.put(message) {
		go call.done(Answer{Err: ErrQueueFull})
		return
	}
	call.counter = message.GetSession().GetCounter()
	a.pending[message.CallId] = &call
}

func (a *attachment) sendSignals(stream slimcppb.RelayService_EventsServer) error {
	ticker := time.NewTicker(relayTick)
	defer ticker.Stop()
	tick := &slimcppb.RelaySignal{Signal: &slimcppb.RelaySignal_Tick{Tick: &slimcppb.Tick{}}}
	attached := false
	for {
		var signal *slimcppb.RelaySignal
		select {
		case signal = <-a.signals:
			attached = true
		case <-ticker.C:
			if signal = tick; !attached {
				if time.Since(a.started) > attachTimeout {
					return errNoAttach
				}
				continue // the first signal is the answer to the attach
			}
		case <-a.ctx.Done():
			return a.cause()
		}
		if err := stream.Send(signal); err != nil {
			return err
		}
	}
}

func (a *attachment) sendCalls(stream slimcppb.RelayService_CallsServer) error {
	for {
		for call, ok := a.calls.take(); ok; call, ok = a.calls.take() {
			if err := stream.Send(call); err != nil {
				return err
			}
		}
		select {
		case <-a.calls.ready:
		case <-a.ctx.Done():
			return a.cause()
		}
	}
}

func (a *attachment) receiveAnswers(stream slimcppb.RelayService_CallsServer) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		a.hear()
		a.settle(message)
	}
}

// settle hands an answer to who waits for it.
func (a *attachment) settle(message *slimcppb.RelayAnswer) {
	id := message.GetCallId()
	a.mu.Lock()
	call, ok := a.pending[id]
	if !ok || message.GetSilent() {
		a.mu.Unlock()
		if ok && call.silent != nil {
			go call.silent()
		}
		return
	}
	if message.GetError() == slimcppb.CallError_CALL_ERROR_TIMEOUT && call.late != nil && call.done != nil {
		a.overdue[call.counter] = append(a.overdue[call.counter], id)
	} else {
		delete(a.pending, id)
	}
	done := call.done
	call.done = nil
	a.mu.Unlock()
	switch {
	case !message.GetLate():
		if done != nil {
			go done(answerFromProto(message))
		}
	case done != nil: // it overtook the timeout
		go done(Answer{Err: ErrTimeout, MessageID: message.GetMessageId()})
		fallthrough
	default:
		if call.late != nil {
			go call.late()
		}
	}
}
