package fsm

import (
	"slices"
	"strings"
)

// maxForests bounds the cache of forests. A fleet needs one for each list of
// groups that announce a name together, mostly one a group.
const maxForests = 4096

// forest says where a name goes, for all names that the same groups announce in
// the same order of age: in each segment up the shortest path tree of its oldest
// announcer, and from there down to the others (protocol N3). Blocked pairs are in
// it only where nothing else joins the groups.
type forest struct {
	hops map[string][]hop // by group, each list by peer
}

// hop is one step: the group forwards the name over its link with the peer.
type hop struct {
	peer string
	// groups are the announcing groups that are reached over it.
	groups []string
}

// forest returns the forest of an ordered list of announcing groups.
func (g *graphs) forest(groups []string) *forest {
	if len(groups) == 0 {
		return &forest{}
	}
	key := strings.Join(groups, "\x00")
	g.mu.Lock()
	defer g.mu.Unlock()
	if cached, ok := g.forests[key]; ok {
		return cached
	}
	if len(g.forests) >= maxForests {
		clear(g.forests)
	}
	built := g.buildForest(groups)
	g.forests[key] = built
	return built
}

func (g *graphs) buildForest(groups []string) *forest {
	f := &forest{hops: map[string][]hop{}}
	var parts []part
	for _, segment := range g.segments {
		var members []string
		for _, group := range groups {
			if segment.graph.HasEdges(group) {
				members = append(members, group)
			}
		}
		// A segment may fall apart into groups that cannot reach each other: each
		// part has a tree of its own.
		for len(members) > 0 {
			var p part
			p, members = partOf(segment, members)
			parts = append(parts, p)
		}
	}
	f.addParts(parts, g.blocked)
	for _, hops := range f.hops { // any order: each list is sorted by itself
		slices.SortFunc(hops, func(a, b hop) int { return strings.Compare(a.peer, b.peer) })
	}
	return f
}

// addParts adds the hops of all parts. The edges that are usable come first: a
// blocked pair of one segment must not leave out a path of another one.
func (f *forest) addParts(parts []part, blocked blockedPairs) {
	joined := newUnion()
	whole := make([]bool, len(parts))
	for i, p := range parts {
		whole[i] = joined.addAll(p.tree, func(a, b string) bool { return !blocked.has(a, b) })
	}
	if blocked.len() > 0 {
		for i, p := range parts {
			whole[i] = joined.addAll(p.tree, blocked.has) && whole[i]
		}
	}
	for i, p := range parts {
		if whole[i] {
			f.addTree(p)
		}
	}
	for i, p := range parts {
		if !whole[i] {
			f.addDetours(p, joined)
		}
	}
}

// part is a tree of a segment with the announcing groups in it, the oldest
// first; it is the root.
type part struct {
	tree    pathTree
	members []string
}

// partOf returns the part in which the first member is, and the members of the
// other parts.
func partOf(segment segmentGraph, members []string) (part, []string) {
	tree, ok := usableTree(segment.graph, segment.usable(), members[0])
	if !ok {
		return part{}, nil
	}
	p := part{tree: tree}
	var others []string
	for _, member := range members {
		if tree.Reached(member) {
			p.members = append(p.members, member)
		} else {
			others = append(others, member)
		}
	}
	return p, others
}

// addTree adds the hops of a part all of whose edges are used: up to the root
// everywhere, and down towards the other announcing groups.
func (f *forest) addTree(p part) {
	below := map[string][]string{} // announcing groups at or under a group
	for _, member := range p.members {
		for _, group := range p.tree.Path(member) {
			below[group] = append(below[group], member)
		}
	}
	for group := range p.tree.Reach() {
		parent, ok := p.tree.Parent(group)
		if !ok {
			continue
		}
		under := below[group]
		above := p.members
		if len(under) > 0 {
			above = slices.DeleteFunc(slices.Clone(p.members), func(member string) bool { return slices.Contains(under, member) })
			f.addHop(parent, group, under)
		}
		f.addHop(group, parent, above)
	}
}

// addDetours adds the hops of a part some of whose edges were left out, because
// other segments connect their groups for this name already: each group goes to
// each announcing one over the edges that are used.
func (f *forest) addDetours(p part, joined *union) {
	for _, member := range p.members {
		towards := joined.towards(member)
		for group := range p.tree.Reach() {
			for at := group; at != member; at = towards[at] {
				f.addHop(at, towards[at], []string{member})
			}
		}
	}
}

func (f *forest) addHop(from, to string, groups []string) {
	for i, existing := range f.hops[from] {
		if existing.peer == to {
			merged := append(slices.Clone(existing.groups), groups...)
			slices.Sort(merged)
			f.hops[from][i].groups = slices.Compact(merged)
			return
		}
	}
	f.hops[from] = append(f.hops[from], hop{peer: to, groups: groups})
}

// hop returns the step from a group to a peer.
func (f *forest) hop(group, peer string) (hop, bool) {
	hops := f.hops[group]
	i, ok := slices.BinarySearchFunc(hops, peer, func(h hop, peer string) int { return strings.Compare(h.peer, peer) })
	if !ok {
		return hop{}, false
	}
	return hops[i], true
}

// union keeps the edges of one name a forest over all its segments: an edge
// whose groups are connected already is left out, unless it is in use itself
// (protocol N3).
type union struct {
	parent map[string]string
	edges  map[[2]string]struct{}
	near   map[string][]string // by the used edges
}

func newUnion() *union {
	return &union{parent: map[string]string{}, edges: map[[2]string]struct{}{}, near: map[string][]string{}}
}

func (u *union) root(group string) string {
	for {
		parent, ok := u.parent[group]
		if !ok {
			return group
		}
		if grand, ok := u.parent[parent]; ok {
			u.parent[group] = grand
		}
		group = parent
	}
}

// addAll uses the edges of a tree that are wanted, breadth first, and reports
// whether all of them are used.
func (u *union) addAll(tree pathTree, wanted func(a, b string) bool) bool {
	all := true
	for group := range tree.Reach() {
		if parent, ok := tree.Parent(group); ok && wanted(group, parent) && !u.add(group, parent) {
			all = false
		}
	}
	return all
}

// add reports whether the edge is used.
func (u *union) add(a, b string) bool {
	edge := [2]string{min(a, b), max(a, b)}
	if _, used := u.edges[edge]; used {
		return true
	}
	rootA, rootB := u.root(a), u.root(b)
	if rootA == rootB {
		return false
	}
	u.parent[rootA] = rootB
	u.edges[edge] = struct{}{}
	u.near[a] = append(u.near[a], b)
	u.near[b] = append(u.near[b], a)
	return true
}

// towards returns for every connected group the next one on its way to a goal.
func (u *union) towards(goal string) map[string]string {
	next := map[string]string{goal: goal}
	for queue := []string{goal}; len(queue) > 0; queue = queue[1:] {
		for _, group := range u.near[queue[0]] {
			if _, known := next[group]; !known {
				next[group] = queue[0]
				queue = append(queue, group)
			}
		}
	}
	return next
}
