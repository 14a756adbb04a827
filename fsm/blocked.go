package fsm

import (
	"iter"

	"github.com/slim-cp/slim-cp/spt"
)

// A pair of groups that the topology links is blocked while no message can pass
// between them, and for longer than a reconnect takes: nobody can be dialled on
// either side, or every way to make their link was tried in vain. Names are led
// around it where another path exists (protocol N4), for it would swallow all
// that lies behind it. The pair stays allowed: its link goes on being tried.

// blockedPairs is a set of pairs of groups. Each is in it both ways round, so that
// those of one group are neighbours. Views and graphs share it, so it is not
// changed once they have it.
type blockedPairs struct{ table[groupLinkKey] }

func newBlockedPairs() blockedPairs { return blockedPairs{newTable(lessGroupLink)} }

func (b blockedPairs) copy() blockedPairs { return blockedPairs{b.table.copy()} }

func (b blockedPairs) has(x, y string) bool { return b.table.has(groupLinkKey{group: x, peer: y}) }

// of yields the groups from which a group is cut off, in order.
func (b blockedPairs) of(group string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range b.from(groupLinkKey{group: group}) {
			if key.group != group || !yield(key.peer) {
				return
			}
		}
	}
}

// put makes a pair be in the set or not.
func (b blockedPairs) put(x, y string, blocked bool) {
	for _, key := range []groupLinkKey{{group: x, peer: y}, {group: y, peer: x}} {
		if blocked {
			b.set(key)
		} else {
			b.delete(key)
		}
	}
}

// Blocked reports whether names are led around two groups that the topology links.
func (t *tables) Blocked(a, b string) bool { return t.blocked.has(a, b) }

// unusable reports whether two groups that the topology links are blocked. Nodes
// that come and go do not change it: a group can be dialled as long as a node
// that has not departed has an external endpoint.
func (t *tables) unusable(a, b string) bool {
	if link, ok := t.LinkBetween(a, b); ok {
		return link.Exhausted
	}
	return !t.dialable(a) && !t.dialable(b)
}

func (t *tables) dialable(group string) bool {
	record, ok := t.Group(group)
	return ok && record.Dialable > 0
}

// allBlocked finds the blocked pairs of the present topology. It costs the links
// and what is allowed to groups that nobody can dial.
func (t *tables) allBlocked() blockedPairs {
	found := newBlockedPairs()
	for pair := range t.pairs.all() {
		if link, ok := t.Link(pair.linkID); ok && link.Exhausted && t.graph.allowed(pair.a, pair.b) {
			found.put(pair.a, pair.b, true)
		}
	}
	for group := range t.groups.all() {
		if group.Present == 0 || group.Dialable > 0 {
			continue
		}
		for _, peer := range t.graph.neighbors(group.Name) {
			if t.unusable(group.Name, peer) {
				found.put(group.Name, peer, true)
			}
		}
	}
	return found
}

// blockedChanges collects what a command did that may block pairs or free them.
type blockedChanges struct {
	all    bool     // the topology changed
	groups []string // came, went, or can be dialled now or no longer
	pairs  []pairKey
	moved  []movedGroup
}

// movedGroup is a group that came or went. before is the topology that it was
// part of, nil if it came.
type movedGroup struct {
	group  string
	before *graphs
}

// settleBlocked brings the blocked pairs up to date after a command, and finds
// out whether a path between two groups that were there before may differ.
func (a *applier) settleBlocked() {
	changes := a.blockedChanges
	switch {
	case changes.all:
		a.blocked = a.allBlocked()
		a.graph = a.graph.avoiding(a.blocked)
		return // topologyChanged gave the trees a new revision
	case len(changes.groups)+len(changes.pairs)+len(changes.moved) == 0:
		return
	}
	changed := a.blockedBeside(changes)
	if len(changed) > 0 {
		a.graph = a.graph.avoiding(a.blocked)
	}
	if a.pathsDiffer(changed, changes.moved) {
		a.treesChanged()
	}
}

// blockedBeside updates the pairs that changes concern and returns those that
// are blocked now and were not, or the other way round.
func (a *applier) blockedBeside(changes blockedChanges) []pairKey {
	var changed []pairKey
	update := func(x, y string) {
		blocked := a.unusable(x, y) && a.graph.allowed(x, y)
		if a.blocked.has(x, y) == blocked {
			return
		}
		if len(changed) == 0 {
			a.blocked = a.blocked.copy()
		}
		a.blocked.put(x, y, blocked)
		changed = append(changed, pairOf(x, y))
	}
	for _, group := range changes.groups {
		var peers []string
		for peer := range a.blocked.of(group) {
			peers = append(peers, peer)
		}
		if !a.dialable(group) {
			peers = append(peers, a.graph.neighbors(group)...)
		}
		for _, peer := range peers {
			update(group, peer)
		}
	}
	for _, pair := range changes.pairs {
		update(pair.a, pair.b)
	}
	return changed
}

