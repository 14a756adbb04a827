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
// announcer, and from there down to the others (protocol N3).
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
	joined := newUnion()
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
			members = f.addTree(segment, members, joined)
		}
	}
	for _, hops := range f.hops {
		slices.SortFunc(hops, func(a, b hop) int { return strings.Compare(a.peer, b.peer) })
	}
	return f
}

// addTree adds the hops of the part of a segment in which the first of the
// announcing members is, and returns the members of the other parts.
func (f *forest) addTree(segment segmentGraph, members []string, joined *union) []string {
	tree, ok := segment.graph.Tree(members[0])
	if !ok {
		return nil
	}
	var reached, apart []string
	for _, member := range members {
		if tree.Reached(member) {
			reached = append(reached, member)
		} else {
			apart = append(apart, member)
		}
	}
	below := map[string][]string{} // announcing groups at or under a group
	for _, member := range reached {
		for _, group := range tree.Path(member) {
			below[group] = append(below[group], member)
		}
	}
	for group := range tree.Reach() {
		parent, ok := tree.Parent(group)
		if !ok || !joined.add(group, parent) {
			continue
		}
		under := below[group]
		above := reached
		if len(under) > 0 {
			above = slices.DeleteFunc(slices.Clone(reached), func(member string) bool { return slices.Contains(under, member) })
			f.addHop(parent, group, under)
		}
		f.addHop(group, parent, above)
	}
	return apart
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
// whose groups are connected already is left out, unless it is in use itself.
type union struct {
	parent map[string]string
	edges  map[[2]string]struct{}
}

func newUnion() *union {
	return &union{parent: map[string]string{}, edges: map[[2]string]struct{}{}}
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

// add reports whether the edge may be used.
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
	return true
}
