package spt_test

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/spt"
)

// description is a graph as a caller gives it: steps in some order.
type description struct {
	vertices  []string
	edges     [][2]string
	universal []string
}

func (d description) build() *spt.Graph {
	b := spt.NewBuilder()
	for _, v := range d.vertices {
		b.AddVertex(v)
	}
	for _, e := range d.edges {
		b.AddEdge(e[0], e[1])
	}
	for _, v := range d.universal {
		b.AddUniversal(v)
	}
	return b.Build()
}

// name makes names whose order differs from that of their numbers.
func name(i int) string { return fmt.Sprintf("group-%c%d", 'a'+(i*7)%26, i) }

func drawDescription(t *rapid.T) description {
	var d description
	size := rapid.IntRange(1, 12).Draw(t, "vertices")
	vertex := rapid.Map(rapid.IntRange(0, size-1), name)
	for i := range size {
		d.vertices = append(d.vertices, name(i))
	}
	edges := rapid.IntRange(0, 2*size).Draw(t, "edges")
	if rapid.IntRange(0, 3).Draw(t, "dense") == 0 {
		edges = size * size
	}
	for range edges {
		d.edges = append(d.edges, [2]string{vertex.Draw(t, "from"), vertex.Draw(t, "to")})
	}
	if rapid.Bool().Draw(t, "with universal") {
		d.universal = rapid.SliceOfN(vertex, 1, 3).Draw(t, "universal")
	}
	return d
}

// reference is the plainest possible reading of a description.
type reference struct {
	names    []string
	adjacent map[[2]string]bool
	distance map[[2]string]int // no entry: no path
}

func newReference(d description) reference {
	r := reference{adjacent: map[[2]string]bool{}, distance: map[[2]string]int{}}
	r.names = slices.Compact(slices.Sorted(slices.Values(d.vertices)))
	join := func(a, b string) {
		if a != b {
			r.adjacent[[2]string{a, b}], r.adjacent[[2]string{b, a}] = true, true
		}
	}
	for _, e := range d.edges {
		join(e[0], e[1])
	}
	for _, u := range d.universal {
		for _, v := range r.names {
			join(u, v)
		}
	}
	for _, v := range r.names {
		r.distance[[2]string{v, v}] = 0
	}
	for pair := range r.adjacent {
		r.distance[pair] = 1
	}
	for _, k := range r.names { // Floyd-Warshall
		for _, i := range r.names {
			for _, j := range r.names {
				ik, okIK := r.distance[[2]string{i, k}]
				kj, okKJ := r.distance[[2]string{k, j}]
				ij, okIJ := r.distance[[2]string{i, j}]
				if okIK && okKJ && (!okIJ || ik+kj < ij) {
					r.distance[[2]string{i, j}] = ik + kj
				}
			}
		}
	}
	return r
}

func (r reference) neighbors(v string) []string {
	var list []string
	for _, w := range r.names {
		if r.adjacent[[2]string{v, w}] {
			list = append(list, w)
		}
	}
	return list
}

func (r reference) parent(root, v string) string {
	depth, ok := r.distance[[2]string{v, root}]
	if !ok || depth == 0 {
		return ""
	}
	for _, w := range r.neighbors(v) {
		if d, ok := r.distance[[2]string{w, root}]; ok && d == depth-1 {
			return w
		}
	}
	return ""
}

func (r reference) reach(root string) []string {
	var list []string
	for depth := range len(r.names) {
		for _, v := range r.names {
			if d, ok := r.distance[[2]string{v, root}]; ok && d == depth {
				list = append(list, v)
			}
		}
	}
	return list
}

