package spt_test

import (
	"testing"

	"github.com/slim-cp/slim-cp/spt"
)

// shapes are the topologies of large fleets, declared and spelled out.
var shapes = []struct {
	name  string
	build func(size int) *spt.Graph
}{
	{"mesh", func(size int) *spt.Graph {
		b := spt.NewBuilder()
		for i := range size {
			b.AddUniversal(name(i))
		}
		return b.Build()
	}},
	{"mesh of edges", func(size int) *spt.Graph {
		b := spt.NewBuilder()
		for i := range size {
			for j := range i {
				b.AddEdge(name(i), name(j))
			}
		}
		return b.Build()
	}},
	{"star", func(size int) *spt.Graph {
		b := spt.NewBuilder()
		b.AddUniversal(name(0))
		for i := range size {
			b.AddVertex(name(i))
		}
		return b.Build()
	}},
	{"star of edges", func(size int) *spt.Graph {
		b := spt.NewBuilder()
		for i := range size {
			b.AddEdge(name(i), name(0))
		}
		return b.Build()
	}},
}

func BenchmarkTree(b *testing.B) {
	for _, shape := range shapes[:2] {
		g := shape.build(1000)
		b.Run(shape.name+"/1000 groups", func(b *testing.B) { benchmarkTree(b, g, name(500)) })
	}
	for _, shape := range shapes[2:] {
		g := shape.build(10000)
		b.Run(shape.name+"/10000 groups/root=hub", func(b *testing.B) { benchmarkTree(b, g, name(0)) })
		b.Run(shape.name+"/10000 groups/root=spoke", func(b *testing.B) { benchmarkTree(b, g, name(5000)) })
	}
}

func benchmarkTree(b *testing.B, g *spt.Graph, root string) {
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := g.Tree(root); !ok {
			b.Fatal("no tree")
		}
	}
}

func BenchmarkAllTrees(b *testing.B) {
	for _, shape := range shapes[:2] {
		g := shape.build(1000)
		b.Run(shape.name+"/1000 groups", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, root := range g.Vertices() {
					if _, ok := g.Tree(root); !ok {
						b.Fatal("no tree")
					}
				}
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, shape := range shapes {
		b.Run(shape.name+"/1000 groups", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				shape.build(1000)
			}
		})
	}
}
