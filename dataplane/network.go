package dataplane

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// Network is the in-memory datapath network that simulated nodes share. Nodes
// of one group are peers of each other without a control plane's doing.
type Network struct {
	teardown time.Duration

	mu        sync.RWMutex // guards the following and all tables of the datapaths
	listeners map[string]*memoryDatapath
	datapaths map[string]*memoryDatapath // by full node id, running or not
	nodes     map[string]*Node
	exchanges map[string]*exchange // by group
	sequence  uint64               // connections made so far
}

// NetworkOptions are the settings of a Network.
type NetworkOptions struct {
	// Teardown is how long a closed connection lives on in the tables, as those
	// of real nodes do for moments. 0: it is gone at once.
	Teardown time.Duration
}

// NewNetwork makes an empty network.
func NewNetwork(options NetworkOptions) *Network {
	return &Network{
		teardown:  options.Teardown,
		listeners: make(map[string]*memoryDatapath),
		datapaths: make(map[string]*memoryDatapath),
		nodes:     make(map[string]*Node),
		exchanges: make(map[string]*exchange),
	}
}

// memoryDatapath is the Datapath of one node of a Network. The network's mu
// guards everything below the options.
type memoryDatapath struct {
	network   *Network
	id, group string
	fullID    string
	internal  string // address that only the group's own nodes can dial
	external  string // address that everybody can dial; may equal internal
	tls       bool
	appType   controllerpb.ConnectionType // EDGE or LOCAL

	running  bool
	refusing bool
	observer Observer
	ports    map[uint64]*port
	peers    []*port            // those of the siblings, by id
	links    map[string][]*port // by link id, oldest first
	freeID   uint64             // no id below it is free
	app      *port              // the applications' connection; nil: none, or LOCAL
	table    table[*entry]
	exchange *exchange           // of the group
	lastTold []*dataplanepb.Name // what the peers lose while the process ends
}

// port is one node's end of a connection.
type port struct {
	owner    *memoryDatapath
	other    *port // nil: an application
	view     Connection
	sequence uint64
	closing  bool
	names    map[*entry]struct{} // with records on this port
}

// newDatapath adds a node's datapath to the network.
func (w *Network) newDatapath(options NodeOptions) *memoryDatapath {
	return &memoryDatapath{
		network:  w,
		id:       options.ID,
		group:    options.Group,
		fullID:   options.fullID(),
		internal: normalizeEndpoint(options.Endpoint),
		external: normalizeEndpoint(options.ExternalEndpoint),
		tls:      options.TLSRequired,
		appType:  options.appType(),
		exchange: newExchange(),
	}
}

// Start implements Datapath. Applications attach afterwards.
func (d *memoryDatapath) Start(observer Observer) error {
	w := d.network
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, address := range []string{d.internal, d.external} {
		if other, taken := w.listeners[address]; taken && other != d {
			return fmt.Errorf("node %s: %w by %s: %s", d.fullID, ErrEndpointInUse, other.fullID, address)
		}
	}
	for _, address := range []string{d.internal, d.external} {
		if address != "" {
			w.listeners[address] = d
		}
	}
	d.running, d.observer = true, observer
	d.ports, d.peers, d.links, d.freeID = make(map[uint64]*port), nil, make(map[string][]*port), 1
	d.app, d.table, d.exchange = nil, make(table[*entry]), w.exchangeOf(d.group)
	for _, sibling := range w.siblings(d) {
		w.join(d, sibling, ClientConfig{Endpoint: sibling.internal, LinkID: uuid.NewString(), Type: peer})
	}
	return nil
}

// siblings returns the other running nodes of a datapath's group, in order.
func (w *Network) siblings(d *memoryDatapath) []*memoryDatapath {
	var siblings []*memoryDatapath
	for _, other := range w.datapaths {
		if other != d && other.running && d.group != "" && other.group == d.group {
			siblings = append(siblings, other)
		}
	}
	slices.SortFunc(siblings, func(a, b *memoryDatapath) int { return cmp.Compare(a.fullID, b.fullID) })
	return siblings
}

// Stop implements Datapath.
func (d *memoryDatapath) Stop() {
	w := d.network
	w.mu.Lock()
	defer w.mu.Unlock()
	if !d.running {
		return
	}
	d.lastTold = d.toldNames()
	d.running, d.observer = false, nil
	for _, address := range []string{d.internal, d.external} {
		if w.listeners[address] == d {
			delete(w.listeners, address)
		}
	}
	for _, p := range d.sortedPorts() {
		w.close(p)
	}
	for _, name := range d.lastTold {
		d.exchange.tell(d, name, false)
	}
	d.app, d.table, d.lastTold = nil, make(table[*entry]), nil
}

// Connect implements Datapath.
func (d *memoryDatapath) Connect(_ context.Context, config ClientConfig) error {
	w := d.network
	w.mu.Lock()
	defer w.mu.Unlock()
	target := w.listeners[config.address()]
	switch {
	case !d.running:
		return fmt.Errorf("node %s is stopped: %w", d.fullID, ErrUnreachable)
	case target == nil, target.refusing, !target.reachableFrom(d, config.address()), target.tls != config.tls():
		return fmt.Errorf("%s: %w", config.Endpoint, ErrUnreachable)
	}
	w.join(d, target, config)
	if config.Type == remote {
		target.observer.LinkNegotiated(config.LinkID)
		d.observer.LinkNegotiated(config.LinkID)
	}
	return nil
}

