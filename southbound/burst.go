package southbound

import (
	"sync"
	"time"
)

const (
	// burstMessages are more than a node queues for us: it drops the oldest
	// (protocol N8).
	burstMessages = 500
	// burstQuiet ends a burst.
	burstQuiet = time.Second
)

// burst notices when a node has said very much without a pause. One goroutine,
// the reader, calls begin and end around each message.
type burst struct {
	over func() // called from another goroutine when a burst has ended

	mu    sync.Mutex
	count int
	last  time.Time   // when the last message was dealt with
	quiet *time.Timer // runs between the messages of a burst
}

func newBurst(over func()) *burst { return &burst{over: over} }

// begin counts a message that was read. The time for which the reader was held
// up is no pause of the node's.
func (b *burst) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.quiet != nil {
		b.quiet.Stop()
	}
	if time.Since(b.last) >= burstQuiet {
		b.count = 0
	}
	b.count++
}

// end begins the wait for the next message.
func (b *burst) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = time.Now()
	if b.count <= burstMessages {
		return
	}
	if b.quiet == nil {
		b.quiet = time.AfterFunc(burstQuiet, b.over)
	} else {
		b.quiet.Reset(burstQuiet)
	}
}

// tellBurst has the node's lists looked at, if it is still there.
func (st *stream) tellBurst() {
	s := st.service
	s.mu.Lock()
	session := st.name
	_, callable := s.sessions[session]
	s.mu.Unlock()
	if callable {
		st.service.sessionBurst(st.registration.nodeID, session)
	}
}
