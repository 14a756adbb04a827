package cluster

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// Bounds of what is in flight on one replica (protocol X1).
const (
	maxProposals     = 1024
	maxProposalBytes = 8 << 20
)

// admission bounds the number and the bytes of proposals in flight. A proposal
// is in flight until its outcome is known, also when its caller has given up:
// else a hanging disk would let them pile up.
type admission struct {
	mu        sync.Mutex
	proposals int
	bytes     int
	waiting   list.List // of *ticket, first come first served
	closed    error
}

// ticket is a caller that waits.
type ticket struct {
	size    int
	granted chan error // holds one value
}

// acquire admits a proposal of the given size. If there is no room it waits for
// it, or returns ErrOverloaded when told not to wait. The number of callers that
// wait is not bounded here: each is a goroutine of its caller.
func (a *admission) acquire(ctx context.Context, size int, wait bool) error {
	a.mu.Lock()
	if a.closed != nil {
		a.mu.Unlock()
		return a.closed
	}
	if a.waiting.Len() == 0 && a.fits(size) {
		a.take(size)
		a.mu.Unlock()
		return nil
	}
	if !wait {
		defer a.mu.Unlock()
		return fmt.Errorf("%w: %d proposals, %d bytes", ErrOverloaded, a.proposals, a.bytes)
	}
	t := &ticket{size: size, granted: make(chan error, 1)}
	element := a.waiting.PushBack(t)
	a.mu.Unlock()

	select {
	case err := <-t.granted:
		return err
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case err := <-t.granted:
		if err != nil {
			return err
		}
		a.put(size)
	default:
		a.waiting.Remove(element)
	}
	a.grant()
	return fmt.Errorf("%w: waited for room: %w", ErrOverloaded, ctx.Err())
}

// release ends a proposal's flight.
func (a *admission) release(size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(size)
	a.grant()
}

// close refuses everything from now on with the error, callers that wait
// included.
func (a *admission) close(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed != nil {
		return
	}
	a.closed = err
	for e := a.waiting.Front(); e != nil; e = e.Next() {
		e.Value.(*ticket).granted <- err
	}
	a.waiting.Init()
}

// grant admits those that wait, in order. The lock is held.
func (a *admission) grant() {
	for e := a.waiting.Front(); e != nil; e = a.waiting.Front() {
		t := e.Value.(*ticket)
		if !a.fits(t.size) {
			return
		}
		a.take(t.size)
		t.granted <- nil
		a.waiting.Remove(e)
	}
}

func (a *admission) fits(size int) bool {
	return a.proposals < maxProposals && a.bytes+size <= maxProposalBytes
}

func (a *admission) take(size int) { a.proposals++; a.bytes += size }
func (a *admission) put(size int)  { a.proposals--; a.bytes -= size }
