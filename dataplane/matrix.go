package dataplane

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// Matrix says, for every group that has a running node and every name that an
// application subscribes to, where a message from that group arrives.
type Matrix struct {
	Groups []string // in order
	Cells  []Cell   // by name, then sending group
}

// Cell is one sending group and one name.
type Cell struct {
	From       string // sending group
	Name       string // a/b/c/UUID
	Announcers []Arrivals
	Looped     []string // senders whose message went round in circles
}

// Arrivals counts, at one node that has an application with the name, the
// arrivals of one message from each sender.
type Arrivals struct {
	Group, Node string // of the announcer; Node is the full id
	Fewest      int
	FewestFrom  string // a sender with that many
	Most        int
	MostFrom    string
}

// Senders says which nodes of a group send in a Matrix.
type Senders int

// The choices of Senders.
const (
	EveryNode Senders = iota
	OneNode           // the first one by id
)

// Matrix sends a message from every node to every announced name.
func (w *Network) Matrix() Matrix {
	return w.MatrixFrom(EveryNode)
}

// MatrixFrom is Matrix with a choice of the senders. Messages to one name see
// the tables as they are at one moment; those to different names may not.
func (w *Network) MatrixFrom(senders Senders) Matrix {
	w.mu.RLock()
	groups := w.senders(senders)
	announcements := w.announced()
	w.mu.RUnlock()
	matrix := Matrix{Groups: slices.Sorted(maps.Keys(groups))}
	cells := make([][]Cell, len(announcements)) // each by one of the workers
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var c courier
			for at := next.Add(1) - 1; at < int64(len(cells)); at = next.Add(1) - 1 {
				cells[at] = w.measureAll(&c, announcements[at], matrix.Groups, groups)
			}
		})
	}
	workers.Wait()
	matrix.Cells = slices.Concat(cells...)
	return matrix
}

// measureAll sends messages to one name from all groups.
func (w *Network) measureAll(c *courier, to *announcement, groups []string, senders map[string][]*memoryDatapath) []Cell {
	w.mu.RLock()
	defer w.mu.RUnlock()
	announcers := to.present()
	if len(announcers) == 0 {
		return nil
	}
	cells := make([]Cell, 0, len(groups))
	for _, group := range groups {
		cells = append(cells, c.measure(group, senders[group], to, announcers))
	}
	return cells
}

// senders returns the running nodes by group, each in order. mu is held.
func (w *Network) senders(choice Senders) map[string][]*memoryDatapath {
	groups := make(map[string][]*memoryDatapath)
	for _, id := range slices.Sorted(maps.Keys(w.datapaths)) {
		d := w.datapaths[id]
		if !d.running || choice == OneNode && len(groups[d.group]) > 0 {
			continue
		}
		groups[d.group] = append(groups[d.group], d)
	}
	return groups
}

// announcement is a name and the nodes with an application of that name.
type announcement struct {
	name *dataplanepb.Name
	text string
	by   []*memoryDatapath // in order
}

// announced returns all names that applications subscribe to, in the order of
// their text. mu is held.
func (w *Network) announced() []*announcement {
	names := make(map[nameKey]*announcement)
	for _, id := range slices.Sorted(maps.Keys(w.datapaths)) {
		d := w.datapaths[id]
		if !d.running {
			continue
		}
		for _, instances := range d.table {
			for _, e := range instances {
				if e.apps() == 0 {
					continue
				}
				key := keyOf(e.name)
				if names[key] == nil {
					names[key] = &announcement{name: e.name, text: FormatName(e.name)}
				}
				names[key].by = append(names[key].by, d)
			}
		}
	}
	return slices.SortedFunc(maps.Values(names), func(a, b *announcement) int {
		return cmp.Or(cmp.Compare(a.text, b.text), compareKeys(keyOf(a.name), keyOf(b.name)))
	})
}

// present returns those of the nodes that run and have the application still.
// mu is held.
func (a *announcement) present() []*memoryDatapath {
	var present []*memoryDatapath
	for _, d := range a.by {
		if e := d.table.find(keyOf(a.name)); d.running && e != nil && e.apps() > 0 {
			present = append(present, d)
		}
	}
	return present
}