// reachableFrom reports whether a node may dial the address: the internal one
// works within the group only.
func (d *memoryDatapath) reachableFrom(from *memoryDatapath, address string) bool {
	return address == d.external || from.group == d.group
}

// join makes a connection. mu is held.
func (w *Network) join(source, target *memoryDatapath, config ClientConfig) {
	w.sequence++
	near := source.addPort(Connection{
		Type: config.Type, Direction: outgoing, LinkID: config.LinkID, Peer: target.id, Config: config.describe(),
	})
	far := target.addPort(Connection{
		Type: config.Type, Direction: incoming, LinkID: config.LinkID, Peer: source.id, Config: "{}",
	})
	near.other, far.other = far, near
}

// addPort enters a connection under the lowest free id; ids are used again.
func (d *memoryDatapath) addPort(view Connection) *port {
	for d.ports[d.freeID] != nil {
		d.freeID++
	}
	view.ID = d.freeID
	p := &port{owner: d, view: view, sequence: d.network.sequence, names: make(map[*entry]struct{})}
	d.ports[view.ID] = p
	if view.Type == peer {
		d.peers = append(d.peers, p)
		slices.SortFunc(d.peers, comparePorts)
	}
	if view.LinkID != "" {
		d.links[view.LinkID] = append(d.links[view.LinkID], p)
	}
	return p
}

// Disconnect implements Datapath.
func (d *memoryDatapath) Disconnect(connection uint64) error {
	w := d.network
	w.mu.Lock()
	defer w.mu.Unlock()
	p := d.ports[connection]
	if p == nil {
		return fmt.Errorf("%w: %d", ErrNoConnection, connection)
	}
	// The accepting end of a link cannot close it: it says yes and nothing happens.
	if p.view.Direction == incoming || p.closing {
		return nil
	}
	if w.teardown == 0 {
		w.close(p)
		return nil
	}
	p.closing = true
	time.AfterFunc(w.teardown, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.close(p)
	})
	return nil
}

// close ends a connection at both ends. mu is held.
func (w *Network) close(p *port) {
	if p.owner.ports[p.view.ID] != p {
		return
	}
	p.owner.dropPort(p)
	if p.other != nil {
		p.other.owner.dropPort(p.other)
	}
}

// dropPort forgets a connection and every name that was reached over it.
func (d *memoryDatapath) dropPort(p *port) {
	delete(d.ports, p.view.ID)
	d.peers = slices.DeleteFunc(d.peers, func(other *port) bool { return other == p })
	d.freeID = min(d.freeID, p.view.ID)
	if rest := slices.DeleteFunc(d.links[p.view.LinkID], func(other *port) bool { return other == p }); len(rest) > 0 {
		d.links[p.view.LinkID] = rest
	} else {
		delete(d.links, p.view.LinkID)
	}
	var lost []*dataplanepb.Name
	if p.view.Type == peer && d.observer != nil {
		lost = p.other.owner.toldNames()
	}
	for _, e := range slices.SortedFunc(maps.Keys(p.names), compareEntries) {
		lost = append(lost, e.name)
		e.drop(p)
		d.settle(e)
	}
	if d.observer != nil && len(lost) > 0 {
		d.observer.ConnectionLost(lost)
	}
}

// Lookup implements Datapath.
func (d *memoryDatapath) Lookup(linkID string) (Connection, bool) {
	d.network.mu.RLock()
	defer d.network.mu.RUnlock()
	if ports := d.links[linkID]; linkID != "" && len(ports) > 0 {
		return ports[0].view, true
	}
	return Connection{}, false
}

// Connections implements Datapath. Number 0 is a node's connection to its own
// controller.
func (d *memoryDatapath) Connections() []Connection {
	d.network.mu.RLock()
	defer d.network.mu.RUnlock()
	connections := []Connection{{Type: local, Direction: incoming, Config: "{}"}}
	for _, p := range d.sortedPorts() {
		connections = append(connections, p.view)
	}
	return connections
}

func (d *memoryDatapath) sortedPorts() []*port {
	ports := make([]*port, 0, len(d.ports))
	for _, p := range d.ports {
		ports = append(ports, p)
	}
	slices.SortFunc(ports, comparePorts)
	return ports
}

func comparePorts(a, b *port) int { return cmp.Compare(a.view.ID, b.view.ID) }

// setRefusing makes the node's endpoints refuse connections from now on.
func (d *memoryDatapath) setRefusing(refusing bool) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.refusing = refusing
}

// Link is one live remote connection of a Network.
type Link struct {
	ID           string
	Source, Dest string // full node ids; the source dialled
}

// Links lists the live remote connections by link id, then source.
func (w *Network) Links() []Link {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var links []Link
	for _, d := range w.datapaths {
		for _, p := range d.ports {
			if p.view.Type == remote && p.view.Direction == outgoing {
				links = append(links, Link{ID: p.view.LinkID, Source: d.fullID, Dest: p.other.owner.fullID})
			}
		}
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Source, b.Source)) })
	return links
}

// Node returns the node with a full id, or nil.
func (w *Network) Node(fullID string) *Node {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.nodes[fullID]
}
