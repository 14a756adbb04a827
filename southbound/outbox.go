package southbound

import (
	"context"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// outboxMessages bounds what waits for a node that does not read.
const outboxMessages = 64

// outbox is the bounded queue of one stream. One goroutine, write, empties it.
type outbox struct {
	queue chan outgoing
}

// outgoing is a message, or a mark that all before it was handed to gRPC.
type outgoing struct {
	message *controllerpb.ControlMessage
	handed  func() // called before the message is given to gRPC; nil: nobody cares
	passed  chan<- struct{}
}

func newOutbox() *outbox { return &outbox{queue: make(chan outgoing, outboxMessages)} }

// offer never blocks: a message that finds the queue full is dropped.
func (o *outbox) offer(message *controllerpb.ControlMessage) { o.offerNoted(message, nil) }

// offerNoted is offer, and tells when the message's turn has come; false: the queue is
// full.
func (o *outbox) offerNoted(message *controllerpb.ControlMessage, handed func()) bool {
	select {
	case o.queue <- outgoing{message: message, handed: handed}:
		return true
	default:
		return false
	}
}

// flush waits until all that was offered before has been handed to gRPC, which
// sends it before the stream's status. It returns the context's error.
func (o *outbox) flush(ctx context.Context) error {
	passed := make(chan struct{})
	select {
	case o.queue <- outgoing{passed: passed}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write sends until done is closed or the stream breaks. A send to a node that
// does not read blocks until the RPC ends.
func (o *outbox) write(done <-chan struct{}, send func(*controllerpb.ControlMessage) error) error {
	for {
		select {
		case <-done:
			return nil
		case out := <-o.queue:
			if out.passed != nil {
				close(out.passed)
				continue
			}
			if out.handed != nil {
				out.handed()
			}
			if err := send(out.message); err != nil {
				return err
			}
		}
	}
}
