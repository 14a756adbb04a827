package spt

import (
	"iter"
	"slices"
)

// Graph is an undirected graph of named vertices. It never changes, so it may
// be read by any number of goroutines. The zero value is an empty graph.
type Graph struct {
	names []string         // ascending; a vertex is its place in here, so that order of numbers = order of names
	index map[string]int32 // name to place

	universal   []int32 // the vertices that are adjacent to all others, ascending
	isUniversal []bool

	// Edges between two vertices that are not universal: those of v are
	// targets[offsets[v]:offsets[v+1]], ascending.
	targets []int32
	offsets []int
}

// Len returns the number of vertices.
func (g *Graph) Len() int { return len(g.names) }

// Has reports whether the graph has the vertex.
func (g *Graph) Has(name string) bool {
	_, ok := g.index[name]
	return ok
}

// Adjacent reports whether an edge joins the two vertices. No vertex is
// adjacent to itself or to one that the graph does not have.
func (g *Graph) Adjacent(a, b string) bool {
	x, okX := g.index[a]
	y, okY := g.index[b]
	return okX && okY && x != y && g.adjacent(x, y)
}

// adjacent is Adjacent for two different vertices of the graph.
func (g *Graph) adjacent(x, y int32) bool {
	if g.isUniversal[x] || g.isUniversal[y] {
		return true
	}
	list, want := g.explicit(x), y
	if other := g.explicit(y); len(other) < len(list) {
		list, want = other, x
	}
	_, found := slices.BinarySearch(list, want)
	return found
}

// Degree returns the number of neighbours, 0 for an unknown vertex.
func (g *Graph) Degree(name string) int {
	v, ok := g.index[name]
	switch {
	case !ok:
		return 0
	case g.isUniversal[v]:
		return len(g.names) - 1
	default:
		return len(g.universal) + len(g.explicit(v))
	}
}

// HasEdges reports whether the vertex has a neighbour.
func (g *Graph) HasEdges(name string) bool { return g.Degree(name) > 0 }

// Neighbors yields the neighbours of a vertex in ascending order, none for an
// unknown vertex.
func (g *Graph) Neighbors(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		v, ok := g.index[name]
		if !ok {
			return
		}
		for w := range g.neighborsFrom(v, 0) {
			if !yield(g.names[w]) {
				return
			}
		}
	}
}

// Vertices returns a copy of the vertices' names in ascending order.
func (g *Graph) Vertices() []string { return slices.Clone(g.names) }

// Edges yields each edge once as (a, b) with a < b, in ascending order.
func (g *Graph) Edges() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for v := range int32(len(g.names)) {
			for w := range g.neighborsFrom(v, v+1) {
				if !yield(g.names[v], g.names[w]) {
					return
				}
			}
		}
	}
}

// Simplicial reports whether all neighbours of the vertex are adjacent to each
// other. Such a vertex is never in the middle of a shortest path: adding it or
// taking it away changes nothing in the trees of the others, itself apart. An
// unknown vertex has no neighbours and is simplicial.
//
// The answer is immediate for a universal vertex, and for one that has at most
// one neighbour which is not universal; otherwise the search ends at the first
// two neighbours without an edge.
func (g *Graph) Simplicial(name string) bool {
	v, ok := g.index[name]
	if !ok {
		return true
	}
	if g.isUniversal[v] {
		return len(g.universal) == len(g.names)
	}
	list := g.explicit(v)
	for _, w := range list {
		if len(g.explicit(w)) < len(list) { // w lacks an edge to v or to one of the others
			return false
		}
	}
	for i, w := range list {
		for _, x := range list[i+1:] {
			if !g.adjacent(w, x) {
				return false
			}
		}
	}
	return true
}

// explicit returns the neighbours of a vertex that is not universal, as far as
// they are not universal either.
func (g *Graph) explicit(v int32) []int32 {
	return g.targets[g.offsets[v]:g.offsets[v+1]]
}

// neighborsFrom yields the neighbours of v that are not below low, ascending.
func (g *Graph) neighborsFrom(v, low int32) iter.Seq[int32] {
	if g.isUniversal[v] {
		return func(yield func(int32) bool) {
			for w := low; w < int32(len(g.names)); w++ {
				if w != v && !yield(w) {
					return
				}
			}
		}
	}
	return merge(atLeast(g.universal, low), atLeast(g.explicit(v), low))
}

func atLeast(list []int32, low int32) []int32 {
	at, _ := slices.BinarySearch(list, low)
	return list[at:]
}

// merge yields the elements of two ascending lists without a common element.
func merge(a, b []int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		a, b := a, b
		for len(a) > 0 || len(b) > 0 {
			next := &a
			if len(a) == 0 || len(b) > 0 && b[0] < a[0] {
				next = &b
			}
			if !yield((*next)[0]) {
				return
			}
			*next = (*next)[1:]
		}
	}
}
