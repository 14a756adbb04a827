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
	// ghostPause is the same for a name that has moved, whose ghost misleads
	// messages.
	ghostPause = time.Second
)

// ghostLog remembers when the link of a pair of groups was last made anew because
// of a ghost. A new link has another id, so the pair counts.
type ghostLog struct {
	mu   sync.Mutex
	last map[[2]string]time.Time
}

func newGhostLog() *ghostLog { return &ghostLog{last: map[[2]string]time.Time{}} }

// allow returns how long it is until the link may be made anew; 0 is now, and is
// noted.
func (g *ghostLog) allow(link *fsm.Link, moved bool) time.Duration {
	pair := [2]string{min(link.SourceGroup, link.DestGroup), max(link.SourceGroup, link.DestGroup)}
	patience := ghostPatience
	if moved {
		patience = ghostPause
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if last, ok := g.last[pair]; ok {
		if wait := patience - time.Since(last); wait > 0 {
			return wait
		}
	}
	g.last[pair] = time.Now()
	return 0
}
