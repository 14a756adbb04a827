package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const testTemplate = "a template"

// templateCommand sets a document with a template, and what it was rendered to.
func templateCommand(h *history, config *slimcppb.FleetConfig, segments ...*slimcppb.Segment) *slimcppb.Command {
	config.Topology = &slimcppb.Topology{SegmentsTemplate: testTemplate}
	set := &slimcppb.SetFleetConfig{Config: config}
	if groups := h.view().TemplateGroups(); len(groups) > 0 {
		set.Rendered = renderedFor(groups, segments...)
	}
	return &slimcppb.Command{Schema: TemplateSchema, Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: set}}
}

func renderedFor(groups []string, segments ...*slimcppb.Segment) *slimcppb.RenderedSegments {
	return &slimcppb.RenderedSegments{Template: templateHash(testTemplate), Groups: groupsHash(groups), Segments: segments}
}

func renderedCommand(rendered *slimcppb.RenderedSegments) *slimcppb.Command {
	return &slimcppb.Command{
		Schema: TemplateSchema, Term: testTerm,
		Payload: &slimcppb.Command_SetRenderedSegments{SetRenderedSegments: rendered},
	}
}

// withTemplate makes a state one whose topology is made from a template.
func withTemplate(s *tables, rendered string, segments []*slimcppb.Segment) {
	s.fleet = &slimcppb.FleetConfig{RegistrationAuth: NoAuth, Topology: &slimcppb.Topology{SegmentsTemplate: testTemplate}}
	s.rendered = renderedFor(s.TemplateGroups(), segments...)
	s.rendered.Template = templateHash(rendered)
}

// A snapshot counts the segments of a template as a list shows them.
func TestSnapshotInfoCountsRenderedSegments(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.must(templateCommand(h, &slimcppb.FleetConfig{}))
	h.register("a", "n")
	h.register("b", "n")
	h.must(renderedCommand(renderedFor([]string{"a", "b"}, linksSegment("s", [2]string{"a", "b"}), linksSegment("t", [2]string{"b", "a"}))))
	equal(t, "segments", recordsOf(h.store.Capture().Info())["segments"], len(h.view().Segments()))
	equal(t, "segments that are listed", len(h.view().Segments()), 2)
}

func wantLinked(t *testing.T, h *history, pairs ...string) {
	t.Helper()
	var got []string
	for pair := range h.view().pairs.all() {
		got = append(got, pair.a+"~"+pair.b)
	}
	if !slices.Equal(got, pairs) {
		t.Errorf("linked are %v, want %v", got, pairs)
	}
	h.check()
}

// TestRenderedSegmentsAreTheTopology: they are taken over for the template and the
// groups that they were made from, and for no others.
func TestRenderedSegmentsAreTheTopology(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.must(templateCommand(h, &slimcppb.FleetConfig{}))
	if h.view().TemplateOutdated() || !h.view().ConfigManaged() {
		t.Error("without groups there is nothing to render")
	}
	a := h.register("a", "n")
	h.register("b", "n")
	if !h.view().TemplateOutdated() {
		t.Error("groups came, and the template is not to be rendered")
	}
	ab := renderedFor([]string{"a", "b"}, linksSegment("s", [2]string{"a", "b"}, [2]string{"c", "b"}, [2]string{"a", "$group"}))
	other := renderedFor([]string{"a", "b"})
	other.Template = templateHash("another")
	for what, c := range map[string]struct {
		command *slimcppb.Command
		want    error
	}{
		"other groups":    {renderedCommand(renderedFor([]string{"a"}, ab.GetSegments()...)), ErrGroupsChanged},
		"other template":  {renderedCommand(other), ErrStale},
		"an older schema": {func() *slimcppb.Command { c := renderedCommand(ab); c.Schema = 1; return c }(), ErrInvalid},
		"no leader":       {func() *slimcppb.Command { c := renderedCommand(ab); c.Term = 0; return c }(), ErrStaleTerm},
	} {
		if result := h.apply(c.command)[0]; !errors.Is(result.Err, c.want) {
			t.Errorf("%s: %v, want %v", what, result.Err, c.want)
		}
	}
	wantLinked(t, h)
	h.must(renderedCommand(ab))
	wantLinked(t, h, "a~b")
	h.register("c", "n") // named, and linked when the segments name it
	wantLinked(t, h, "a~b", "b~c")
	if !h.view().TemplateOutdated() {
		t.Error("a group came, and the template is not to be rendered")
	}
	h.must(renderedCommand(FailedSegments(testTemplate, h.view().TemplateGroups(), errors.New("no such filter"))))
	wantLinked(t, h, "a~b", "b~c")
	if rendered := h.view().Rendered(); rendered.GetError() != "no such filter" || h.view().TemplateOutdated() {
		t.Errorf("after a failure: %v", rendered)
	}
	h.must(renderedCommand(renderedFor([]string{"a", "b", "c"}, linksSegment("s", [2]string{"a", "c"}))))
	wantLinked(t, h, "a~c")
	h.depart("a/n", a)
	if !h.view().TemplateOutdated() || slices.Contains(h.view().TemplateGroups(), "a") {
		t.Error("a group went, and the template is not to be rendered")
	}
	h.must(topologyCommand()) // the template goes
	if h.view().Rendered() != nil || h.view().TemplateOutdated() || h.view().ConfigManaged() {
		t.Error("something is left of the template")
	}
}

