package dataplane

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// table is a forwarding table: which names are reached over which connections.
// The instances of a name are in the order of their keys. A fleet's tables hold
// an entry for each node and name, so they are kept small.
type table map[prefix][]*entry

// entry is one name of a table. It exists while somebody subscribes to it.
type entry struct {
	name    *dataplanepb.Name
	local   int      // subscriptions of in-process applications
	records []record // by connection id, then oldest first
	shared  bool     // told to the peers
}

// record is one subscription over a connection.
type record struct {
	port *port
	id   uint64
}

func newTable() table {
	return make(table)
}

func (t table) search(key nameKey) (at int, found bool) {
	return slices.BinarySearchFunc(t[key.prefix], key, func(e *entry, key nameKey) int { return compareKeys(keyOf(e.name), key) })
}

func (t table) find(key nameKey) *entry {
	if at, found := t.search(key); found {
		return t[key.prefix][at]
	}
	return nil
}

func (t table) ensure(name *dataplanepb.Name) *entry {
	key := keyOf(name)
	at, found := t.search(key)
	if !found {
		t[key.prefix] = slices.Insert(t[key.prefix], at, &entry{name: name})
	}
	return t[key.prefix][at]
}

func (t table) remove(key nameKey) {
	if at, found := t.search(key); found {
		t[key.prefix] = slices.Delete(t[key.prefix], at, at+1)
	}
	if len(t[key.prefix]) == 0 {
		delete(t, key.prefix)
	}
}

// matches returns the entries that a message to the name goes to: without an
// instance all instances of it, otherwise that one only.
func (t table) matches(key nameKey) []*entry {
	if !key.hasInstance() {
		return t[key.prefix]
	}
	if at, found := t.search(key); found {
		return t[key.prefix][at : at+1]
	}
	return nil
}

// sorted returns all entries in the order of their keys.
func (t table) sorted() []*entry {
	var all []*entry
	for _, instances := range t {
		all = append(all, instances...)
	}
	slices.SortFunc(all, compareEntries)
	return all
}

func compareEntries(a, b *entry) int { return compareKeys(keyOf(a.name), keyOf(b.name)) }

func sortedKeys[V any](m map[nameKey]V) []nameKey {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}

// apps is the number of subscriptions of the node's own applications.
func (e *entry) apps() int {
	count := e.local
	for _, r := range e.records {
		if r.port.view.Type == edge {
			count++
		}
	}
	return count
}

// ports yields the entry's connections, each once, by their ids.
func (e *entry) ports() iter.Seq[*port] {
	return func(yield func(*port) bool) {
		var last *port
		for _, r := range e.records {
			if r.port != last && !yield(r.port) {
				return
			}
			last = r.port
		}
	}
}

// reachedOver reports whether the entry has a connection of that type.
func (e *entry) reachedOver(kind controllerpb.ConnectionType) bool {
	return slices.ContainsFunc(e.records, func(r record) bool { return r.port.view.Type == kind })
}

// drop removes the records of a connection.
func (e *entry) drop(p *port) {
	e.records = slices.DeleteFunc(e.records, func(r record) bool { return r.port == p })
}

// upstream reports whether the peers must know the name: they learn what the
// node reaches itself or over links, never what another peer told it.
func (e *entry) upstream() bool {
	return e.local > 0 || slices.ContainsFunc(e.records, func(r record) bool { return r.port.view.Type != peer })
}

// record adds one subscription to a connection.
func (d *memoryDatapath) record(p *port, name *dataplanepb.Name, id uint64) {
	e := d.table.ensure(name)
	at := len(e.records)
	for at > 0 && e.records[at-1].port.view.ID > p.view.ID {
		at--
	}
	e.records = slices.Insert(e.records, at, record{port: p, id: id})
	p.names[e] = struct{}{}
	d.settle(e)
}

// erase removes one subscription from a connection.
func (d *memoryDatapath) erase(p *port, name *dataplanepb.Name, id uint64) error {
	e := d.table.find(keyOf(name))
	if e == nil {
		return fmt.Errorf("%w: %d", ErrNoSubscription, id)
	}
	at := slices.Index(e.records, record{port: p, id: id})
	if at < 0 {
		return fmt.Errorf("%w: %d", ErrNoSubscription, id)
	}
	e.records = slices.Delete(e.records, at, at+1)
	if !slices.ContainsFunc(e.records, func(r record) bool { return r.port == p }) {
		delete(p.names, e)
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
		for _, p := range d.peers {
			share(p, e.name, now)
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
	for _, kind := range []controllerpb.ConnectionType{remote, peer, edge} {
		for p := range e.ports() {
			if p.view.Type == kind {
				connections = append(connections, p.view)
			}
		}
	}
	return connections
}
