package spt

import (
	"strconv"
	"testing"
)

// A fleet of ten thousand groups around a hub, or a mesh of a thousand, fits in
// memory and has cheap trees only if edges to everybody are not stored.
func TestEdgesOfUniversalVerticesAreNotStored(t *testing.T) {
	const size = 50
	star, mesh := NewBuilder(), NewBuilder()
	for i := range size {
		star.AddEdge(strconv.Itoa(i), "hub")
		for j := range i {
			mesh.AddEdge(strconv.Itoa(i), strconv.Itoa(j))
		}
	}
	for name, b := range map[string]*Builder{"star": star, "mesh": mesh} {
		if g := b.Build(); len(g.targets) != 0 || len(g.universal) == 0 {
			t.Errorf("%s: %d stored edges, %d universal vertices", name, len(g.targets)/2, len(g.universal))
		}
	}
}