// TestATemplateComesWithItsSegments: the topology never is empty meanwhile.
func TestATemplateComesWithItsSegments(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.must(mesh())
	h.register("a", "n")
	h.register("b", "n")
	good := func() *slimcppb.Command {
		return templateCommand(h, &slimcppb.FleetConfig{}, linksSegment("s", [2]string{"a", "b"}))
	}
	for what, c := range map[string]struct {
		spoil func(*slimcppb.SetFleetConfig)
		want  error
	}{
		"nothing":          {func(s *slimcppb.SetFleetConfig) { s.Rendered = nil }, ErrInvalid},
		"a failure":        {func(s *slimcppb.SetFleetConfig) { s.Rendered.Error = "x" }, ErrInvalid},
		"another template": {func(s *slimcppb.SetFleetConfig) { s.Config.Topology.SegmentsTemplate = "another" }, ErrInvalid},
		"other groups":     {func(s *slimcppb.SetFleetConfig) { s.Rendered.Groups = groupsHash([]string{"a"}) }, ErrGroupsChanged},
		"own segments":     {func(s *slimcppb.SetFleetConfig) { s.Config.Topology.Segments = s.Rendered.GetSegments() }, ErrInvalid},
		"no template":      {func(s *slimcppb.SetFleetConfig) { s.Config.Topology.SegmentsTemplate = "" }, ErrInvalid},
	} {
		command := good()
		c.spoil(command.GetSetFleetConfig())
		if result := h.apply(command)[0]; !errors.Is(result.Err, c.want) {
			t.Errorf("with %s: %v, want %v", what, result.Err, c.want)
		}
	}
	old := good()
	old.Schema = 1
	if result := h.apply(old)[0]; !errors.Is(result.Err, ErrInvalid) {
		t.Errorf("of an older schema: %v", result.Err)
	}
	wantLinked(t, h, "a~b")
	link := h.between("a", "b").ID
	h.must(good())
	wantLinked(t, h, "a~b")
	if h.between("a", "b").ID != link {
		t.Error("the link was made again")
	}
}

// TestSchema1KnowsNoTemplate: entries that an older version could have written mean
// what they meant.
func TestSchema1KnowsNoTemplate(t *testing.T) {
	h := newHistory(t)
	h.register("a", "n")
	for _, command := range []*slimcppb.Command{
		templateCommand(h, &slimcppb.FleetConfig{}), renderedCommand(renderedFor([]string{"a"})),
	} {
		if result := h.apply(command)[0]; !errors.Is(result.Err, ErrInactiveSchema) {
			t.Errorf("%T: %v", command.GetPayload(), result.Err)
		}
	}
}

