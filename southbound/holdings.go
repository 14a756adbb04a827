package southbound

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
)

// holdings are the streams of this replica at one moment.
type holdings struct {
	// counter is that of the newest session name drawn.
	counter uint64
	// live are the counters of the sessions that have not ended: of open streams,
	// and of those whose last words are under way to the log.
	live []uint64
	// callable are the sessions that can be called.
	callable []held
}

// held is a session that can be called.
type held struct {
	nodeID  string
	session fsm.SessionName
	first   *First // nil: see First.Continued
}

func (h held) firstCommand() (First, bool) {
	if h.first == nil {
		return First{Continued: true}, false
	}
	return *h.first, true
}

func (s *Service) holdings() holdings {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := holdings{counter: s.counter.Load()}
	for name := range s.names {
		h.live = append(h.live, name.Counter)
	}
	for session, st := range s.sessions {
		h.callable = append(h.callable, st.held(session))
	}
	return h
}

// callable returns a session if it can be called.
func (s *Service) callable(session fsm.SessionName) (held, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.sessions[session]
	if !ok {
		return held{}, false
	}
	return st.held(session), true
}

// held describes the stream's session. Service.mu is held.
func (st *stream) held(session fsm.SessionName) held {
	h := held{nodeID: st.registration.nodeID, session: session}
	if st.firstOf == session {
		h.first = st.first
	}
	return h
}

// denies reports whether this replica drew the name of a session, holds no stream
// for it, and is not about to say so itself (protocol S4). s.mu is held.
func (s *Service) denies(session fsm.SessionName) bool {
	_, live := s.names[session]
	return session.ReplicaID == s.proposer.ReplicaID() && !live && !s.losses.holds(session) && !s.isDraining()
}

// deniesSession is denies for callers that do not hold the lock.
func (s *Service) deniesSession(session fsm.SessionName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.denies(session)
}

// parted ends the time between a stream's end and that of its proposals.
func (s *Service) parted(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, st.name)
}

// resume looks again whether live streams lack a session (protocol S5).
func (s *Service) resume() {
	for _, st := range s.streamsOf(fsm.Changes{All: true}) {
		if st.needsSession() {
			notify(st.sessionLost)
		}
	}
}

// answeredStreams are those whose end costs their node nothing but its links: one
// that has not been answered would be lost for good (protocol A1).
func (s *Service) answeredStreams() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var streams []*stream
	for st := range s.streams {
		select {
		case <-st.answered:
			streams = append(streams, st)
		default:
		}
	}
	return streams
}

// shed ends streams one after the other, spread over a time, until the context ends
// (protocol D4).
func shed(ctx context.Context, streams []*stream, spread time.Duration, cause error) {
	rand.Shuffle(len(streams), func(i, j int) { streams[i], streams[j] = streams[j], streams[i] })
	ticker := time.NewTicker(max(spread/time.Duration(len(streams)+1), time.Millisecond))
	defer ticker.Stop()
	for _, st := range streams {
		select {
		case <-ticker.C:
			st.end(cause)
		case <-ctx.Done():
			return
		}
	}
}
