package dataplane

import (
	"errors"
	"fmt"

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
	delivery := Delivery{Arrived: make(map[string]int)}
	pending := []copyOfMessage{{at: d}}
	for handled := 0; handled < len(pending); handled++ {
		message := pending[handled]
		if message.hops >= hopLimit || handled >= copyLimit {
			delivery.Looped = true
			return delivery
		}
		arrived, next := message.at.forward(key, message.in)
		if arrived {
			delivery.Arrived[message.at.fullID]++
		}
		for _, p := range next {
			pending = append(pending, copyOfMessage{at: p.other.owner, in: p.other, hops: message.hops + 1})
		}
	}
	return delivery
}

// forward says what a node does with a message that came in over a port: whether
// an application of its own gets it, and over which ports it goes on. It never
// goes back where it came from, nor from one peer to another, since all peers
// have it from the first.
func (d *memoryDatapath) forward(key nameKey, in *port) (arrived bool, next []*port) {
	seen := make(map[*port]bool)
	for _, e := range d.table.matches(key) {
		arrived = arrived || e.apps() > 0
		for _, p := range e.ports() {
			fromPeer := in != nil && in.view.Type == peer
			if p == in || p.other == nil || seen[p] || fromPeer && p.view.Type == peer {
				continue
			}
			seen[p] = true
			next = append(next, p)
		}
	}
	return arrived, next
}
