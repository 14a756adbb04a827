package northbound

import (
	"slices"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A name in the wrong case is nobody's: whoever asks about it, or is told of it, hears
// of the group that may have been meant.
func TestGroupsThatDifferOnlyByCase(t *testing.T) {
	links := func(a, b string) *slimcppb.Segment {
		return &slimcppb.Segment{Name: "default", Links: []*slimcppb.Adjacency{{Group: a, Neighbors: []string{b}}}}
	}
	f := newFleet(t, links("Berlin", "oslo"))
	f.register("berlin/1", gateway("b:1"))
	f.register("oslo/1")
	const hint = "the configuration names group Berlin, which has no node; group berlin has: the names differ only by case"
	if warnings := f.convergence().GetWarnings(); !slices.Equal(warnings, []string{hint}) {
		t.Errorf("warnings %q", warnings)
	}
	operator := f.operator(t)
	explained := func(answer *slimcppb.Explanation, err error) string {
		t.Helper()
		if err != nil || answer.GetWorks() {
			t.Fatalf("%v, %v", answer, err)
		}
		return strings.Join(answer.GetLines(), "\n")
	}
	const asked = "group Berlin has no node (group berlin has: the names differ only by case)"
	link := explained(operator.ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "oslo", GroupB: "Berlin"}))
	route := explained(operator.ExplainRoute(t.Context(), &slimcppb.ExplainRouteRequest{Name: "a/b/c", Group: "Berlin"}))
	for _, text := range []string{link, route} {
		if !strings.Contains(text, asked) || strings.Count(text, "only by case") != 1 {
			t.Errorf("explained by\n%s", text)
		}
	}

	wanted := &slimcppb.FleetConfig{
		RegistrationAuth: "none", Topology: &slimcppb.Topology{Segments: []*slimcppb.Segment{links("*", "OSLO"), links("berlin", "paris")}},
	}
	preview, err := operator.PreviewFleetConfig(t.Context(), &slimcppb.PreviewFleetConfigRequest{Config: wanted})
	if err != nil {
		t.Fatal(err)
	}
	applied, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: wanted})
	if err != nil {
		t.Fatal(err)
	}
	for _, changes := range [][]string{preview.GetChanges(), applied.GetChanges()} {
		if text := strings.Join(changes, "\n"); !strings.Contains(text, "group OSLO, which has no node; group oslo has") || strings.Count(text, "only by case") != 1 {
			t.Errorf("changes are\n%s", text)
		}
	}
}

// So are secrets for a name that nobody registers with.
func TestSecretsOfGroupsThatDifferOnlyByCase(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("berlin/1")
	f.useSharedSecrets("Berlin", "oslo")
	warnings := f.convergence().GetWarnings()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "names group Berlin, which has no node; group berlin has") {
		t.Errorf("warnings %q", warnings)
	}
}

// The topology of the API as well.
func TestLinksOfGroupsThatDifferOnlyByCase(t *testing.T) {
	f := newFleet(t)
	f.register("berlin/1", gateway("b:1"))
	f.register("oslo/1")
	operator := f.operator(t)
	added, err := operator.AddTopologyLink(t.Context(), &controlplanepb.AddTopologyLinkRequest{DomainA: "Berlin", DomainB: "oslo"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"domain 'Berlin' has no registered nodes yet; physical link will be created when nodes register",
		"domain 'Berlin' differs from the registered domain 'berlin' only by case",
	}
	if !slices.Equal(added.GetWarnings(), want) {
		t.Errorf("warnings %q", added.GetWarnings())
	}
	rows := operator.links(t, "", "")
	if len(rows) != 1 || rows[0].GetStatusMsg() != "group Berlin has no connected node (group berlin has: the names differ only by case)" {
		t.Errorf("links %v", rows)
	}
	if warnings := f.convergence().GetWarnings(); len(warnings) != 1 || !strings.Contains(warnings[0], "group berlin has") {
		t.Errorf("warnings %q", warnings)
	}
}
