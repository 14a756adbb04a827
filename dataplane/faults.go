package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// subscriptionTimeout bounds a controller's wait for the datapath's word on a
// subscription.
const subscriptionTimeout = 30 * time.Second

var errSubscriptionTimeout = errors.New("subscription ack timed out")

// HoldSubscriptions makes the node's datapath keep quiet about subscriptions that
// its controller asks for: the controller waits and reports each as failed.
func (n *Node) HoldSubscriptions(on bool) { n.datapathHeld.set(on) }

// subscriptionWait is until when a subscription asked for now may wait.
func (c *controller) subscriptionWait() time.Time { return time.Now().Add(subscriptionTimeout) }

// awaitDatapath returns when the datapath answers, or an error at the time given.
func (c *controller) awaitDatapath(until time.Time) error {
	if c.node.datapathHeld.open() {
		return c.ctx.Err()
	}
	ctx, cancel := context.WithDeadline(c.ctx, until)
	defer cancel()
	err := c.node.datapathHeld.pass(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return errSubscriptionTimeout
	}
	return err
}

// SetEndpoints gives a stopped node other endpoints, as a changed configuration
// does; ErrRunning if its process runs.
func (n *Node) SetEndpoints(endpoint, external string) error {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	if n.process.Load() != nil {
		return fmt.Errorf("node %s: %w", n.ID(), ErrRunning)
	}
	w := n.datapath.network
	w.mu.Lock()
	defer w.mu.Unlock()
	n.options.Endpoint, n.options.ExternalEndpoint = endpoint, external
	n.datapath.internal, n.datapath.external = normalizeEndpoint(endpoint), normalizeEndpoint(external)
	return nil
}

// ExternalEndpoint is the endpoint that nodes of other groups can dial; empty if
// there is none.
func (n *Node) ExternalEndpoint() string {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	return n.options.ExternalEndpoint
}

// Break ends the connections with a link id, as a broken network does, and
// reports whether there was one. Neither end dials again by itself.
func (w *Network) Break(linkID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	broken := false
	for _, d := range w.datapaths {
		for _, p := range d.sortedPorts() {
			if p.view.LinkID == linkID && p.view.Type == remote && p.view.Direction == outgoing {
				w.close(p)
				broken = true
			}
		}
	}
	return broken
}

// Forget makes the node lose every route that it was told to set, without a word;
// its links stay.
func (n *Node) Forget() {
	if c := n.process.Load(); c != nil {
		c.forgetRoutes()
		n.datapath.forgetRoutes()
	}
}

func (c *controller) forgetRoutes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.tracked)
}

func (d *memoryDatapath) forgetRoutes() {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	for _, p := range d.ports {
		if p.view.Type != remote {
			continue
		}
		for e := range p.names { // any order: nobody is told
			e.drop(p)
			d.settle(e)
		}
		clear(p.names)
	}
}

// Doubled lists the routes over links that a node was told to set twice on one
// connection: one of the two can never be deleted.
func (w *Network) Doubled() []Leftover {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var doubled []Leftover
	for _, id := range slices.Sorted(maps.Keys(w.datapaths)) {
		d := w.datapaths[id]
		if !d.running {
			continue
		}
		for _, e := range d.table.sorted() {
			for i, r := range e.records { // those of one connection are neighbours
				if r.port.view.Type == remote && i > 0 && e.records[i-1].port == r.port {
					doubled = append(doubled, Leftover{Node: id, Name: FormatName(e.name)})
				}
			}
		}
	}
	return doubled
}
