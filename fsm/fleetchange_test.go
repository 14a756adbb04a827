package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func fleetWith(auth string, secrets []string, segments ...*slimcppb.Segment) *slimcppb.FleetConfig {
	config := &slimcppb.FleetConfig{RegistrationAuth: auth, Topology: &slimcppb.Topology{Segments: segments}}
	for _, group := range secrets {
		config.Secrets = append(config.Secrets, &slimcppb.GroupSecret{Group: group, Secret: []byte(strings.Repeat("s", MinSecretBytes))})
	}
	return config
}

func segmentOf(links ...*slimcppb.Adjacency) *slimcppb.Segment {
	return &slimcppb.Segment{Name: DefaultSegment, Links: links}
}

// TestFleetChangeLosses: which of the links that a document takes away have to be
// meant.
func TestFleetChangeLosses(t *testing.T) {
	all := &slimcppb.Adjacency{Group: Wildcard, Neighbors: []string{Wildcard}}
	for _, c := range []struct {
		groups, kept int
		lost         bool
	}{
		{10, 9, false},  // none of 9 with the hub
		{10, 0, false},  // nine of nine: fewer than ten
		{21, 10, false}, // ten of twenty: not more than half
		{21, 9, true},
		{11, 0, true},
		{11, 5, false},
	} {
		h := newHistory(t)
		h.must(topologyCommand(segmentOf(&slimcppb.Adjacency{Group: "hub", Neighbors: []string{Wildcard}})))
		h.register("hub", "n")
		for i := 1; i < c.groups; i++ {
			h.register(fmt.Sprintf("g%02d", i), "n")
		}
		fewer := &slimcppb.Adjacency{Group: "hub", Neighbors: []string{"nobody"}}
		for i := range c.kept {
			fewer.Neighbors = append(fewer.Neighbors, fmt.Sprintf("g%02d", i+1))
		}
		change := h.view().FleetChange(fleetWith(NoAuth, nil, segmentOf(fewer)), nil)
		if lost := len(change.Losses()) > 0; lost != c.lost || change.Links != c.groups-1 || len(change.LinksRemoved) != c.groups-1-c.kept {
			t.Errorf("%+v: losses %q of %+v", c, change.Losses(), change)
		}
		if more := h.view().FleetChange(fleetWith(NoAuth, nil, segmentOf(all)), nil); len(more.Losses()) > 0 || len(more.LinksAdded) != (c.groups-1)*(c.groups-2)/2 {
			t.Errorf("more links: %+v", more)
		}
	}
}

func TestFleetChangeLines(t *testing.T) {
	h := newHistory(t)
	before := fleetWith(SharedSecret, []string{"a", "b"}, segmentOf(&slimcppb.Adjacency{Group: "a", Neighbors: []string{"b"}}))
	for _, group := range []string{"a", "b", "c"} {
		h.register(group, "n")
	}
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{Config: before}}})
	after := fleetWith(SharedSecret, []string{"a", "c"}, segmentOf(&slimcppb.Adjacency{Group: "a", Neighbors: []string{"c"}}))
	after.Secrets[0].Secret[0] = 'x'
	after.Graces = &slimcppb.Graces{DepartureMs: 5}
	got := h.view().FleetChange(after, nil)
	want := []string{
		"secrets added: group c", "secrets changed: group a", "secrets removed: group b",
		"links removed: 1 of 1: a↔b", "links added: 1: a↔c", "changed: sessions",
	}
	if !slices.Equal(got.Lines(), want) {
		t.Errorf("lines %q, want %q", got.Lines(), want)
	}
	if want := []string{"authentication ends for group b, which has nodes"}; !slices.Equal(got.Losses(), want) {
		t.Errorf("losses %q, want %q", got.Losses(), want)
	}
	none := h.view().FleetChange(&slimcppb.FleetConfig{}, nil)
	if want := []string{"authentication ends for groups a, b, which have nodes", "the whole topology goes"}; !slices.Equal(none.Losses(), want) {
		t.Errorf("losses %q, want %q", none.Losses(), want)
	}
	if lines := strings.Join(none.Lines(), "\n"); !strings.Contains(lines, "registration_auth: shared_secret -> none\n") ||
		!strings.Contains(lines, "topology: managed by operators\n") {
		t.Errorf("lines %s", lines)
	}
	if same := h.view().FleetChange(before, nil); len(same.Lines())+len(same.Losses()) > 0 {
		t.Errorf("the same document: %+v", same)
	}
}
