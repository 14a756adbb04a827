package dataplane

import (
	"fmt"
	"maps"
	"slices"
)

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
