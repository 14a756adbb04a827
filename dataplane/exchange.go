package dataplane

import (
	"cmp"
	"slices"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// exchange holds what the nodes of one group have told their peers. Every peer
// knows the same, so it is kept once: a copy in the table of each would grow with
// the nodes of the group times the names of the fleet.
type exchange struct{ table[*told] }

// told is a name that nodes of the group reach themselves.
type told struct {
	name *dataplanepb.Name
	by   []*memoryDatapath // by id
}

func (t *told) key() nameKey { return keyOf(t.name) }

func newExchange() *exchange { return &exchange{make(table[*told])} }

// exchangeOf returns the exchange of a group. A node in none has one of its own.
// mu is held.
func (w *Network) exchangeOf(group string) *exchange {
	if group == "" {
		return newExchange()
	}
	if w.exchanges[group] == nil {
		w.exchanges[group] = newExchange()
	}
	return w.exchanges[group]
}

// tell notes that a node reaches a name itself, or no longer.
func (x *exchange) tell(d *memoryDatapath, name *dataplanepb.Name, present bool) {
	key := keyOf(name)
	if present {
		t := x.ensure(key, func() *told { return &told{name: name} })
		if at, found := t.search(d); !found {
			t.by = slices.Insert(t.by, at, d)
		}
		return
	}
	t := x.find(key)
	if t == nil {
		return
	}
	if at, found := t.search(d); found {
		t.by = slices.Delete(t.by, at, at+1)
	}
	if len(t.by) == 0 {
		x.remove(key)
	}
}

func (t *told) search(d *memoryDatapath) (at int, found bool) {
	return slices.BinarySearchFunc(t.by, d, func(a, b *memoryDatapath) int { return cmp.Compare(a.fullID, b.fullID) })
}

// toldNames returns what a node has told its peers, in order. mu is held.
func (d *memoryDatapath) toldNames() []*dataplanepb.Name {
	if !d.running {
		return d.lastTold
	}
	var names []*dataplanepb.Name
	for _, e := range d.table.sorted() {
		if e.shared {
			names = append(names, e.name)
		}
	}
	return names
}

// peersAmong returns the connections to those of the nodes that are peers, by id.
func (d *memoryDatapath) peersAmong(nodes []*memoryDatapath) []*port {
	var ports []*port
	for _, p := range d.peers {
		if slices.Contains(nodes, p.other.owner) {
			ports = append(ports, p)
		}
	}
	return ports
}
