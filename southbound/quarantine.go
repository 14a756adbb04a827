package southbound

import (
	"context"
	"sync"
)

// maxQuarantined bounds the streams that wait for a leader to confirm their
// refusal (protocol A6).
const maxQuarantined = 100

// quarantine counts them. When it is full new streams get no headers: a node
// waits there without harm.
type quarantine struct {
	mu    sync.Mutex
	count int
	freed chan struct{} // closed and replaced when a stream leaves
}

func newQuarantine() *quarantine { return &quarantine{freed: make(chan struct{})} }

func (q *quarantine) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// enter never blocks: a stream that has its headers already must be answered,
// so the bound may be passed by those.
func (q *quarantine) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count++
}

func (q *quarantine) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count--
	close(q.freed)
	q.freed = make(chan struct{})
}

// waitRoom blocks a new stream while the quarantine is full. A replica that
// drains lets all through: it must answer them before it goes.
func (q *quarantine) waitRoom(ctx context.Context, draining <-chan struct{}) error {
	for {
		q.mu.Lock()
		full, freed := q.count >= maxQuarantined, q.freed
		q.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-freed:
		case <-draining:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
