package northbound

import (
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// TestPairsOfAbsentGroupsAreListed: what an operator linked, or a pattern of the
// topology, is listed with its reason although a group has no node.
func TestPairsOfAbsentGroupsAreListed(t *testing.T) {
	addEdge := func(f *fleet, a, b string) {
		f.apply(&slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{Segment: "default", GroupA: a, GroupB: b}}})
	}
	for name, c := range map[string]struct {
		prepare func(*fleet)
		want    []string
	}{
		"never there": {func(f *fleet) {
			f.register("a/1", gateway("a-ext:1"))
			addEdge(f, "a", "zz")
			addEdge(f, "yy", "zz")
		}, []string{
			"pending|a|zz: group zz has no connected node",
			"pending|yy|zz: groups yy and zz have no connected node",
		}},
		"departed": {func(f *fleet) {
			f.setTopology(mesh())
			for _, id := range []string{"a/1", "b/1", "c/1"} {
				f.register(id, gateway(id+".test:1"))
			}
			f.claim(f.other("a", "b"), f.link("a", "b"))
			f.lose("c/1")
			f.depart("c/1")
			for link := range f.view().Links() {
				if !link.Live() {
					f.apply(&slimcppb.Command{Payload: &slimcppb.Command_PurgeTombstones{PurgeTombstones: &slimcppb.PurgeTombstones{LinkIds: []string{link.ID}}}})
				}
			}
		}, []string{
			"pending|a|c: group c has no connected node",
			"pending|b|c: group c has no connected node",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			c.prepare(f)
			var got []string
			for _, entry := range f.operator(t).links(t, "", "") {
				if entry.GetLinkId() == "-" {
					got = append(got, entry.GetId()+": "+entry.GetStatusMsg())
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("listed %q, want %q", got, c.want)
			}
			answer := f.convergence()
			if answer.GetWaitingPairs() != uint64(len(c.want)) || len(answer.GetWarnings()) != len(c.want)+int(answer.GetDepartedNodes()) {
				t.Errorf("status %v", answer)
			}
		})
	}
}

// other returns the node at the far end of a link.
func (f *fleet) other(a, b string) string {
	link := f.link(a, b)
	return link.EndpointNode
}
