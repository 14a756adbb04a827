package northbound

import (
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestListSegments(t *testing.T) {
	f := newFleet(t)
	operator := f.operator(t)
	want := func(segments ...*controlplanepb.SegmentEntry) {
		t.Helper()
		response, err := operator.ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		wantEntries(t, response.GetSegments(), segments...)
	}
	want(&controlplanepb.SegmentEntry{Name: "default"}) // managed through the API

	f.setTopology(
		&slimcppb.Segment{Name: "to-$group", Links: []*slimcppb.Adjacency{{Group: "$group", Neighbors: []string{"hub"}}}},
		&slimcppb.Segment{Name: "pair", Links: []*slimcppb.Adjacency{{Group: "z", Neighbors: []string{"hub", "b"}}}},
	)
	want()
	for _, id := range []string{"hub/1", "b/1", "z/1", "alone"} {
		f.register(id)
	}
	f.lose("z/1")
	edge := func(a, b string) *controlplanepb.SegmentEdge {
		return &controlplanepb.SegmentEdge{DomainA: a, DomainB: b}
	}
	want(
		&controlplanepb.SegmentEntry{
			Name: "pair", Domains: []string{"b", "hub", "z"}, Edges: []*controlplanepb.SegmentEdge{edge("b", "z"), edge("hub", "z")},
		},
		&controlplanepb.SegmentEntry{Name: "to-b", Domains: []string{"b", "hub"}, Edges: []*controlplanepb.SegmentEdge{edge("b", "hub")}},
		&controlplanepb.SegmentEntry{Name: "to-z", Domains: []string{"hub", "z"}, Edges: []*controlplanepb.SegmentEdge{edge("hub", "z")}},
	)
}

// Clients from before the rename of group to domain call the older name.
func TestListGroupsInBothGenerations(t *testing.T) {
	f := newFleet(t, mesh())
	for _, id := range []string{"b/2", "b/1", "a/1", "alone"} {
		f.register(id)
	}
	f.lose("b/2")
	operator := f.operator(t)
	for _, method := range []string{"ListDomains", "ListGroups"} {
		t.Run(method, func(t *testing.T) {
			response := &controlplanepb.ListDomainsResponse{}
			path := "/controlplane.proto.v1.ControlPlaneService/" + method
			if err := operator.connection.Invoke(t.Context(), path, &controlplanepb.ListDomainsRequest{}, response); err != nil {
				t.Fatal(err)
			}
			wantEntries(t, response.GetDomains(),
				&controlplanepb.DomainEntry{DomainName: "a", Nodes: []string{"a/1"}},
				&controlplanepb.DomainEntry{DomainName: "b", Nodes: []string{"b/1", "b/2"}},
			)
		})
	}
}