func TestGraphIsWhatWasDescribed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		g, want := d.build(), newReference(d)
		equal(t, "vertices", g.Vertices(), want.names)
		if g.Len() != len(want.names) {
			t.Fatalf("Len = %d, want %d", g.Len(), len(want.names))
		}
		var edges [][2]string
		for _, v := range want.names {
			neighbors := want.neighbors(v)
			equal(t, "neighbours of "+v, slices.Collect(g.Neighbors(v)), neighbors)
			if g.Degree(v) != len(neighbors) || g.HasEdges(v) != (len(neighbors) > 0) || !g.Has(v) {
				t.Fatalf("%s: Degree %d, HasEdges %v, Has %v", v, g.Degree(v), g.HasEdges(v), g.Has(v))
			}
			for _, w := range want.names {
				if g.Adjacent(v, w) != want.adjacent[[2]string{v, w}] {
					t.Fatalf("Adjacent(%s, %s) = %v", v, w, g.Adjacent(v, w))
				}
				if v < w && want.adjacent[[2]string{v, w}] {
					edges = append(edges, [2]string{v, w})
				}
			}
		}
		var got [][2]string
		for a, b := range g.Edges() {
			got = append(got, [2]string{a, b})
		}
		equal(t, "edges", got, edges)
	})
}

func TestTreeIsShortestAndPrefersSmallNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		g, want := d.build(), newReference(d)
		for _, root := range want.names {
			tree, ok := g.Tree(root)
			if !ok || tree.Root() != root {
				t.Fatalf("Tree(%s) = %v, %v", root, tree, ok)
			}
			equal(t, "reach of "+root, slices.Collect(tree.Reach()), want.reach(root))
			for _, v := range want.names {
				checkVertex(t, tree, want, root, v)
			}
		}
	})
}

func checkVertex(t *rapid.T, tree *spt.Tree, want reference, root, v string) {
	depth, connected := want.distance[[2]string{v, root}]
	if tree.Reached(v) != connected {
		t.Fatalf("root %s: Reached(%s) = %v", root, v, tree.Reached(v))
	}
	if got, ok := tree.Depth(v); ok != connected || got != depth {
		t.Fatalf("root %s: Depth(%s) = %d, %v, want %d, %v", root, v, got, ok, depth, connected)
	}
	parent := want.parent(root, v)
	if got, ok := tree.Parent(v); got != parent || ok != (parent != "") {
		t.Fatalf("root %s: Parent(%s) = %q, %v, want %q", root, v, got, ok, parent)
	}
	var path []string
	if connected {
		path = append(path, v)
		for up := parent; up != ""; up = want.parent(root, up) {
			path = append(path, up)
		}
	}
	equal(t, "path from "+v+" to "+root, tree.Path(v), path)
}

func TestInsertionOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		shuffled := description{
			vertices:  rapid.Permutation(d.vertices).Draw(t, "vertex order"),
			edges:     rapid.Permutation(d.edges).Draw(t, "edge order"),
			universal: rapid.Permutation(d.universal).Draw(t, "universal order"),
		}
		for i, e := range shuffled.edges {
			if rapid.Bool().Draw(t, "turn") {
				shuffled.edges[i] = [2]string{e[1], e[0]}
			}
		}
		sameTrees(t, d.build(), shuffled.build(), "")
	})
}

func TestUniversalIsTheSameAsAllEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		spelled := description{vertices: d.vertices, edges: slices.Clone(d.edges)}
		for _, u := range d.universal {
			for _, v := range d.vertices {
				spelled.edges = append(spelled.edges, [2]string{v, u})
			}
		}
		a, b := d.build(), spelled.build()
		sameTrees(t, a, b, "")
		for _, v := range d.vertices {
			if a.Simplicial(v) != b.Simplicial(v) {
				t.Fatalf("Simplicial(%s) differs: %v and %v", v, a.Simplicial(v), b.Simplicial(v))
			}
		}
	})
}

func TestSimplicialMeansNeighboursAreAdjacent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		g, want := d.build(), newReference(d)
		for _, v := range want.names {
			simplicial := true
			neighbors := want.neighbors(v)
			for i, a := range neighbors {
				for _, b := range neighbors[i+1:] {
					simplicial = simplicial && want.adjacent[[2]string{a, b}]
				}
			}
			if g.Simplicial(v) != simplicial {
				t.Fatalf("Simplicial(%s) = %v, neighbours %v", v, g.Simplicial(v), neighbors)
			}
		}
	})
}

func TestSimplicialVertexChangesNoOtherTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescription(t)
		g := d.build()
		for _, v := range g.Vertices() {
			if !g.Simplicial(v) {
				continue
			}
			without := spt.NewBuilder()
			for _, w := range g.Vertices() {
				if w != v {
					without.AddVertex(w)
				}
			}
			for a, b := range g.Edges() {
				if a != v && b != v {
					without.AddEdge(a, b)
				}
			}
			sameTrees(t, without.Build(), g, v)
		}
	})
}

// sameTrees fails unless both graphs have the same trees, the vertex ignored apart.
func sameTrees(t *rapid.T, a, b *spt.Graph, ignored string) {
	for _, root := range a.Vertices() {
		treeA, _ := a.Tree(root)
		treeB, ok := b.Tree(root)
		if !ok {
			t.Fatalf("no tree of %s in the second graph", root)
		}
		reach := slices.DeleteFunc(slices.Collect(treeB.Reach()), func(v string) bool { return v == ignored })
		equal(t, "reach of "+root, reach, slices.Collect(treeA.Reach()))
		for _, v := range a.Vertices() {
			equal(t, "path from "+v+" to "+root, treeB.Path(v), treeA.Path(v))
		}
	}
}

func TestUnknownVertex(t *testing.T) {
	g := description{vertices: []string{"a", "b"}, universal: []string{"a"}}.build()
	if tree, ok := g.Tree("x"); ok || tree != nil {
		t.Errorf("Tree of an unknown root = %v, %v", tree, ok)
	}
	if g.Has("x") || g.Adjacent("a", "x") || g.Adjacent("x", "x") || g.HasEdges("x") || g.Degree("x") != 0 {
		t.Error("an unknown vertex has edges")
	}
	if !g.Simplicial("x") {
		t.Error("an unknown vertex is in the middle of a path")
	}
	for w := range g.Neighbors("x") {
		t.Errorf("an unknown vertex has the neighbour %s", w)
	}
	tree, _ := g.Tree("a")
	if _, ok := tree.Parent("x"); ok || tree.Reached("x") || tree.Path("x") != nil {
		t.Error("an unknown vertex is in the tree")
	}
}

func TestEmptyGraph(t *testing.T) {
	var zero spt.Graph
	for _, g := range []*spt.Graph{spt.NewBuilder().Build(), &zero} {
		if _, ok := g.Tree(""); ok || g.Len() != 0 || len(g.Vertices()) != 0 {
			t.Error("an empty graph has vertices")
		}
	}
}

func TestSelfEdgeAddsOnlyTheVertex(t *testing.T) {
	b := spt.NewBuilder()
	b.AddEdge("a", "a")
	if g := b.Build(); !g.Has("a") || g.HasEdges("a") || g.Adjacent("a", "a") {
		t.Error("want the vertex a without edges")
	}
}

func TestBuilderGoesOnAfterBuild(t *testing.T) {
	b := spt.NewBuilder()
	b.AddEdge("b", "c")
	first := b.Build()
	b.AddEdge("a", "c")
	equal(t, "first graph", first.Vertices(), []string{"b", "c"})
	equal(t, "neighbours of c", slices.Collect(b.Build().Neighbors("c")), []string{"a", "b"})
}

func TestVerticesIsACopy(t *testing.T) {
	g := description{vertices: []string{"a", "b"}}.build()
	g.Vertices()[0] = "z"
	equal(t, "vertices", g.Vertices(), []string{"a", "b"})
}

func TestSequencesCanBeReadTwiceAndStopped(t *testing.T) {
	g := description{edges: [][2]string{{"a", "b"}, {"b", "c"}, {"c", "d"}, {"a", "d"}}}.build()
	tree, _ := g.Tree("a")
	for _, seq := range []iter.Seq[string]{g.Neighbors("a"), tree.Reach()} {
		first := slices.Collect(seq)
		equal(t, "second reading", slices.Collect(seq), first)
		for v := range seq {
			equal(t, "first element", v, first[0])
			break
		}
	}
	for a, b := range g.Edges() {
		equal(t, "first edge", a+b, "ab")
		break
	}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func equal(t fataler, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("%s: got %s, want %s", what, g, w)
	}
}
