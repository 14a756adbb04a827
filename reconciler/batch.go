package reconciler

import (
	"slices"

	"github.com/slim-cp/slim-cp/fsm"
)

// batch is the routes that a driver compares. What is marked while a batch is
// worked off waits for the next one, so that a batch ends, and with it the index
// that it confirms advances, however busy the fleet is (protocol C8).
type batch struct {
	next    map[fsm.Name]struct{}
	nextAll bool

	open     bool
	index    uint64     // of the view when the batch was opened
	names    []fsm.Name // in order
	at       int        // names before it are done
	relevant bool       // there is something to confirm
	// blocked: a route waits for its connection, so the index is not confirmed.
	blocked bool
	// refused: the node refused a route of this batch.
	refused bool
}

// maxMarked bounds the names that wait to be compared one by one: a node may obey
// nothing while any number of them come and go. Beyond it all are compared.
const maxMarked = 10_000

func newBatch() batch { return batch{next: map[fsm.Name]struct{}{}} }

func (b *batch) mark(name fsm.Name) {
	switch {
	case b.nextAll:
	case len(b.next) == maxMarked:
		b.markAll()
	default:
		b.next[name] = struct{}{}
	}
}

func (b *batch) markAll() {
	b.nextAll = true
	clear(b.next)
}

func (b *batch) waiting() bool { return b.nextAll || len(b.next) > 0 }

// start opens a batch of what is marked; if everything is, all says which names
// differ and whether there is something to confirm.
func (b *batch) start(index uint64, all func() (names []fsm.Name, relevant bool)) {
	names, relevant := make([]fsm.Name, 0, len(b.next)), false
	if b.nextAll {
		names, relevant = all()
	} else {
		for name := range b.next {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, fsm.Name.Compare)
	*b = batch{next: map[fsm.Name]struct{}{}, open: true, index: index, names: names, relevant: relevant}
}

func (b *batch) rest() []fsm.Name { return b.names[b.at:] }

func (b *batch) close() { b.open, b.names = false, nil }
