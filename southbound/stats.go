package southbound

import (
	"sync"
	"sync/atomic"
)

// Stats are counters since the start, and sizes as they are now.
type Stats struct {
	Streams     int // open, registered or not
	Sessions    int // that can be called
	Quarantined int
	// Unregistered have their headers and no answer yet.
	Unregistered int

	Registrations       uint64 // committed
	HeldBack            uint64 // streams whose headers waited for others to be answered
	Provisional         uint64 // answered before they were committed
	Refusals            uint64
	SessionsReplaced    uint64 // registered again for a stream that lived on
	Announcements       uint64 // names proposed, withdrawals included
	Claims              uint64 // proposed
	EarlyWithdrawals    uint64 // dropped: read before the node's first answer
	Slowed              uint64 // times a node that flaps had to wait
	Backpressure        uint64 // times a reader waited for its names to be proposed
	Calls               uint64 // sent
	CallsFailed         uint64 // not sent
	CallsTimedOut       uint64
	UnmatchedAnswers    uint64
	IgnoredMessages     uint64
	Malformed           map[string]uint64 // entries and messages skipped, by kind
	LostSessionsWaiting int               // not committed yet
}

type stats struct {
	registrations, provisional, refusals, replaced      atomic.Uint64
	announcements, claims, earlyWithdrawals             atomic.Uint64
	backpressure, slowed                                atomic.Uint64
	calls, callsFailed, callsTimedOut, unmatchedAnswers atomic.Uint64
	ignored, heldBack                                   atomic.Uint64
	mu                                                  sync.Mutex
	malformed                                           map[string]uint64
}

func (c *stats) countMalformed(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.malformed == nil {
		c.malformed = map[string]uint64{}
	}
	c.malformed[kind]++
}

// Stats returns the counters.
func (s *Service) Stats() Stats {
	c := &s.stats
	snapshot := Stats{
		Quarantined:         s.quarantine.size(),
		Unregistered:        s.unregistered.size(),
		HeldBack:            c.heldBack.Load(),
		Registrations:       c.registrations.Load(),
		Provisional:         c.provisional.Load(),
		Refusals:            c.refusals.Load(),
		SessionsReplaced:    c.replaced.Load(),
		Announcements:       c.announcements.Load(),
		Claims:              c.claims.Load(),
		EarlyWithdrawals:    c.earlyWithdrawals.Load(),
		Slowed:              c.slowed.Load(),
		Backpressure:        c.backpressure.Load(),
		Calls:               c.calls.Load(),
		CallsFailed:         c.callsFailed.Load(),
		CallsTimedOut:       c.callsTimedOut.Load(),
		UnmatchedAnswers:    c.unmatchedAnswers.Load(),
		IgnoredMessages:     c.ignored.Load(),
		Malformed:           map[string]uint64{},
		LostSessionsWaiting: s.losses.size(),
	}
	c.mu.Lock()
	for kind, count := range c.malformed {
		snapshot.Malformed[kind] = count
	}
	c.mu.Unlock()
	s.mu.Lock()
	snapshot.Streams, snapshot.Sessions = len(s.streams), len(s.sessions)
	s.mu.Unlock()
	return snapshot
}
