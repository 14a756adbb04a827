package cluster

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// forwardTimeout bounds one batch on its way to the leader and back.
	forwardTimeout = 10 * time.Second
	// refusalTime is how long a new attempt to connect may take to fail unseen.
	refusalTime = 200 * time.Millisecond
	// maxForwards batches are with the leader at a time; what comes meanwhile
	// gathers for the next one.
	maxForwards = 2
)

// forwarder sends proposals of a replica that does not lead to the leader, those
// that wait together in one call. Each is sent at most once: whether a call that
// failed on the way had its effect is not known (rqlite/rqlite#1624).
type forwarder struct {
	// withLeader calls with a connection to the leader that stands, and with a
	// context that ends when another replica leads. It returns ErrNoLeader or
	// ErrNotLeader if it could not call.
	withLeader func(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error

	slots   chan struct{}
	wake    chan struct{}
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	queue list.List // of *proposal
	cause error     // of stop
}

func newForwarder(withLeader func(context.Context, func(context.Context, *grpc.ClientConn) error) error) *forwarder {
	f := &forwarder{withLeader: withLeader, slots: make(chan struct{}, maxForwards), wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.running.Go(f.run)
	return f
}

// await sends a proposal and waits for its outcome.
func (f *forwarder) await(ctx context.Context, waiting *proposal) outcome {
	waiting.done = make(chan outcome, 1)
	f.mu.Lock()
	if f.cause != nil {
		defer f.mu.Unlock()
		return outcome{err: f.cause}
	}
	waiting.element = f.queue.PushBack(waiting)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
	select {
	case out := <-waiting.done:
		return out
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if waiting.element != nil {
		f.queue.Remove(waiting.element)
		waiting.element = nil
		return outcome{err: fmt.Errorf("not proposed: no answer in time: %w", ctx.Err())}
	}
	select {
	case out := <-waiting.done:
		return out
	default:
		return outcome{err: &UnknownOutcomeError{Cause: fmt.Errorf("no answer in time: %w", ctx.Err())}}
	}
}

// stop refuses further proposals and all those in the queue. Calls under way are cut
// off: their outcome is unknown.
func (f *forwarder) stop(cause error) {
	f.mu.Lock()
	if f.cause == nil {
		f.cause = cause
	}
	for e := f.queue.Front(); e != nil; e = f.queue.Front() {
		waiting := e.Value.(*proposal)
		f.queue.Remove(e)
		waiting.element = nil
		waiting.done <- outcome{err: f.cause}
	}
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
}

func (f *forwarder) run() {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			return
		}
		batch := f.next()
		if batch == nil {
			return
		}
		f.running.Go(func() {
			f.send(batch)
			<-f.slots
		})
	}
}

// next waits for proposals; nil once the forwarder was stopped.
func (f *forwarder) next() []*proposal {
	for {
		if batch := f.take(); len(batch) > 0 {
			return batch
		}
		select {
		case <-f.wake:
		case <-f.ctx.Done():
			return nil
		}
	}
}

func (f *forwarder) take() []*proposal {
	f.mu.Lock()
	defer f.mu.Unlock()
	return takeBatch(&f.queue)
}

// send hands a batch to the leader and its outcomes to those who wait.
func (f *forwarder) send(batch []*proposal) {
	ctx, cancel := context.WithTimeout(f.ctx, forwardTimeout)
	defer cancel()
	request := &slimcppb.ProposeRequest{Commands: make([][]byte, len(batch))}
	for i, waiting := range batch {
		request.Commands[i] = waiting.encoded
	}
	var response *slimcppb.ProposeResponse
	err := f.withLeader(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		response, err = slimcppb.NewReplicaServiceClient(conn).Propose(ctx, request)
		if err == nil && len(response.GetOutcomes()) != len(batch) {
			err = errors.New("the leader answered in part")
		}
		if err != nil {
			err = &UnknownOutcomeError{Cause: err}
		}
		return err
	})
	if err != nil {
		f.finish(batch, outcome{err: err})
		return
	}
	for i, waiting := range batch {
		waiting.done <- outcomeFromProto(response.GetOutcomes()[i])
	}
}

func (f *forwarder) finish(batch []*proposal, out outcome) {
	for _, waiting := range batch {
		waiting.done <- out
	}
}

// waitConnected waits until a connection stands, for at most one attempt: what is
// called on one that does not stand surely did not arrive.
func waitConnected(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, transportTimeout)
	defer cancel()
	attempted := false
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return ErrShutdown
		case connectivity.Connecting:
			attempted = true
		case connectivity.TransientFailure:
			if attempted {
				return fmt.Errorf("%w: the leader cannot be reached", ErrNoLeader)
			}
			conn.ResetConnectBackoff()
			// The attempt may be over before it is seen.
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, refusalTime)
			defer stop()
			attempted = true
		case connectivity.Idle:
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: the leader cannot be reached", ErrNoLeader)
		}
	}
}
