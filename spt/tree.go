package spt

import (
	"iter"
	"slices"
)

// unreached marks a vertex without a depth or a parent.
const unreached = -1

// Tree holds the shortest paths from all reachable vertices of a graph to one
// root. It never changes, so it may be read by any number of goroutines. It
// keeps its graph alive.
type Tree struct {
	graph  *Graph
	root   int32
	parent []int32 // per vertex; the root is its own parent
	order  []int32 // reached vertices by depth, then by name
}

// Tree returns the tree with the given root, false if the graph does not have
// that vertex. A vertex's parent is the smallest name among its neighbours that
// are one step nearer the root (protocol N4).
func (g *Graph) Tree(root string) (*Tree, bool) {
	r, ok := g.index[root]
	if !ok {
		return nil, false
	}
	depth, reached := g.search(r)
	t := &Tree{graph: g, root: r, parent: make([]int32, len(depth))}
	for v := range depth {
		t.parent[v] = g.parentOf(int32(v), r, depth)
	}
	sortLevels(reached, depth)
	t.order = reached
	return t, true
}

// search returns each vertex's distance from the root, and the vertices that
// have one in the order in which they were found, level by level. It stops in
// the middle of a level once everybody is reached: parents are chosen from the
// distances afterwards, so no smaller name is missed.
func (g *Graph) search(root int32) (depth, reached []int32) {
	depth = make([]int32, len(g.names))
	for v := range depth {
		depth[v] = unreached
	}
	depth[root] = 0
	reached = make([]int32, 1, len(g.names))
	reached[0] = root
	visit := func(w, d int32) {
		if depth[w] == unreached {
			depth[w] = d
			reached = append(reached, w)
		}
	}
	for head := 0; head < len(reached) && len(reached) < len(g.names); head++ {
		v := reached[head]
		d := depth[v] + 1
		if g.isUniversal[v] {
			for w := range int32(len(g.names)) {
				visit(w, d)
			}
			break
		}
		if v == root { // the universal vertices are neighbours of every root
			for _, w := range g.universal {
				visit(w, d)
			}
		}
		for _, w := range g.explicit(v) {
			visit(w, d)
		}
	}
	return depth, reached
}

// parentOf returns the smallest neighbour of v that is one step nearer the root.
func (g *Graph) parentOf(v, root int32, depth []int32) int32 {
	switch depth[v] {
	case unreached:
		return unreached
	case 0, 1:
		return root
	}
	// v is two steps away or more, so neither v nor the root is universal, and
	// all universal vertices, if there are any, are at depth one and v at two.
	limit := int32(len(depth))
	if len(g.universal) > 0 {
		limit = g.universal[0]
	}
	for _, w := range g.explicit(v) {
		if w > limit {
			break
		}
		if depth[w] == depth[v]-1 {
			return w
		}
	}
	return limit
}

// sortLevels puts vertices that stand in order of depth into order of name
// within each depth. It is a counting sort, linear in the size of the graph.
func sortLevels(reached, depth []int32) {
	deepest := depth[reached[len(reached)-1]]
	next := make([]int32, deepest+1) // per depth the place of its next vertex
	for i, v := range slices.Backward(reached) {
		next[depth[v]] = int32(i)
	}
	for v, d := range depth {
		if d != unreached {
			reached[next[d]] = int32(v)
			next[d]++
		}
	}
}

// Root returns the name of the root.
func (t *Tree) Root() string { return t.graph.names[t.root] }

// Parent returns the next vertex on the way to the root. It is false for the
// root itself and for a vertex without a path to it.
func (t *Tree) Parent(v string) (string, bool) {
	at, ok := t.at(v)
	if !ok || at == t.root {
		return "", false
	}
	return t.graph.names[t.parent[at]], true
}

// Reached reports whether v is the root or has a path to it.
func (t *Tree) Reached(v string) bool {
	_, ok := t.at(v)
	return ok
}

// Depth returns the number of edges between v and the root, false if there is
// no path. It walks that path.
func (t *Tree) Depth(v string) (int, bool) {
	at, ok := t.at(v)
	if !ok {
		return 0, false
	}
	depth := 0
	for ; at != t.root; at = t.parent[at] {
		depth++
	}
	return depth, true
}

// Reach yields the reached vertices by depth, then by name: the root first.
func (t *Tree) Reach() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range t.order {
			if !yield(t.graph.names[v]) {
				return
			}
		}
	}
}

// Path returns the vertices from v up to the root, both included, nil if there
// is no path.
func (t *Tree) Path(v string) []string {
	at, ok := t.at(v)
	if !ok {
		return nil
	}
	path := []string{t.graph.names[at]}
	for at != t.root {
		at = t.parent[at]
		path = append(path, t.graph.names[at])
	}
	return path
}

// at returns the number of a reached vertex.
func (t *Tree) at(v string) (int32, bool) {
	at, ok := t.graph.index[v]
	return at, ok && t.parent[at] != unreached
}
