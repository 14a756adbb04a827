package southbound

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/slim-cp/slim-cp/budget"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// firstMessageTimeout is long: a node may look for its credentials after it
	// opened the stream (protocol A6).
	firstMessageTimeout = 60 * time.Second
	// answerTimeout bounds the wait for a registration to be committed; a node
	// gives up for good after 10 s (protocol A5).
	answerTimeout = 2 * time.Second
	// partingTimeout bounds what is still said on a stream that is being ended
	// (protocol D5).
	partingTimeout = 5 * time.Second
	// drainSpread is the time over which a stopping replica ends its streams.
	drainSpread = time.Second
)

// rpcStream is the server's side of a control channel.
type rpcStream = grpc.BidiStreamingServer[controllerpb.ControlMessage, controllerpb.ControlMessage]

// stream is one node's control channel. Its RPC handler waits, a reader and a
// writer run beside it, and once the node has asked to be registered so does
// propose, which owns everything that goes into the log.
type stream struct {
	service *Service
	rpc     rpcStream
	peer    net.Addr
	log     hclog.Logger
	outbox  *outbox
	pending *pending

	ctx     context.Context // ends with the stream; its cause says why
	cancel  context.CancelCauseFunc
	gone    chan struct{}                     // closed when the stream is out of the tables
	unread  chan struct{}                     // closed when the reader has ended
	opening chan *controllerpb.ControlMessage // holds the first message

	// registration is set before the stream is in Service.sessions.
	registration *registration
	// answered is closed when the node may be read on.
	answered chan struct{}
	// leaveUnregistered is set before the stream is answered.
	leaveUnregistered func()
	committed         chan struct{} // closed when the session is in the state
	refused           chan error    // holds why the registration was refused by Apply

	burst *burst
	// handling: what the node said is being handled; nothing is read meanwhile.
	handling atomic.Bool

	deregisterOnce sync.Once
	malformedOnce  sync.Once

	// Guarded by Service.mu.
	name    fsm.SessionName
	first   *First
	firstOf fsm.SessionName // the session that first is of

	mu sync.Mutex // taken after Service.mu
	// closed: the stream takes no more calls.
	closed        bool
	ending        bool          // on purpose: no new session for it
	farewell      chan struct{} // of a node that said goodbye: closed when it was answered
	discard       bool          // quarantined: nothing that it says counts
	registered    bool          // the session was in the state
	provisional   bool
	everCommitted bool
	firstID       string
	firstAnswered bool
	listed        map[string]struct{} // links whose early claims count (protocol L2)
	waiters       map[string]*waiter
	late          map[string]func()
	lateIDs       []string
	routeLists    int       // requests that are not answered yet
	routesListed  time.Time // when the last one was
	// sessionLost holds a token when the state no longer has the session.
	sessionLost chan struct{}
	activity    activity
}

// OpenControlChannel serves one node.
func (s *Service) OpenControlChannel(rpc rpcStream) error {
	st := s.open(rpc)
	err := st.serve()
	s.close(st, err)
	return statusOf(err)
}

func (s *Service) open(rpc rpcStream) *stream {
	st := s.newStream(rpc.Context())
	st.rpc = rpc
	if p, ok := peer.FromContext(rpc.Context()); ok {
		st.peer = budget.RemoteAddr(p.Addr)
		st.log = s.logger.With("remote", p.Addr.String())
	}
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	return st
}

func (s *Service) newStream(ctx context.Context) *stream {
	st := &stream{
		service:     s,
		log:         s.logger,
		outbox:      newOutbox(),
		pending:     newPending(s.maxPending),
		gone:        make(chan struct{}),
		unread:      make(chan struct{}),
		opening:     make(chan *controllerpb.ControlMessage, 1),
		answered:    make(chan struct{}),
		committed:   make(chan struct{}),
		refused:     make(chan error, 1),
		listed:      map[string]struct{}{},
		waiters:     map[string]*waiter{},
		late:        map[string]func(){},
		sessionLost: make(chan struct{}, 1),
	}
	st.burst = newBurst(st.tellBurst)
	st.ctx, st.cancel = context.WithCancelCause(ctx)
	return st
}

// close takes a stream out of the tables; nobody can call it afterwards.
func (s *Service) close(st *stream, err error) {
	st.cancel(err)
	s.mu.Lock()
	session := st.name
	_, callable := s.sessions[session]
	delete(s.sessions, session)
	delete(s.streams, st)
	if len(s.streams) == 0 {
		close(s.idle)
		s.idle = make(chan struct{})
	}
	s.mu.Unlock()
	st.failCalls()
	close(st.gone)
	if callable {
		st.log.Info("stream of a node ended", "reason", err)
		s.sessionEnded(st.registration.nodeID, session)
	}
}

// end makes the stream end; the first cause given counts.
func (st *stream) end(cause error) { st.cancel(cause) }

