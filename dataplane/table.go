package dataplane

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// table is a forwarding table: which names are reached over which connections.
type table map[prefix]map[nameKey]*entry

// entry is one name of a table. It exists while somebody subscribes to it.
type entry struct {
	name    *dataplanepb.Name
	local   int                // subscriptions of in-process applications
	records map[*port][]uint64 // subscription ids per connection
	shared  bool               // told to the peers
}

func newTable() table {
	return make(table)
}

func (t table) find(key nameKey) *entry {
	return t[key.prefix][key]
}

func (t table) ensure(name *dataplanepb.Name) *entry {
	key := keyOf(name)
	if t[key.prefix] == nil {
		t[key.prefix] = make(map[nameKey]*entry)
	}
	e := t[key.prefix][key]
	if e == nil {
		e = &entry{name: name, records: make(map[*port][]uint64)}
		t[key.prefix][key] = e
	}
	return e
}

func (t table) remove(key nameKey) {
	delete(t[key.prefix], key)
	if len(t[key.prefix]) == 0 {
		delete(t, key.prefix)
	}
}

// matches returns the entries that a message to the name goes to: without an
// instance all instances of it, otherwise that one only.
func (t table) matches(key nameKey) []*entry {
	if key.hasInstance() {
		if e := t.find(key); e != nil {
			return []*entry{e}
		}
		return nil
	}
	var found []*entry
	for _, other := range sortedKeys(t[key.prefix]) {
		found = append(found, t[key.prefix][other])
	}
	return found
}

// sorted returns all entries in the order of their keys.
func (t table) sorted() []*entry {
	var all []*entry
	for _, instances := range t {
		all = slices.AppendSeq(all, maps.Values(instances))
	}
	slices.SortFunc(all, func(a, b *entry) int { return compareKeys(keyOf(a.name), keyOf(b.name)) })
	return all
}

func sortedKeys[V any](m map[nameKey]V) []nameKey {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}

// apps is the number of subscriptions of the node's own applications.
func (e *entry) apps() int {
	count := e.local
	for p, ids := range e.records {
		if p.view.Type == edge {
			count += len(ids)
		}
	}
	return count
}

// ports returns the entry's connections in a fixed order.
func (e *entry) ports() []*port {
	ports := slices.Collect(maps.Keys(e.records))
	slices.SortFunc(ports, func(a, b *port) int { return int(a.view.ID) - int(b.view.ID) })
	return ports
}

// upstream reports whether the peers must know the name: they learn what the
// node reaches itself or over links, never what another peer told it.
func (e *entry) upstream() bool {
	if e.local > 0 {
		return true
	}
	for p := range e.records {
		if p.view.Type != peer {
			return true
		}
	}
	return false
}

// record adds one subscription to a connection.
func (d *memoryDatapath) record(p *port, name *dataplanepb.Name, id uint64) {
	e := d.table.ensure(name)
	e.records[p] = append(e.records[p], id)
	p.names[keyOf(name)] = struct{}{}
	d.settle(e)
}

// erase removes one subscription from a connection.
func (d *memoryDatapath) erase(p *port, name *dataplanepb.Name, id uint64) error {
	e := d.table.find(keyOf(name))
	if e == nil {
		return fmt.Errorf("%w: %d", ErrNoSubscription, id)
	}
	at := slices.Index(e.records[p], id)
	if at < 0 {
		return fmt.Errorf("%w: %d", ErrNoSubscription, id)
	}
	if e.records[p] = slices.Delete(e.records[p], at, at+1); len(e.records[p]) == 0 {
		delete(e.records, p)
		delete(p.names, keyOf(name))
	}
	d.settle(e)
	return nil
}

// appLinkID is the link id of the connection of a node's applications, which
// nodes list among those of the links.
func appLinkID(fullID string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte("applications of "+fullID)).String()
}

