package spt

import (
	"maps"
	"slices"
)

// Builder collects the vertices and edges of a Graph, in any order. It is not
// safe for concurrent use.
type Builder struct {
	ids       map[string]int32 // name to a number in order of arrival
	edges     []edge
	universal map[int32]struct{}
}

type edge struct{ a, b int32 }

// NewBuilder returns a builder of an empty graph.
func NewBuilder() *Builder {
	return &Builder{ids: make(map[string]int32), universal: make(map[int32]struct{})}
}

// AddVertex adds a vertex. A vertex that exists is left as it is.
func (b *Builder) AddVertex(name string) { b.id(name) }

// AddEdge adds an undirected edge and those of its ends that are missing. An
// edge that exists is left as it is, and a vertex gets no edge to itself.
func (b *Builder) AddEdge(from, to string) {
	f, t := b.id(from), b.id(to)
	if f != t {
		b.edges = append(b.edges, edge{f, t})
	}
}

// AddUniversal adds a vertex, if it is missing, and makes it adjacent to every
// other vertex, also to those that are added later. This is the form for a
// group whose neighbours are "*": it costs one flag and not an edge per group.
func (b *Builder) AddUniversal(name string) {
	b.universal[b.id(name)] = struct{}{}
}

func (b *Builder) id(name string) int32 {
	id, ok := b.ids[name]
	if !ok {
		id = int32(len(b.ids))
		b.ids[name] = id
	}
	return id
}

// Build returns the graph of what was added so far. The builder may be used on.
func (b *Builder) Build() *Graph {
	g := &Graph{names: slices.Sorted(maps.Keys(b.ids))}
	g.index = make(map[string]int32, len(g.names))
	rank := make([]int32, len(g.names)) // number in order of arrival to rank
	for i, name := range g.names {
		g.index[name] = int32(i)
		rank[b.ids[name]] = int32(i)
	}
	g.isUniversal = make([]bool, len(g.names))
	for id := range b.universal { // any order: each sets a place of its own
		g.isUniversal[rank[id]] = true
	}
	explicit := b.adjacency(rank, g.isUniversal)
	g.promote(explicit)
	g.pack(explicit)
	return g
}

// adjacency lists for each vertex its explicit neighbours, ascending and
// without duplicates. Edges at a universal vertex are implied and left out.
func (b *Builder) adjacency(rank []int32, universal []bool) [][]int32 {
	lists := make([][]int32, len(rank))
	for _, e := range b.edges {
		x, y := rank[e.a], rank[e.b]
		if universal[x] || universal[y] {
			continue
		}
		lists[x] = append(lists[x], y)
		lists[y] = append(lists[y], x)
	}
	for i, list := range lists {
		slices.Sort(list)
		lists[i] = slices.Compact(list)
	}
	return lists
}

// promote marks the vertices as universal whose explicit edges reach everybody,
// so that a graph has one form however it was described.
func (g *Graph) promote(explicit [][]int32) {
	declared := 0
	for _, universal := range g.isUniversal {
		if universal {
			declared++
		}
	}
	for v, list := range explicit {
		if declared+len(list) == len(g.names)-1 && !g.isUniversal[v] {
			g.isUniversal[v] = true
		}
	}
	for v, universal := range g.isUniversal {
		if universal {
			g.universal = append(g.universal, int32(v))
		}
	}
}

// pack copies the edges between vertices that are not universal into one array.
func (g *Graph) pack(explicit [][]int32) {
	keep := func(v int, w int32) bool { return !g.isUniversal[v] && !g.isUniversal[w] }
	total := 0
	for v, list := range explicit {
		for _, w := range list {
			if keep(v, w) {
				total++
			}
		}
	}
	g.targets = make([]int32, 0, total)
	g.offsets = make([]int, 1, len(explicit)+1)
	for v, list := range explicit {
		for _, w := range list {
			if keep(v, w) {
				g.targets = append(g.targets, w)
			}
		}
		g.offsets = append(g.offsets, len(g.targets))
	}
}