// TestRenderedSegmentsAreKept by a snapshot, with the links that follow from them, and
// by a restore.
func TestRenderedSegmentsAreKept(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.register("", "lone")
	h.register("a", "n")
	h.register("b", "n")
	h.must(templateCommand(h, &slimcppb.FleetConfig{RegistrationAuth: NoAuth}, linksSegment("s", [2]string{"a", "b"})))
	h.must(renderedCommand(FailedSegments(testTemplate, h.view().TemplateGroups(), errors.New("no such filter"))))
	restored := New()
	if err := restored.Restore(bytes.NewReader(snapshotBytes(t, h.store))); err != nil {
		t.Fatal(err)
	}
	view := restored.View()
	if !view.Allowed("a", "b") || view.Rendered().GetError() != "no such filter" || view.TemplateOutdated() {
		t.Errorf("restored %v", view.Rendered())
	}
	if restored.Capture().Hash() != h.store.Capture().Hash() {
		t.Error("another hash")
	}
	h.rewrite(snapshotBytes(t, h.store), RestoreOptions{Now: h.clock})
}

// TestRenderedSegmentsAreBounded: by what they cost each replica.
func TestRenderedSegmentsAreBounded(t *testing.T) {
	all := &slimcppb.Adjacency{Group: Wildcard, Neighbors: []string{Wildcard}}
	groups := make([]string, 3000)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%04d", i)
	}
	for what, c := range map[string]struct {
		segments []*slimcppb.Segment
		want     string
	}{
		"full mesh":       {[]*slimcppb.Segment{segmentOf(all)}, ""},
		"two full meshes": {[]*slimcppb.Segment{segmentOf(all), segmentOf(all)}, "link 18000000 pairs of groups, at most 16777216"},
		"many":            {slices.Repeat([]*slimcppb.Segment{{Name: "s"}}, 10_001), "10001 segments, at most 10000"},
		"long":            {[]*slimcppb.Segment{{Name: strings.Repeat("x", maxRenderedBytes)}}, "bytes, at most 262144"},
	} {
		_, err := NewRenderedSegments(testTemplate, groups, c.segments)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestSegmentsOfBeforeAreRestored: what is kept after a failure may link more groups
// than it was made for, and the file is one that a cluster wrote.
func TestSegmentsOfBeforeAreRestored(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.register("a", "n")
	all := segmentOf(&slimcppb.Adjacency{Group: Wildcard, Neighbors: slices.Repeat([]string{Wildcard}, 80_000)})
	h.must(templateCommand(h, &slimcppb.FleetConfig{RegistrationAuth: NoAuth}, all))
	for i := range 15 {
		h.register(fmt.Sprintf("g%d", i), "n")
	}
	groups := h.view().TemplateGroups()
	_, err := NewRenderedSegments(testTemplate, groups, []*slimcppb.Segment{all})
	if err == nil {
		t.Fatal("the segments would be accepted for all groups")
	}
	h.must(renderedCommand(FailedSegments(testTemplate, groups, err)))
	h.rewrite(snapshotBytes(t, h.store), RestoreOptions{Now: h.clock})
}

// TestTheTextOfAFailureIsOneOfAMessage, wherever it is cut.
func TestTheTextOfAFailureIsOneOfAMessage(t *testing.T) {
	text := FailedSegments("", nil, errors.New("x"+strings.Repeat("ö", maxRenderedError))).GetError()
	if len(text) > maxRenderedError || !utf8.ValidString(text) {
		t.Errorf("%d bytes, valid: %t", len(text), utf8.ValidString(text))
	}
}

// TestATemplateThatRendersNothingLosesTheTopology, which has to be meant.
func TestATemplateThatRendersNothingLosesTheTopology(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.register("a", "n")
	h.register("b", "n")
	h.must(mesh())
	wanted := &slimcppb.FleetConfig{Topology: &slimcppb.Topology{SegmentsTemplate: testTemplate}}
	want := []string{"segments-template rendered no segments, and there are some"}
	if got := h.view().FleetChange(wanted, renderedFor([]string{"a", "b"})).Losses(); !slices.Equal(got, want) {
		t.Errorf("losses %q, want %q", got, want)
	}
	change := h.view().FleetChange(wanted, renderedFor([]string{"a", "b"}, linksSegment("s", [2]string{"a", "b"})))
	if len(change.Losses()) > 0 || len(change.LinksRemoved)+len(change.LinksAdded) > 0 {
		t.Errorf("the same links: %+v", change)
	}
}
