package fsm

import (
	"slices"
	"strings"
	"time"
)

// doubleAfter is how long two different sessions of a node overlap before they are
// taken for two processes. A stream that broke without a word is noticed sooner, so
// a node that reconnects does not look like two.
const doubleAfter = 60 * time.Second

// Double returns, at a time on the state's clock, two sessions that look like two
// processes which give themselves one id: they have overlapped for over 60 s, and
// their details or the hosts that they come from differ. Neither is ended for it:
// which of the two is right, nobody here can know (protocol S4).
func (n *Node) Double(now time.Time) (older, newer Session, ok bool) {
	for i, newer := range n.Sessions {
		for _, older := range n.Sessions[:i] {
			began := newer.RegisteredAt
			if older.RegisteredAt.After(began) {
				began = older.RegisteredAt
			}
			if now.Sub(began) > doubleAfter && !older.sameProcess(newer) {
				return older, newer, true
			}
		}
	}
	return Session{}, Session{}, false
}

// sameProcess reports whether two sessions may be streams of one process. It has a
// port of its own for each of them.
func (s Session) sameProcess(other Session) bool {
	return slices.Equal(s.Details, other.Details) && host(s.PeerAddress) == host(other.PeerAddress)
}

func host(address string) string {
	if port := strings.LastIndexByte(address, ':'); port >= 0 {
		return address[:port]
	}
	return address
}
