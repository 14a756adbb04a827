package fsm

import (
	"errors"
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func addEdgeCommand(segment, a, b string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{Segment: segment, GroupA: a, GroupB: b}}}
}

func (h *history) linked(a, b string) bool {
	_, ok := h.view().LinkBetween(a, b)
	return ok
}

// A file's topology takes the place of the operators' as a whole, and when it
// goes theirs is there again: neither leaves anything behind in the other.
func TestTheOperatorsTopologySleepsWhileAFileGivesOne(t *testing.T) {
	h := newHistory(t)
	h.fleetOf("a", "b", "c")
	h.must(addEdgeCommand(DefaultSegment, "a", "b"))
	if !h.linked("a", "b") || h.linked("b", "c") {
		t.Fatal("links are not those of the operators")
	}
	h.must(topologyCommand(linksSegment("file", [2]string{"b", "c"})))
	if h.linked("a", "b") || !h.linked("b", "c") {
		t.Error("links are not those of the file")
	}
	for what, command := range map[string]*slimcppb.Command{
		"add a segment": {Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "s"}}},
		"add a link":    addEdgeCommand(DefaultSegment, "a", "c"),
		"remove a link": {Payload: &slimcppb.Command_RemoveEdge{RemoveEdge: &slimcppb.RemoveEdge{
			Segment: DefaultSegment, GroupA: "a", GroupB: "b",
		}}},
		"remove a segment": {Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: "s"}}},
	} {
		if err := h.apply(command)[0].Err; !errors.Is(err, ErrConfigManaged) {
			t.Errorf("%s beside a file: %v", what, err)
		}
	}
	h.must(topologyCommand())
	if !h.linked("a", "b") || h.linked("b", "c") || h.linked("a", "c") {
		t.Error("links are not those of the operators again")
	}
	h.check()
}

func TestTheDefaultSegmentIsAlwaysThere(t *testing.T) {
	h := newHistory(t)
	remove := &slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: DefaultSegment}}}
	if err := h.apply(remove)[0].Err; !errors.Is(err, ErrDefaultSegment) {
		t.Errorf("removing it: %v", err)
	}
	h.must(addEdgeCommand(DefaultSegment, "a", "b"))
	h.must(addEdgeCommand(DefaultSegment, "b", "a")) // the same once more
	segment, _ := h.store.state.managedSegment(DefaultSegment)
	if !slices.Equal(segment.Edges, [][2]string{{"a", "b"}}) {
		t.Errorf("edges are %v", segment.Edges)
	}
}

// Two operators add links at the same time: neither works from what the other is
// about to change.
func TestConcurrentChangesOfTheTopologyAllCount(t *testing.T) {
	for _, together := range []bool{true, false} { // in one entry of the log, or in two
		h := newHistory(t)
		h.fleetOf("a", "b", "c")
		first, second := addEdgeCommand(DefaultSegment, "a", "b"), addEdgeCommand(DefaultSegment, "b", "c")
		if together {
			h.apply(first, second)
		} else {
			h.must(first)
			h.must(second)
		}
		if !h.linked("a", "b") || !h.linked("b", "c") || h.linked("a", "c") {
			t.Errorf("together %v: links are not those of both operators", together)
		}
		h.check()
	}
}