// measure sends one message from each sender that still runs.
func (c *courier) measure(group string, senders []*memoryDatapath, to *announcement, announcers []*memoryDatapath) Cell {
	cell := Cell{From: group, Name: to.text}
	key := keyOf(to.name)
	for _, d := range announcers {
		cell.Announcers = append(cell.Announcers, Arrivals{Group: d.group, Node: d.fullID})
	}
	first := true
	for _, sender := range senders {
		if !sender.running {
			continue
		}
		delivery := c.deliver(sender, key)
		if delivery.Looped {
			cell.Looped = append(cell.Looped, sender.fullID)
		}
		for i := range cell.Announcers {
			arrivals := &cell.Announcers[i]
			count := delivery.Arrived[arrivals.Node]
			if first || count < arrivals.Fewest {
				arrivals.Fewest, arrivals.FewestFrom = count, sender.fullID
			}
			if first || count > arrivals.Most {
				arrivals.Most, arrivals.MostFrom = count, sender.fullID
			}
		}
		first = false
	}
	return cell
}

// DefectKind says what is wrong with a delivery.
type DefectKind string

// The kinds of defects.
const (
	Missing   DefectKind = "missing"
	Duplicate DefectKind = "duplicate"
	Leak      DefectKind = "leak"
	Loop      DefectKind = "loop"
)

// Defect is one delivery that is not as it must be.
type Defect struct {
	Kind   DefectKind
	Sender string // full node id
	Name   string
	Node   string // where the message must, or must not, arrive; empty for a loop
	Count  int    // arrivals there
}

// String says it in words.
func (d Defect) String() string {
	switch d.Kind {
	case Missing:
		return fmt.Sprintf("missing: a message from %s to %s does not arrive at %s", d.Sender, d.Name, d.Node)
	case Duplicate:
		return fmt.Sprintf("duplicate: a message from %s to %s arrives %d times at %s", d.Sender, d.Name, d.Count, d.Node)
	case Leak:
		return fmt.Sprintf("leak: a message from %s to %s arrives at %s, which must not get it", d.Sender, d.Name, d.Node)
	default:
		return fmt.Sprintf("loop: a message from %s to %s is still under way after %d hops or %d copies", d.Sender, d.Name, hopLimit, copyLimit)
	}
}

// Complete returns what is wrong with the matrix: every name must be reached
// exactly once from each group that is allowed to reach the announcer's group,
// never from another one. A group always reaches itself.
func (m Matrix) Complete(allowed func(fromGroup, toGroup string) bool) []Defect {
	var defects []Defect
	for _, cell := range m.Cells {
		for _, sender := range cell.Looped {
			defects = append(defects, Defect{Kind: Loop, Sender: sender, Name: cell.Name})
		}
		for _, a := range cell.Announcers {
			reachable := cell.From == a.Group || allowed(cell.From, a.Group)
			switch {
			case a.FewestFrom == "":
				continue // no sender of the group was left
			case reachable && a.Fewest == 0:
				defects = append(defects, Defect{Missing, a.FewestFrom, cell.Name, a.Node, 0})
			case reachable && a.Most > 1:
				defects = append(defects, Defect{Duplicate, a.MostFrom, cell.Name, a.Node, a.Most})
			case !reachable && a.Most > 0:
				defects = append(defects, Defect{Leak, a.MostFrom, cell.Name, a.Node, a.Most})
			}
		}
	}
	return defects
}

// Everything allows every group to reach every other one.
func Everything(string, string) bool { return true }

// Leftover is a route over a link for a name that no application has any more.
type Leftover struct {
	Node string // full id
	Name string
}

// Leftovers lists the routes over links for names that no running node announces.
func (w *Network) Leftovers() []Leftover {
	w.mu.RLock()
	defer w.mu.RUnlock()
	alive := make(map[nameKey]bool)
	for _, announcement := range w.announced() {
		alive[keyOf(announcement.name)] = true
	}
	var left []Leftover
	for _, id := range slices.Sorted(maps.Keys(w.datapaths)) {
		d := w.datapaths[id]
		if !d.running {
			continue
		}
		for _, e := range d.table.sorted() {
			if e.reachedOver(remote) && !alive[keyOf(e.name)] {
				left = append(left, Leftover{Node: id, Name: FormatName(e.name)})
			}
		}
	}
	return left
}
