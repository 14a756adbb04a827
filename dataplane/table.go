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

// table holds names, those with the same strings in the order of their keys.
type table[E keyed] map[prefix][]E

// keyed is one name of a table.
type keyed interface{ key() nameKey }

// entry is one name of a node's forwarding table, reached over anything but
// peers: what those tell is in the exchange. It exists while somebody subscribes
// to it.
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

func (e *entry) key() nameKey { return keyOf(e.name) }

func (t table[E]) search(key nameKey) (at int, found bool) {
	return slices.BinarySearchFunc(t[key.prefix], key, func(e E, key nameKey) int { return compareKeys(e.key(), key) })
}

// find returns nil, the zero value, for a name that is not there.
func (t table[E]) find(key nameKey) (found E) {
	if at, ok := t.search(key); ok {
		return t[key.prefix][at]
	}
	return found
}

// ensure returns the entry of a name, made by add if there is none.
func (t table[E]) ensure(key nameKey, add func() E) E {
	at, found := t.search(key)
	if !found {
		t[key.prefix] = slices.Insert(t[key.prefix], at, add())
	}
	return t[key.prefix][at]
}

func (t table[E]) remove(key nameKey) {
	if at, found := t.search(key); found {
		t[key.prefix] = slices.Delete(t[key.prefix], at, at+1)
	}
	if len(t[key.prefix]) == 0 {
		delete(t, key.prefix)
	}
}

// matches returns the entries that a message to the name goes to: without an
// instance all instances of it, otherwise that one only.
func (t table[E]) matches(key nameKey) []E {
	if !key.hasInstance() {
		return t[key.prefix]
	}
	if at, found := t.search(key); found {
		return t[key.prefix][at : at+1]
	}
	return nil
}

// sorted returns all entries in the order of their keys.
func (t table[E]) sorted() []E {
	var all []E
	for _, p := range slices.SortedFunc(maps.Keys(t), func(a, b prefix) int { return slices.Compare(a[:], b[:]) }) {
		all = append(all, t[p]...)
	}
	return all
}

func compareEntries(a, b *entry) int { return compareKeys(a.key(), b.key()) }

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

// upstream reports whether the node reaches the name itself: its peers must know
// such names. What a peer told is not passed on to another one.
func (e *entry) upstream() bool { return e.local > 0 || len(e.records) > 0 }

// record adds one subscription to a connection.
func (d *memoryDatapath) record(p *port, name *dataplanepb.Name, id uint64) {
	e := d.ensure(name)
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

func (d *memoryDatapath) ensure(name *dataplanepb.Name) *entry {
	return d.table.ensure(keyOf(name), func() *entry { return &entry{name: name} })
}

// settle brings the peers up to date after a change of an entry and drops the
// entry when nobody subscribes any more. A dying process tells its peers nothing:
// they see the connection end.
func (d *memoryDatapath) settle(e *entry) {
	now := e.upstream()
	if now != e.shared && d.running {
		e.shared = now
		d.exchange.tell(d, e.name, now)
	}
	if !now {
		d.table.remove(e.key())
	}
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
		e := d.ensure(name)
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

// Table implements Datapath. The network stands still only while the node's own
// entries are read: nodes that are listed do not wait for each other.
func (d *memoryDatapath) Table() []TableEntry {
	d.network.mu.RLock()
	var own []TableEntry
	for _, e := range d.table.sorted() {
		var peers []*port
		if t := d.exchange.find(e.key()); t != nil {
			peers = peersAmong(d.peers, t.by)
		}
		own = append(own, TableEntry{Name: e.name, Connections: e.connections(peers)})
	}
	peers, told := slices.Clone(d.peers), d.exchange.all()
	d.network.mu.RUnlock()
	entries := make([]TableEntry, 0, len(own)+len(told))
	for _, t := range told {
		for len(own) > 0 && compareKeys(keyOf(own[0].Name), t.key()) < 0 {
			entries, own = append(entries, own[0]), own[1:]
		}
		if len(own) > 0 && keyOf(own[0].Name) == t.key() {
			continue
		}
		if by := peersAmong(peers, t.by); len(by) > 0 {
			entries = append(entries, TableEntry{Name: t.name, Connections: (&entry{}).connections(by)})
		}
	}
	return append(entries, own...)
}

// connections lists an entry's connections as nodes do: in-process
// applications, links, peers, applications behind connections.
func (e *entry) connections(peers []*port) []Connection {
	var connections []Connection
	if e.local > 0 {
		connections = append(connections, Connection{Type: local, Direction: outgoing, Config: "{}"})
	}
	add := func(kind controllerpb.ConnectionType) {
		for p := range e.ports() {
			if p.view.Type == kind {
				connections = append(connections, p.view)
			}
		}
	}
	add(remote)
	for _, p := range peers {
		connections = append(connections, p.view)
	}
	add(edge)
	return connections
}