// serve runs in the RPC's handler and returns why the stream ends. When the
// handler returns, gRPC interrupts the reader and the writer.
func (st *stream) serve() error {
	defer budget.Hold(st.rpc.Context())()
	if err := st.service.quarantine.waitRoom(st.ctx, st.service.draining); err != nil {
		return err
	}
	if err := st.service.unregistered.waitEnter(st.ctx, st.service.draining, st.service.heldBack); err != nil {
		return err
	}
	st.leaveUnregistered = sync.OnceFunc(st.service.unregistered.leave)
	defer st.leaveUnregistered()
	// The node says nothing before it has the headers, and gRPC would send them
	// with our first message only.
	if err := st.rpc.SendHeader(nil); err != nil {
		return err
	}
	st.outbox.offer(&controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload:   &controllerpb.ControlMessage_Ack{Ack: &controllerpb.Ack{Success: true}},
	})
	st.service.running.Go(st.read)
	st.service.running.Go(func() {
		if err := st.outbox.write(st.ctx.Done(), st.send); err != nil {
			st.end(err)
		}
	})
	request, err := st.awaitFirst()
	if err != nil {
		return err
	}
	view := st.service.store.View()
	registration, fault := parseRegistration(view, request, st.peer)
	registration.fault = fault
	st.registration = registration
	// Escaped: an id with a line break must not make several lines.
	st.log = st.log.With("node", strings.Trim(strconv.Quote(registration.nodeID), `"`))
	if fault != nil {
		st.service.stats.countMalformed("registration")
	}
	if reason := st.judge(view); reason != nil {
		return st.refuse(reason)
	}
	return st.serveNode()
}

func (st *stream) send(message *controllerpb.ControlMessage) error {
	err := st.rpc.Send(message)
	st.noteSent()
	return err
}

// read receives until the stream ends. Between the registration request and its
// answer nothing is read.
func (st *stream) read() {
	defer close(st.unread)
	request, err := st.rpc.Recv()
	if err != nil {
		st.receiveFailed(err)
		st.end(err)
		return
	}
	st.opening <- request
	select {
	case <-st.answered:
	case <-st.ctx.Done():
		return
	}
	for {
		message, err := st.rpc.Recv()
		if err != nil {
			st.receiveFailed(err)
			st.end(err)
			return
		}
		st.noteReceived()
		if !st.isDiscarded() {
			st.handling.Store(true)
			st.handle(message)
			st.handling.Store(false)
		}
	}
}

func (st *stream) awaitFirst() (*controllerpb.ControlMessage, error) {
	timer := time.NewTimer(firstMessageTimeout)
	defer timer.Stop()
	select {
	case request := <-st.opening:
		return request, nil
	case <-timer.C:
		st.log.Warn("no registration in time", "waited", firstMessageTimeout)
		return nil, errNotRegistered
	case <-st.ctx.Done():
		return nil, context.Cause(st.ctx)
	}
}

// serveNode registers the node, answers it and stays until the stream ends.
func (st *stream) serveNode() error {
	s := st.service
	turnedAway := s.isTurnedAway(st.registration.nodeID)
	if turnedAway {
		if _, ok := st.leadersView(); !ok {
			return st.waitInQuarantine(errUndecided)
		}
	}
	s.mu.Lock()
	st.name = s.drawName()
	s.names[st.name] = st
	s.mu.Unlock()
	for _, reason := range st.registration.skipped {
		st.malformed("registration", reason)
	}
	for _, reason := range st.registration.undialable {
		st.log.Warn("no other node will dial this one", "reason", reason)
	}
	s.running.Go(st.propose)
	if err := st.awaitCommitted(turnedAway); err != nil {
		return err
	}
	if err := st.answer(); err != nil {
		return err
	}
	return st.stay()
}

