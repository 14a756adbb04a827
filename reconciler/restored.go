package reconciler

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// readLimit bounds how long deletions wait for the lists of all nodes after a
	// restore: one of them may be wedged.
	readLimit = time.Minute
	// readInterval is the wait before it is looked again whether all were read.
	readInterval = time.Second
	// firstGeneration is that of a state that was never restored.
	firstGeneration = 1
)

// generations remembers of which state the nodes' lists were read, over the
// leaderships of this process.
type generations struct {
	mu   sync.Mutex
	read uint64
}

// restored reports whether a state was restored and its nodes' lists have not been
// read by this process since.
func (g *generations) restored(view *fsm.View) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return view.Generation() > max(g.read, firstGeneration)
}

func (g *generations) note(generation uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read = max(g.read, generation)
}

// deletionHold keeps routes from being deleted after a restore. The state has the
// names of the backup; those that are newer are in the lists of the nodes that
// announce them, and until these were read their routes look superfluous.
type deletionHold struct {
	from, until time.Time // zero: nothing was restored
	over        atomic.Bool
	// unread counts the drivers that have not read their node's lists yet.
	unread atomic.Int64
}

func (h *deletionHold) begin(hold time.Duration) {
	h.from = time.Now()
	h.until = h.from.Add(hold)
}

// remaining is how long it is until routes may be deleted, or until that is to be
// asked again; 0 is now.
func (h *deletionHold) remaining() time.Duration {
	switch {
	case h.over.Load():
		return 0
	case time.Now().Before(h.until):
		return time.Until(h.until)
	case h.unread.Load() > 0 && time.Since(h.from) < readLimit:
		return readInterval
	}
	h.over.Store(true)
	return 0
}

// deletionsWait returns how long the driver's node keeps routes that seem to be
// superfluous.
func (l *leadership) deletionsWait(view *fsm.View) time.Duration {
	if l.deletions.until.IsZero() {
		return 0
	}
	wait := l.deletions.remaining()
	if wait == 0 {
		l.generations.note(view.Generation())
	}
	return wait
}
