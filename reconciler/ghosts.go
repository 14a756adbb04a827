package reconciler

import (
	"sync"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// ghostPatience is how often at most the link of a pair is made anew only
	// because a route of a name that is gone cannot be deleted over it (protocol
	// N6).
	ghostPatience = 5 * time.Minute
	// ghostSettle is how long such a route is left alone at first. When a replica
	// fails, both ends of a link lose their streams, one a moment before the other:
	// the link is about to be dialled again, and the route ends with the connection.
	ghostSettle = 10 * time.Second
	// ghostPause is how often at most it is done for a name that has moved, whose
	// ghost misleads messages.
	ghostPause = time.Second
)

// ghostLog remembers when the link of a pair of groups was last made anew because
// of a ghost. A new link has another id, so the pair counts.
type ghostLog struct {
	mu    sync.Mutex
	pairs map[[2]string]ghostPair
}

type ghostPair struct {
	last time.Time // zero: never
	// since when a route over that connection of the link is known that cannot be
	// deleted.
	link     string
	revision uint64
	since    time.Time
}

func newGhostLog() *ghostLog { return &ghostLog{pairs: map[[2]string]ghostPair{}} }

// allow returns how long it is until the link may be made anew; 0 is now, and is
// noted.
func (g *ghostLog) allow(link *fsm.Link, moved bool) time.Duration {
	key := [2]string{min(link.SourceGroup, link.DestGroup), max(link.SourceGroup, link.DestGroup)}
	g.mu.Lock()
	defer g.mu.Unlock()
	pair, now := g.pairs[key], time.Now()
	wait := ghostPause - now.Sub(pair.last)
	if !moved {
		if pair.link != link.ID || pair.revision != link.SourceRevision || now.Sub(pair.since) > 2*ghostSettle {
			pair.link, pair.revision, pair.since = link.ID, link.SourceRevision, now
		}
		wait = max(ghostPatience-now.Sub(pair.last), ghostSettle-now.Sub(pair.since))
	}
	if wait <= 0 {
		pair.last = now
	}
	g.pairs[key] = pair
	return max(wait, 0)
}
