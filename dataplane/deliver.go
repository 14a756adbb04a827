package dataplane

import (
	"errors"
	"fmt"
	"slices"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

const (
	// hopLimit ends a message that goes round in circles.
	hopLimit = 64
	// copyLimit ends one that multiplies on its way.
	copyLimit = 4096
)

// ErrNodeDown reports a sender whose process does not run.
var ErrNodeDown = errors.New("node is not running")

// Delivery is where one message arrived.
type Delivery struct {
	Arrived map[string]int // by full node id: arrivals at a node with a subscribed application
	Looped  bool           // the message was still under way at the hop or copy limit
}

// Deliver sends one message to the name from an application on the node, and
// forwards it by the nodes' tables as they are now.
func (w *Network) Deliver(from string, name *dataplanepb.Name) (Delivery, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	d := w.datapaths[from]
	if d == nil || !d.running {
		return Delivery{}, fmt.Errorf("%w: %q", ErrNodeDown, from)
	}
	return d.deliver(keyOf(name)), nil
}

// copyOfMessage is a message on its way: at a node, come in over a port (nil: an
// application's) after some hops.
type copyOfMessage struct {
	at   *memoryDatapath
	in   *port
	hops int
}

// deliver is Deliver for a running datapath. mu is held.
func (d *memoryDatapath) deliver(key nameKey) Delivery {
	return new(courier).deliver(d, key)
}

// courier carries one message after another, with the memory of the one before.
type courier struct {
	pending []copyOfMessage
	next    []*port
	arrived map[string]int
}

// deliver carries one message. Its result is valid until the next call. mu of the
// network is held.
func (c *courier) deliver(from *memoryDatapath, key nameKey) Delivery {
	if c.arrived == nil {
		c.arrived = make(map[string]int)
	}
	clear(c.arrived)
	c.pending = append(c.pending[:0], copyOfMessage{at: from})
	for handled := 0; handled < len(c.pending); handled++ {
		message := c.pending[handled]
		if message.hops >= hopLimit || handled >= copyLimit {
			return Delivery{Arrived: c.arrived, Looped: true}
		}
		if c.forward(message.at, key, message.in) {
			c.arrived[message.at.fullID]++
		}
		for _, p := range c.next {
			c.pending = append(c.pending, copyOfMessage{at: p.other.owner, in: p.other, hops: message.hops + 1})
		}
	}
	return Delivery{Arrived: c.arrived}
}

// forward says what a node does with a message that came in over a port: whether
// an application of its own gets it, and in next over which ports it goes on. It
// never goes back where it came from, nor from one peer to another, since all
// peers have it from the first.
func (c *courier) forward(d *memoryDatapath, key nameKey, in *port) (arrived bool) {
	c.next = c.next[:0]
	for _, e := range d.table.matches(key) {
		arrived = arrived || e.apps() > 0
		for p := range e.ports() {
			if p != in && p.other != nil && !slices.Contains(c.next, p) {
				c.next = append(c.next, p)
			}
		}
	}
	if in != nil && in.view.Type == peer {
		return arrived
	}
	for _, t := range d.exchange.matches(key) {
		for _, p := range d.peers {
			if slices.Contains(t.by, p.other.owner) && !slices.Contains(c.next, p) {
				c.next = append(c.next, p)
			}
		}
	}
	return arrived
}
