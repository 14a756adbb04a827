package southbound

import (
	"errors"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// sendInterval and receiveInterval bound the time in which nothing goes over a
	// stream that was answered, to the node and from it. A proxy that looks at HTTP
	// requests does not count the pings of HTTP/2, and many end a request, and with
	// it the node's links, after a minute without data in one direction.
	sendInterval    = 25 * time.Second
	receiveInterval = 40 * time.Second
)

// activity knows when something last went over a stream. stream.mu guards it.
type activity struct {
	timer          *time.Timer // nil until the node was answered, and behind the end
	sent, received time.Time
	// asked: the node owes an answer to a command that only makes it speak.
	asked bool
}

// noteSent and noteReceived keep the time of the last message.
func (st *stream) noteSent() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.activity.sent = time.Now()
}

func (st *stream) noteReceived() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.activity.received = time.Now()
}

// beginIdle watches a stream from the registration's answer on.
func (st *stream) beginIdle() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.closed {
		st.activity.timer = time.AfterFunc(sendInterval, st.endIdle)
	}
}

// endIdle sends something if nothing went over the stream for a while: to the node
// an empty message, which nodes ignore, and for the other direction an empty
// command, which they acknowledge. One of these is unanswered at most, and none is
// sent before the first command was answered (protocol C3).
func (st *stream) endIdle() {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return
	}
	now := time.Now()
	ask := !st.activity.asked && st.firstAnswered && !st.ending && now.Sub(st.activity.received) >= receiveInterval
	st.activity.asked = st.activity.asked || ask
	wait := sendInterval - now.Sub(st.activity.sent)
	if wait <= 0 {
		// If the queue is full the node does not read, or is about to be sent more.
		st.outbox.offer(&controllerpb.ControlMessage{})
		wait = sendInterval
	}
	if rest := receiveInterval - now.Sub(st.activity.received); !st.activity.asked && rest > 0 {
		wait = min(wait, rest)
	}
	st.activity.timer.Reset(wait)
	st.mu.Unlock()
	if ask {
		st.askToSpeak()
	}
}

func (st *stream) askToSpeak() {
	answered := func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.activity.asked = false
	}
	call := Call{Command: &controllerpb.ConfigurationCommand{}}
	err := st.request(call.message(), request{timeout: DefaultCallTimeout, late: answered, done: func(answer Answer) {
		if !errors.Is(answer.Err, ErrTimeout) {
			answered()
		}
	}})
	if err != nil {
		answered()
	}
}
