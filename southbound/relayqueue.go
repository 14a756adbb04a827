package southbound

import (
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// maxRelayEvents bounds the events that wait for a leader. Beyond it the
	// attachment is given up: the next one begins with all there is to know.
	maxRelayEvents = 200_000
	// maxRelayCalls and maxRelayBytes bound what waits to be sent to one replica, or
	// from it.
	maxRelayCalls = 100_000
	maxRelayBytes = 256 << 20
)

var errRelayOverrun = errors.New("too much waits to be sent")

// eventKey: of the events of one session of the same kind only the newest counts.
type eventKey struct {
	counter uint64
	kind    eventKind
}

type eventKind int

const (
	eventReady eventKind = iota
	eventEnded
	eventBurst
	eventDraining
)

// eventQueue holds the newest event of each key until it is sent, in the order in
// which the keys came.
type eventQueue struct {
	ready chan struct{} // holds a token while something may wait

	mu     sync.Mutex
	order  []eventKey
	events map[eventKey]*slimcppb.RelayEvent
}

func newEventQueue() *eventQueue {
	return &eventQueue{ready: make(chan struct{}, 1), events: map[eventKey]*slimcppb.RelayEvent{}}
}

// put never blocks. It returns errRelayOverrun when there is no room.
func (q *eventQueue) put(key eventKey, event *slimcppb.RelayEvent) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, over := q.events[eventKey{counter: key.counter, kind: eventEnded}]; over {
		return nil
	}
	if key.kind == eventEnded { // what was not said of it does not matter any more
		delete(q.events, eventKey{counter: key.counter, kind: eventReady})
		delete(q.events, eventKey{counter: key.counter, kind: eventBurst})
	}
	if _, known := q.events[key]; !known {
		if len(q.order) >= maxRelayEvents {
			return errRelayOverrun
		}
		q.order = append(q.order, key)
	}
	q.events[key] = event
	notify(q.ready)
	return nil
}

// take returns the next event, nil if none waits.
func (q *eventQueue) take() *slimcppb.RelayEvent {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) > 0 {
		key := q.order[0]
		q.order = q.order[1:]
		if event, ok := q.events[key]; ok {
			delete(q.events, key)
			return event
		}
	}
	return nil
}

// messageQueue is a queue that is bounded by count and bytes.
type messageQueue[M proto.Message] struct {
	ready    chan struct{} // holds a token while something may wait
	maxBytes int

	mu      sync.Mutex
	waiting []M
	bytes   int
}

func newMessageQueue[M proto.Message](maxBytes int) *messageQueue[M] {
	return &messageQueue[M]{ready: make(chan struct{}, 1), maxBytes: maxBytes}
}

// put never blocks; false: there is no room.
func (q *messageQueue[M]) put(message M) bool {
	size := proto.Size(message)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxRelayCalls || len(q.waiting) > 0 && q.bytes+size > q.maxBytes {
		return false
	}
	q.waiting = append(q.waiting, message)
	q.bytes += size
	notify(q.ready)
	return true
}

// take returns the oldest message; false: none waits.
func (q *messageQueue[M]) take() (message M, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return message, false
	}
	message = q.waiting[0]
	var none M
	q.waiting[0] = none
	q.waiting = q.waiting[1:]
	q.bytes -= proto.Size(message)
	return message, true
}
