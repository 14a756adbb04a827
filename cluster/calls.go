package cluster

import (
	"context"
	"sync"
)

// calls tracks goroutines that are inside a call of the library. Its futures
// know no context and some are never answered once Raft has shut down, so they
// are waited for before that.
type calls struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// run calls f in a goroutine; false after close.
func (c *calls) run(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(f)
	return true
}

// await calls f in a goroutine and returns its error, or the context's if that
// ends first. f then goes on alone.
func (c *calls) await(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !c.run(func() { done <- f() }) {
		return ErrShutdown
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close refuses further calls and waits for those that run.
func (c *calls) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

// withDeadline gives a call a deadline if it has none.
func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultDeadline)
}