// pathsDiffer reports whether a path may differ between two groups that are
// there before and after. A pair of a group that came or went is no matter of
// others if no path of theirs leads through the group.
func (a *applier) pathsDiffer(changed []pairKey, moved []movedGroup) bool {
	came := map[string]bool{} // or went; looked up only
	for _, m := range moved {
		came[m.group] = true
		graph := m.before
		if graph == nil {
			graph = a.graph
		}
		if !graph.keepsPaths(m.group) {
			return true
		}
	}
	for _, pair := range changed {
		if !came[pair.a] && !came[pair.b] {
			return true
		}
	}
	return false
}

// WayAround reports whether, in every segment that links two groups, a path of
// other pairs joins them of which none is blocked.
func (v *View) WayAround(a, b string) bool {
	found := false
	for _, segment := range v.graph.segments {
		if !segment.graph.Adjacent(a, b) {
			continue
		}
		if found = joinedOtherwise(segment.usable(), a, b); !found {
			return false
		}
	}
	return found
}

// joinedOtherwise reports whether a path joins two groups beside their own edge.
func joinedOtherwise(graph *spt.Graph, a, b string) bool {
	seen := map[string]bool{a: true}
	for queue := []string{a}; len(queue) > 0; queue = queue[1:] {
		for peer := range graph.Neighbors(queue[0]) {
			if seen[peer] || queue[0] == a && peer == b {
				continue
			}
			if peer == b {
				return true
			}
			seen[peer] = true
			queue = append(queue, peer)
		}
	}
	return false
}

// usableGraph returns a segment's graph without the blocked pairs; the graph
// itself if it has none. Groups without a blocked pair that are linked with all
// others stay so by a flag: a mesh of which one pair is blocked costs its groups
// and not its edges.
func usableGraph(graph *spt.Graph, blocked blockedPairs) *spt.Graph {
	if blocked.len() == 0 {
		return graph
	}
	vertices := graph.Vertices()
	touched := map[string]bool{}
	for _, group := range vertices {
		for peer := range blocked.of(group) {
			if graph.Adjacent(group, peer) {
				touched[group] = true
				break
			}
		}
	}
	if len(touched) == 0 {
		return graph
	}
	universal := func(group string) bool { return !touched[group] && graph.Degree(group) == len(vertices)-1 }
	builder := spt.NewBuilder()
	for _, group := range vertices {
		if universal(group) {
			builder.AddUniversal(group)
			continue
		}
		builder.AddVertex(group)
		for peer := range graph.Neighbors(group) {
			if group < peer && !universal(peer) && !blocked.has(group, peer) {
				builder.AddEdge(group, peer)
			}
		}
	}
	return builder.Build()
}

// pathTree is a tree of paths to one root.
type pathTree interface {
	// Reach yields the groups of the tree, each after its parent.
	Reach() iter.Seq[string]
	Parent(group string) (string, bool)
	// Path returns the groups from one up to the root, both included.
	Path(group string) []string
	Reached(group string) bool
}

// usableTree returns the tree to a root that spans all groups which the graph
// joins with it. Groups between which a path without blocked pairs exists are
// joined by such a path; a blocked pair is in the tree only where the configured
// tree leads over it to groups that nothing else joins, so that they have a
// route that can be explained and that works as soon as the pair does.
func usableTree(graph, usable *spt.Graph, root string) (pathTree, bool) {
	configured, ok := graph.Tree(root)
	if !ok || usable == graph {
		return configured, ok
	}
	t := &joinedTree{parents: map[string]string{}}
	t.join(usable, root, "")
	for group := range configured.Reach() {
		if !t.Reached(group) {
			parent, _ := configured.Parent(group) // it was yielded before, so it is joined
			t.join(usable, group, parent)
		}
	}
	return t, true
}

// joinedTree is made of shortest path trees of parts without blocked pairs.
type joinedTree struct {
	parents map[string]string // of every group; empty for the root
	order   []string
}

// join adds the part in which a group is, below a parent in another one.
func (t *joinedTree) join(usable *spt.Graph, entry, parent string) {
	t.add(entry, parent)
	if !usable.HasEdges(entry) {
		return
	}
	tree, ok := usable.Tree(entry)
	if !ok {
		return
	}
	for group := range tree.Reach() {
		if above, ok := tree.Parent(group); ok {
			t.add(group, above)
		}
	}
}

func (t *joinedTree) add(group, parent string) {
	t.parents[group] = parent
	t.order = append(t.order, group)
}

// Reach implements pathTree.
func (t *joinedTree) Reach() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, group := range t.order {
			if !yield(group) {
				return
			}
		}
	}
}

// Parent implements pathTree.
func (t *joinedTree) Parent(group string) (string, bool) {
	parent := t.parents[group]
	return parent, parent != ""
}

// Path implements pathTree.
func (t *joinedTree) Path(group string) []string {
	if !t.Reached(group) {
		return nil
	}
	path := []string{group}
	for parent, ok := t.Parent(group); ok; parent, ok = t.Parent(parent) {
		path = append(path, parent)
	}
	return path
}

// Reached implements pathTree.
func (t *joinedTree) Reached(group string) bool {
	_, ok := t.parents[group]
	return ok
}
