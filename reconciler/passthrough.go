package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// passThroughTimeout is how long an operator's list request waits for the node.
// It is shorter than clients' own deadlines, so that they get an answer.
const passThroughTimeout = 10 * time.Second

// ErrNotConnected is the error of a request to a node that has no session.
var ErrNotConnected = fmt.Errorf("node is not connected: %w", southbound.ErrNoSession)

// BusyError says that a node has not answered the command before an operator's
// request.
type BusyError struct {
	NodeID string
	Since  time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("node %s is busy: command sent %d s ago", e.NodeID, int(e.Since.Seconds()))
}

// listRequest is an operator's request for one of a node's own tables. It goes
// out next after what is in flight, so that it is not starved.
type listRequest struct {
	connections bool
	answer      chan southbound.Answer // takes one answer without blocking
}

func (r *listRequest) finish(err error) { r.deliver(southbound.Answer{Err: err}) }

func (r *listRequest) deliver(answer southbound.Answer) {
	select {
	case r.answer <- answer:
	default:
	}
}

// ListConnections returns the connections that a node holds, asked of the node
// itself. It blocks for up to 10 s; see BusyError, ErrNotConnected and
// ErrNotLeading.
func (r *Reconciler) ListConnections(ctx context.Context, nodeID string) ([]*controllerpb.ConnectionEntry, error) {
	answer, err := r.list(ctx, nodeID, true)
	return answer.Connections, err
}

// ListRoutes returns the routing table of a node, as ListConnections does.
func (r *Reconciler) ListRoutes(ctx context.Context, nodeID string) ([]*controllerpb.RouteEntry, error) {
	answer, err := r.list(ctx, nodeID, false)
	return answer.Routes, err
}

func (r *Reconciler) list(ctx context.Context, nodeID string, connections bool) (southbound.Answer, error) {
	l, err := r.leading()
	if err != nil {
		return southbound.Answer{}, err
	}
	d, ok := l.driver(nodeID)
	if !ok {
		return southbound.Answer{}, ErrNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, passThroughTimeout)
	defer cancel()
	request := &listRequest{connections: connections, answer: make(chan southbound.Answer, 1)}
	if err := d.ask(request); err != nil {
		return southbound.Answer{}, err
	}
	select {
	case answer := <-request.answer:
		if errors.Is(answer.Err, ErrSessionOver) || errors.Is(answer.Err, southbound.ErrStreamEnded) {
			return southbound.Answer{}, ErrNotConnected
		}
		return answer, answer.Err
	case <-ctx.Done():
		return southbound.Answer{}, d.withdraw(request)
	}
}

// maxListRequests bounds what operators can have waiting at one node.
const maxListRequests = 64

var errTooManyRequests = errors.New("too many requests wait for the node")

func (d *driver) ask(request *listRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped != nil:
		return ErrNotConnected
	case len(d.requests) >= maxListRequests:
		return fmt.Errorf("node %s: %w", d.id, errTooManyRequests)
	}
	d.requests = append(d.requests, request)
	d.l.links.Add(d.id)
	return nil
}

// withdraw takes a request back that was not answered in time and says why.
func (d *driver) withdraw(request *listRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, waiting := range d.requests {
		if waiting == request {
			d.requests = append(d.requests[:i:i], d.requests[i+1:]...)
			break
		}
	}
	if d.flight == nil {
		return &BusyError{NodeID: d.id}
	}
	return &BusyError{NodeID: d.id, Since: time.Since(d.flight.since)}
}

// serve sends the oldest operator's request. Called with the lock held and the
// slot free.
func (d *driver) serve() {
	request := d.requests[0]
	d.requests = d.requests[1:]
	call := southbound.Call{ListConnections: request.connections, ListRoutes: !request.connections}
	d.call(call, func(answer southbound.Answer) {
		request.deliver(answer)
		d.release()
	})
	d.flight.request = request
}