// settle brings the peers up to date after a change of an entry and drops the
// entry when nobody subscribes any more. A dying process tells its peers nothing:
// they see the connection end.
func (d *memoryDatapath) settle(e *entry) {
	if now := e.upstream(); now != e.shared && d.running {
		e.shared = now
		for _, p := range d.sortedPorts() {
			if p.view.Type == peer {
				share(p, e.name, now)
			}
		}
	}
	if e.local == 0 && len(e.records) == 0 {
		d.table.remove(keyOf(e.name))
	}
}

// shareAll tells a new peer every name that it must know.
func (d *memoryDatapath) shareAll(p *port) {
	for _, e := range d.table.sorted() {
		if e.shared {
			share(p, e.name, true)
		}
	}
}

// peerRecord is the subscription id of what a peer told; there is one per name.
const peerRecord = 0

func share(p *port, name *dataplanepb.Name, present bool) {
	other := p.other.owner
	if present {
		other.record(p.other, name, peerRecord)
		return
	}
	// The other end has no record if the connection is being torn down.
	_ = other.erase(p.other, name, peerRecord)
}

// Subscribe implements Datapath.
func (d *memoryDatapath) Subscribe(connection uint64, name *dataplanepb.Name, id uint64) error {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	p := d.ports[connection]
	if p == nil {
		return fmt.Errorf("%w: %d", ErrNoConnection, connection)
	}
	d.record(p, name, id)
	return nil
}

// Unsubscribe implements Datapath.
func (d *memoryDatapath) Unsubscribe(connection uint64, name *dataplanepb.Name, id uint64) error {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	p := d.ports[connection]
	if p == nil {
		return fmt.Errorf("%w: %d", ErrNoConnection, connection)
	}
	return d.erase(p, name, id)
}

// AttachName implements Datapath. An in-process application is announced when
// its name becomes known on the node, one behind a connection at every call.
func (d *memoryDatapath) AttachName(name *dataplanepb.Name) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if !d.running {
		return
	}
	if d.appType == local {
		e := d.table.ensure(name)
		known := e.upstream()
		e.local++
		d.settle(e)
		if !known {
			d.observer.NameAttached(name)
		}
		return
	}
	if d.app == nil {
		d.app = d.addPort(Connection{
			Type: edge, Direction: incoming, LinkID: appLinkID(d.fullID), Peer: "app-of-" + d.id, Config: "{}",
		})
	}
	d.record(d.app, name, 0)
	d.observer.NameAttached(name)
}

// DetachName implements Datapath. With two applications of one name behind
// connections, the first that leaves is reported although the other stays.
func (d *memoryDatapath) DetachName(name *dataplanepb.Name) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	e := d.table.find(keyOf(name))
	if !d.running || e == nil {
		return
	}
	if d.appType == local {
		if e.local == 0 {
			return
		}
		e.local--
		stays := e.upstream()
		d.settle(e)
		if !stays {
			d.observer.NameDetached(name)
		}
		return
	}
	if d.app == nil || d.erase(d.app, name, 0) != nil {
		return
	}
	d.observer.NameDetached(name)
	if len(d.app.names) == 0 {
		d.network.close(d.app)
		d.app = nil
	}
}

// Table implements Datapath.
func (d *memoryDatapath) Table() []TableEntry {
	d.network.mu.RLock()
	defer d.network.mu.RUnlock()
	var entries []TableEntry
	for _, e := range d.table.sorted() {
		entries = append(entries, TableEntry{Name: e.name, Connections: e.connections()})
	}
	return entries
}

// connections lists an entry's connections as nodes do: in-process
// applications, links, peers, applications behind connections.
func (e *entry) connections() []Connection {
	var connections []Connection
	if e.local > 0 {
		connections = append(connections, Connection{Type: local, Direction: outgoing, Config: "{}"})
	}
	ports := e.ports()
	for _, p := range ports {
		if p.view.Type == remote {
			connections = append(connections, p.view)
		}
	}
	for _, p := range ports {
		if p.view.Type == peer {
			connections = append(connections, p.view)
		}
	}
	for _, p := range ports {
		if p.view.Type == edge {
			connections = append(connections, p.view)
		}
	}
	return connections
}
