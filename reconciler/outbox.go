package reconciler

import (
	"context"
	"sync"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// outboxWindow is how long a proposal waits for others, so that many nodes
	// share a log entry (protocol C8).
	outboxWindow = 10 * time.Millisecond
	// outboxParallel bounds the proposals under way.
	outboxParallel = 512
)

// outgoing is a proposal of the leadership's work.
type outgoing struct {
	command *slimcppb.Command
	// done, if set, is called once with the outcome, unless the leadership ends
	// first.
	done func(fsm.Result, error)
}

// outbox gathers proposals for a window and makes them together. What waits in
// it is bounded by the drivers, each of which waits for its own proposal.
type outbox struct {
	l     *leadership
	ready chan struct{} // holds a token while something waits
	slots chan struct{}

	mu      sync.Mutex
	waiting []outgoing
}

func newOutbox(l *leadership) *outbox {
	return &outbox{l: l, ready: make(chan struct{}, 1), slots: make(chan struct{}, outboxParallel)}
}

// send hands a proposal over. It does not block.
func (o *outbox) send(proposal outgoing) {
	if proposal.command.Generation == 0 { // of the view by which it was decided
		proposal.command.Generation = o.l.view().Generation()
	}
	o.mu.Lock()
	o.waiting = append(o.waiting, proposal)
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// run proposes until the context ends and every proposal under way has.
func (o *outbox) run(ctx context.Context) {
	var underWay sync.WaitGroup
	defer underWay.Wait()
	window := time.NewTimer(outboxWindow)
	defer window.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.ready:
		}
		window.Reset(outboxWindow)
		select {
		case <-ctx.Done():
			return
		case <-window.C:
		}
		o.mu.Lock()
		gathered := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		for _, proposal := range gathered {
			select {
			case <-ctx.Done():
				return
			case o.slots <- struct{}{}:
			}
			underWay.Go(func() {
				defer func() { <-o.slots }()
				o.propose(ctx, proposal)
			})
		}
	}
}

// propose is made in parallel with others: the replica puts proposals that wait
// at the same time into one entry.
func (o *outbox) propose(ctx context.Context, proposal outgoing) {
	result, err := o.l.propose(ctx, proposal.command)
	if proposal.done != nil {
		proposal.done(result, err)
	}
}
