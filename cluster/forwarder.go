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
	// maxForwards batches are with the leader at a time; what comes meanwhile
	// gathers for the next one.
	maxForwards = 4
)

// forwarder sends proposals of a replica that does not lead to the leader, those
// that wait together in one call. Each is sent at most once: whether a call that
// failed on the way had its effect is not known (rqlite/rqlite#1624).
type forwarder struct {
	// leader returns the connection to the leader, or ErrNoLeader or ErrNotLeader
	// if there is none to send to.
	leader func() (*grpc.ClientConn, error)

	slots   chan struct{}
	wake    chan struct{}
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	queue list.List // of *proposal
	cause error     // of stop
}

func newForwarder(leader func() (*grpc.ClientConn, error)) *forwarder {
	f := &forwarder{leader: leader, slots: make(chan struct{}, maxForwards), wake: make(chan struct{}, 1)}
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

// stop refuses further proposals and those in the queue. Calls under way are cut
// off: their outcome is unknown.
func (f *forwarder) stop(cause error) {
	f.mu.Lock()
	if f.cause == nil {
		f.cause = cause
	}
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
	f.finish(f.take(), outcome{err: cause})
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
	conn, err := f.leader()
	if err == nil {
		err = waitConnected(ctx, conn)
	}
	if err != nil {
		f.finish(batch, outcome{err: err})
		return
	}
	request := &slimcppb.ProposeRequest{Commands: make([][]byte, len(batch))}
	for i, waiting := range batch {
		request.Commands[i] = waiting.encoded
	}
	response, err := slimcppb.NewReplicaServiceClient(conn).Propose(ctx, request)
	if err == nil && len(response.GetOutcomes()) != len(batch) {
		err = errors.New("the leader answered in part")
	}
	if err != nil {
		f.finish(batch, outcome{err: &UnknownOutcomeError{Cause: err}})
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
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.Shutdown {
			return ErrShutdown
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: the leader cannot be reached", ErrNoLeader)
		}
	}
}