// awaitCommitted returns nil when the node is to be answered: once its session
// is in the state, or provisionally unless it was turned away (protocol A5).
func (st *stream) awaitCommitted(turnedAway bool) error {
	patience := answerTimeout
	if turnedAway {
		patience = decisionTimeout
	} else if known, _ := st.service.proposer.LeaderKnown(); !known {
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	undecided := func() error {
		if turnedAway {
			return st.holdUndecided()
		}
		return nil
	}
	select {
	case <-st.committed:
		st.service.forgetTurnedAway(st.registration.nodeID)
		st.claimRest()
		return nil
	case reason := <-st.refused:
		return st.sayRefused(reason)
	case <-timer.C:
		return undecided()
	case <-st.service.draining:
		return undecided()
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	}
}

// answer sends the registration's response, which is always empty, and right
// behind it the first command (protocol A4, C3). Only then can the session be
// called.
func (st *stream) answer() error {
	s := st.service
	first := buildFirst(s.store.View(), st.registration.nodeID)
	call := Call{Command: first.Command, ListConnections: first.Command == nil}
	message := call.message()
	first.MessageID = message.GetMessageId()

	s.mu.Lock()
	st.mu.Lock()
	select {
	case <-st.committed:
	default:
		st.provisional = true
		s.stats.provisional.Add(1)
	}
	st.firstID = first.MessageID
	for id := range st.registration.listed {
		st.listed[id] = struct{}{}
	}
	for _, link := range first.Links {
		st.listed[link.ID] = struct{}{}
	}
	provisional := st.provisional
	st.mu.Unlock()
	st.outbox.offer(registerResponse(st.registration.requestID, true))
	err := st.request(message, request{
		timeout: DefaultCallTimeout, done: first.answer.complete, late: first.answer.answeredLate, silent: first.answer.silent,
	})
	session := st.name
	st.first, st.firstOf = first, session
	if err == nil {
		s.sessions[session] = st
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	st.log.Info("node registered", "session", session.Counter, "provisional", provisional,
		"links", len(first.Links), "routes", len(first.Command.GetRoutesToSet()))
	s.sessionReady(st.registration.nodeID, session)
	budget.Registered(st.rpc.Context())
	st.setAnswered()
	st.beginIdle()
	return nil
}

// setAnswered: the node has its answer, and may be read on.
func (st *stream) setAnswered() {
	st.leaveUnregistered()
	close(st.answered)
}

// stay waits for the end of a stream that was answered.
func (st *stream) stay() error {
	select {
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	case reason := <-st.refused:
		st.service.rememberTurnedAway(st.registration.nodeID)
		st.service.stats.refusals.Add(1)
		st.log.Warn("registration was refused after it was answered", "reason", reason)
		return fmt.Errorf("%w: %w", errNotConfirmed, reason)
	case <-st.service.draining:
		return st.drain()
	}
}

// drain ends the stream at some moment of the next second.
func (st *stream) drain() error {
	timer := time.NewTimer(rand.N(drainSpread))
	defer timer.Stop()
	select {
	case <-timer.C:
		return errDraining
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	}
}

// beginFarewell: the node said goodbye, and answered is closed when it has its
// answer.
func (st *stream) beginFarewell(answered chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ending, st.farewell = true, answered
}

// deregister ends a node that says goodbye: the state first, then the answer,
// then the stream (protocol D5). It closes answered at its end.
func (st *stream) deregister(requestID string, answered chan<- struct{}) {
	defer close(answered)
	success, ok := st.proposeDeregister()
	if !ok {
		return
	}
	st.outbox.offer(&controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload: &controllerpb.ControlMessage_DeregisterNodeResponse{DeregisterNodeResponse: &controllerpb.DeregisterNodeResponse{
			OriginalMessageId: requestID, Success: success,
		}},
	})
	st.flush()
	st.end(errDeregistered)
}

// evict ends the stream for the reconciler and returns when it is gone. The leader
// may hear that a node said goodbye before this replica has answered it: the
// answer is not cut off, and nothing else is said then.
func (st *stream) evict(notifyNode bool) {
	switch farewell := st.setEnding(); {
	case farewell != nil:
		st.awaitFarewell(farewell)
	case notifyNode:
		call := Call{Command: &controllerpb.ConfigurationCommand{Reconcile: true}}
		answered := make(chan struct{})
		err := st.request(call.message(), request{timeout: partingTimeout, done: func(Answer) { close(answered) }})
		if err == nil {
			<-answered
		}
	}
	st.end(errEvicted)
	<-st.gone
}

// awaitFarewell waits for the answer to a node that said goodbye, as long as for
// whatever else is said on a stream that is being ended.
func (st *stream) awaitFarewell(answered <-chan struct{}) {
	timer := time.NewTimer(partingTimeout)
	defer timer.Stop()
	select {
	case <-answered:
	case <-st.ctx.Done():
	case <-timer.C:
	}
}

// flush waits, for a bounded time, until what was offered is on its way.
func (st *stream) flush() {
	ctx, cancel := context.WithTimeout(st.ctx, partingTimeout)
	defer cancel()
	if err := st.outbox.flush(ctx); err != nil && !errors.Is(err, context.Canceled) {
		st.log.Debug("node does not read its stream", "error", err)
	}
}

func registerResponse(requestID string, success bool) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload: &controllerpb.ControlMessage_RegisterNodeResponse{RegisterNodeResponse: &controllerpb.RegisterNodeResponse{
			OriginalMessageId: requestID, Success: success,
		}},
	}
}

// setEnding: the stream is being ended on purpose, so it gets no new session. It
// returns the farewell that is under way, nil if none is.
func (st *stream) setEnding() (farewell <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ending = true
	return st.farewell
}

func (st *stream) isDiscarded() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.discard
}

// hearing says how to take what the node says now: early, since it has yet to
// answer our first message, or not at all, since the stream is being ended.
func (st *stream) hearing() (early, ending bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.firstAnswered, st.ending
}

// isUnregistered reports whether the state does not have the session of a stream
// that goes on.
func (st *stream) isUnregistered() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.registered && !st.ending && !st.closed
}

func (st *stream) isListed(linkID string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	_, ok := st.listed[linkID]
	return ok
}

// drawName names the next session (protocol S1). s.mu is held, so that an attach
// does not take a name in between for one that has ended.
func (s *Service) drawName() fsm.SessionName {
	return fsm.SessionName{
		ReplicaID: s.proposer.ReplicaID(),
		BootID:    s.proposer.BootID(),
		Counter:   s.counter.Add(1),
	}
}
