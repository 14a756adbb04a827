package southbound

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// maxLate bounds the calls of one stream that timed out and may be answered
	// yet.
	maxLate = 16
	// auditTime bounds the time from a route list to the commit of what an audit
	// made of it.
	auditTime = 5 * time.Second
)

// answerKind tells the payloads that answer a request apart.
type answerKind int

const (
	noAnswer answerKind = iota
	commandAck
	connectionList
	routeList
)

// request says what is to become of the answer to a message. done, late, silent and
// brief are as in Call; late and silent may be nil.
type request struct {
	timeout time.Duration
	done    func(Answer)
	late    func()
	silent  func()
	brief   bool
}

// waiter gathers the answer to one request. stream.mu guards it.
type waiter struct {
	request
	kind    answerKind
	timer   *time.Timer
	answer  Answer
	entries int // of a list, also those that were left out
	bytes   int
	// silence runs from when the message is handed to the stream; quiet counts its
	// steps since the node said something about the request.
	silence *time.Timer
	quiet   int
}

// request sends a message and registers who waits for its answer. It never blocks.
func (st *stream) request(message *controllerpb.ControlMessage, request request) error {
	id := message.GetMessageId()
	w := &waiter{request: request, kind: kindOfAnswerTo(message), answer: Answer{MessageID: id}}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return ErrStreamEnded
	}
	if !st.outbox.offerNoted(message, func() { st.handedOver(id, w) }) {
		return ErrQueueFull
	}
	st.waiters[id] = w
	if w.kind == routeList {
		st.routeLists++
	}
	w.timer = time.AfterFunc(request.timeout, func() { st.expire(id, w) })
	st.service.stats.calls.Add(1)
	return nil
}

// expire ends a call that was not answered in time.
func (st *stream) expire(id string, w *waiter) {
	st.mu.Lock()
	if st.waiters[id] != w {
		st.mu.Unlock()
		return
	}
	st.forget(id, w)
	if w.late != nil {
		if len(st.lateIDs) == maxLate {
			delete(st.late, st.lateIDs[0])
			st.lateIDs = st.lateIDs[1:]
		}
		st.late[id] = w.late
		st.lateIDs = append(st.lateIDs, id)
	}
	st.mu.Unlock()
	st.service.stats.callsTimedOut.Add(1)
	w.done(Answer{Err: ErrTimeout, MessageID: id})
}

// deliver hands an answer, or a chunk of one, to who waits for it.
func (st *stream) deliver(message *controllerpb.ControlMessage) {
	kind, id := answerOf(message)
	st.mu.Lock()
	defer st.mu.Unlock()
	if id != "" && id == st.firstID {
		st.firstAnswered = true
	}
	w, waiting := st.waiters[id]
	if !waiting || w.kind != kind {
		st.deliverLate(id)
		return
	}
	if w.add(message) {
		st.complete(id, w)
	}
}

// deliverLate tells that a call was answered after its time. st.mu is held.
func (st *stream) deliverLate(id string) {
	late, ok := st.late[id]
	if !ok {
		st.service.stats.unmatchedAnswers.Add(1)
		return
	}
	// lateIDs keeps the id until it is the oldest: that only bounds the map.
	delete(st.late, id)
	go late()
}

// complete ends a call with what its waiter gathered. st.mu is held.
func (st *stream) complete(id string, w *waiter) {
	st.forget(id, w)
	w.timer.Stop()
	go w.done(w.answer)
}

// forget removes a call that has ended. st.mu is held.
func (st *stream) forget(id string, w *waiter) {
	delete(st.waiters, id)
	if w.silence != nil {
		w.silence.Stop()
	}
	if w.kind == routeList {
		st.routeLists--
		st.routesListed = time.Now()
	}
}

// audited reports whether the node's names are being compared with its list, or
// were a moment ago: the outcome may be under way to the log (protocol N8).
func (st *stream) audited() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.routeLists > 0 || !st.routesListed.IsZero() && time.Since(st.routesListed) < auditTime
}

// failCalls ends all calls of a stream that has ended, and refuses new ones.
func (st *stream) failCalls() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	if st.activity.timer != nil {
		st.activity.timer.Stop()
	}
	for id, w := range st.waiters {
		w.answer = Answer{Err: ErrStreamEnded, MessageID: id}
		st.complete(id, w)
	}
	st.late, st.lateIDs = nil, nil
}

// add takes one message and reports whether the answer is complete.
func (w *waiter) add(message *controllerpb.ControlMessage) bool {
	done := true
	w.quiet = 0
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommandAck:
		w.answer.Ack = payload.ConfigCommandAck
	case *controllerpb.ControlMessage_ConnectionListResponse:
		w.addConnections(payload.ConnectionListResponse.GetEntries())
		done = payload.ConnectionListResponse.GetDone()
	case *controllerpb.ControlMessage_RouteListResponse:
		w.addRoutes(payload.RouteListResponse.GetEntries())
		done = payload.RouteListResponse.GetDone()
	}
	w.bytes += proto.Size(message)
	if w.bytes > maxAnswerBytes || w.entries > maxAnswerEntries {
		w.answer = Answer{Err: ErrAnswerTooLarge, MessageID: w.answer.MessageID}
		return true
	}
	return done
}

func kindOfAnswerTo(request *controllerpb.ControlMessage) answerKind {
	switch request.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConnectionListRequest:
		return connectionList
	case *controllerpb.ControlMessage_RouteListRequest:
		return routeList
	}
	return commandAck
}

// answerOf returns what a message answers; noAnswer if it answers nothing.
func answerOf(message *controllerpb.ControlMessage) (answerKind, string) {
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommandAck:
		return commandAck, payload.ConfigCommandAck.GetOriginalMessageId()
	case *controllerpb.ControlMessage_ConnectionListResponse:
		return connectionList, payload.ConnectionListResponse.GetOriginalMessageId()
	case *controllerpb.ControlMessage_RouteListResponse:
		return routeList, payload.RouteListResponse.GetOriginalMessageId()
	}
	return noAnswer, ""
}

// future is an answer that several may wait for.
type future struct {
	mu       sync.Mutex
	answer   *Answer
	late     bool
	waiting  []func(Answer)
	lateness []func()
	silence  []func()
}

func (f *future) then(done func(Answer), late, silent func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer == nil {
		f.waiting = append(f.waiting, done)
		if silent != nil {
			f.silence = append(f.silence, silent)
		}
	} else {
		go done(*f.answer)
	}
	switch {
	case late == nil:
	case f.late:
		go late()
	default:
		f.lateness = append(f.lateness, late)
	}
}

func (f *future) complete(answer Answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = &answer
	for _, done := range f.waiting {
		go done(answer)
	}
	f.waiting, f.silence = nil, nil
}

func (f *future) silent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, silent := range f.silence {
		go silent()
	}
}

func (f *future) answeredLate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = true
	for _, late := range f.lateness {
		go late()
	}
	f.lateness = nil
}

// answered reports whether the call has ended, by an answer or otherwise.
func (f *future) answered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer != nil
}
