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

// waiter gathers the answer to one request. stream.mu guards it.
type waiter struct {
	kind   answerKind
	done   func(Answer)
	late   func()
	timer  *time.Timer
	answer Answer
	bytes  int
}

// request sends a message and registers who waits for its answer. It never
// blocks. done and late are as in Service.Call.
func (st *stream) request(message *controllerpb.ControlMessage, timeout time.Duration, done func(Answer), late func()) error {
	id := message.GetMessageId()
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return ErrStreamEnded
	}
	if !st.outbox.offer(message) {
		return ErrQueueFull
	}
	w := &waiter{kind: kindOfAnswerTo(message), done: done, late: late, answer: Answer{MessageID: id}}
	st.waiters[id] = w
	if w.kind == routeList {
		st.routeLists++
	}
	w.timer = time.AfterFunc(timeout, func() { st.expire(id, w) })
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
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommandAck:
		w.answer.Ack = payload.ConfigCommandAck
	case *controllerpb.ControlMessage_ConnectionListResponse:
		w.answer.Connections = append(w.answer.Connections, payload.ConnectionListResponse.GetEntries()...)
		done = payload.ConnectionListResponse.GetDone()
	case *controllerpb.ControlMessage_RouteListResponse:
		w.answer.Routes = append(w.answer.Routes, payload.RouteListResponse.GetEntries()...)
		done = payload.RouteListResponse.GetDone()
	}
	w.bytes += proto.Size(message)
	if w.bytes > maxAnswerBytes || len(w.answer.Connections)+len(w.answer.Routes) > maxAnswerEntries {
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
}

func (f *future) then(done func(Answer), late func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer == nil {
		f.waiting = append(f.waiting, done)
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
	f.waiting = nil
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
