package southbound

import (
	"context"
	"sync"
)

const (
	// maxQuarantined bounds the streams that wait for a leader to confirm their
	// refusal (protocol A6).
	maxQuarantined = 100
	// maxUnregistered bounds the streams that have their headers and have not been
	// answered.
	maxUnregistered = 1000
)

// room bounds streams that are in one state. When it is full new streams get no
// headers: a node waits there without harm (protocol A7).
type room struct {
	limit int

	mu    sync.Mutex
	count int
	freed chan struct{} // closed and replaced when a stream leaves
}

func newRoom(limit int) *room { return &room{limit: limit, freed: make(chan struct{})} }

func (r *room) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// enter never blocks: a stream that has its headers already must be answered,
// so the bound may be passed by those.
func (r *room) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
}

// tryEnter enters unless the room is full; then the channel is closed when a stream
// leaves.
func (r *room) tryEnter() (freed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count >= r.limit {
		return r.freed
	}
	r.count++
	return nil
}

func (r *room) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	close(r.freed)
	r.freed = make(chan struct{})
}

// waitRoom blocks a new stream while the room is full. A replica that drains lets
// all through: it must answer them before it goes.
func (r *room) waitRoom(ctx context.Context, draining <-chan struct{}) error {
	if err := r.waitEnter(ctx, draining, nil); err != nil {
		return err
	}
	r.leave()
	return nil
}

// waitEnter enters the room, as soon as there is a place or the replica drains. It
// calls full, if that is not nil, before it waits.
func (r *room) waitEnter(ctx context.Context, draining <-chan struct{}, full func()) error {
	for {
		freed := r.tryEnter()
		if freed == nil {
			return nil
		}
		if full != nil {
			full()
			full = nil
		}
		select {
		case <-freed:
		case <-draining:
			r.enter()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
