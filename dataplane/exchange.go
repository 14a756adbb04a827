package dataplane

import (
	"cmp"
	"slices"
	"sync/atomic"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// exchange holds what the nodes of one group have told their peers. Every peer
// knows the same, so it is kept once: a copy in the table of each would grow with
// the nodes of the group times the names of the fleet.
type exchange struct {
	table[*told]
	listed atomic.Pointer[[]told] // nil: to be made
}

// told is a name that nodes of the group reach themselves.
type told struct {
	name *dataplanepb.Name
	by   []*memoryDatapath // by id; never written to
}

func (t *told) key() nameKey { return keyOf(t.name) }

func newExchange() *exchange { return &exchange{table: make(table[*told])} }

// all returns all names in order. mu is held; what is returned needs no lock.
func (x *exchange) all() []told {
	if listed := x.listed.Load(); listed != nil {
		return *listed
	}
	all := make([]told, 0, len(x.table))
	for _, t := range x.sorted() {
		all = append(all, *t)
	}
	x.listed.Store(&all)
	return all
}

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
	x.listed.Store(nil)
	if present {
		t := x.ensure(key, func() *told { return &told{name: name} })
		if at, found := t.search(d); !found {
			t.by = slices.Insert(slices.Clone(t.by), at, d)
		}
		return
	}
	t := x.find(key)
	if t == nil {
		return
	}
	if at, found := t.search(d); found {
		t.by = slices.Delete(slices.Clone(t.by), at, at+1)
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
func peersAmong(peers []*port, nodes []*memoryDatapath) []*port {
	var ports []*port
	for _, p := range peers {
		if slices.Contains(nodes, p.other.owner) {
			ports = append(ports, p)
		}
	}
	return ports
}
