package fsm

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// crafted returns a snapshot with good checksums in which something was changed.
func crafted(t tester, view *View, change func(*tables)) []byte {
	t.Helper()
	state := view.copy()
	change(&state)
	var out bytes.Buffer
	if err := (&Snapshot{tables: state}).Write(&out); err != nil {
		t.Fatalf("write: %v", err)
	}
	return out.Bytes()
}

// changeFirst changes a copy of the first record of a table.
func changeFirst[T any](records table[*T], change func(*T)) {
	first, _ := records.first()
	changed := *first
	records.delete(first)
	change(&changed)
	records.set(&changed)
}

// wholeFleet is a state with every kind of record.
func wholeFleet(t *testing.T) *history {
	t.Helper()
	h := goldenHistory(t)
	h.must(configCommand(goldenConfig(NoAuth, linksSegment("core", [2]string{"hub", Wildcard})), "cp-1"))
	return h
}

// What a file says is judged whole before anything changes, however good its checksums
// are: by a restore, which writes nothing, and by an inspection.
func TestAFileThatCannotBeAStateIsRefused(t *testing.T) {
	h := wholeFleet(t)
	view := h.view()
	for name, c := range map[string]struct {
		change func(*tables)
		says   string
	}{
		"index without end":      {func(s *tables) { s.meta.Index = math.MaxUint64 - 100 }, "the index is 18446744073709551515"},
		"index beyond all":       {func(s *tables) { s.meta.Index = maxNumber + 1 }, "the index is"},
		"generation without end": {func(s *tables) { s.meta.Generation = math.MaxUint64 }, "the generation is"},
		"no generation":          {func(s *tables) { s.meta.Generation = 0 }, "the generation is 0"},
		"term without end":       {func(s *tables) { s.meta.Term = math.MaxUint64 }, "the term is"},
		"leader of a later term": {func(s *tables) { s.meta.LeaderTerm = s.meta.Term + 1 }, "the leader's term"},
		"clock without end":      {func(s *tables) { s.meta.Clock = time.Unix(0, math.MaxInt64) }, "the clock is"},
		"trees of later":         {func(s *tables) { s.meta.TreesRevision = s.meta.Index + 1 }, "the revision of the trees"},
		"link of later":          {func(s *tables) { changeFirst(s.links, func(l *Link) { l.DestRevision = math.MaxUint64 }) }, "the revision of link"},
		"link of no status":      {func(s *tables) { changeFirst(s.links, func(l *Link) { l.Status = 9 }) }, "the status 9"},
		"name of later":          {func(s *tables) { changeFirst(s.names, func(r *NameRecord) { r.Revision = s.meta.Index + 1 }) }, "the revision of name"},
		"epoch without end": {func(s *tables) {
			changeFirst(s.nodes, func(n *Node) {
				n.Sessions = []Session{n.Sessions[0]}
				n.Sessions[0].Epoch = math.MaxUint64
			})
		}, "the epoch"},
		"node of no state":          {func(s *tables) { changeFirst(s.nodes, func(n *Node) { n.State = 7 }) }, "is in state 7"},
		"node that confirmed later": {func(s *tables) { changeFirst(s.nodes, func(n *Node) { n.Acked = math.MaxUint64 }) }, "confirmed"},
		"registration in other ways": {func(s *tables) {
			s.fleet = proto.Clone(s.fleet).(*slimcppb.FleetConfig)
			s.fleet.RegistrationAuth = "spire"
		}, `registration_auth "spire": accepted are "none" and "shared_secret"`},
		"a secret that is too short": {func(s *tables) { changeFirst(s.secrets, func(s *Secret) { s.Value = []byte("short") }) }, "is shorter than"},
		"a grace without end": {func(s *tables) {
			s.fleet = proto.Clone(s.fleet).(*slimcppb.FleetConfig)
			s.fleet.Graces = &slimcppb.Graces{DepartureMs: math.MaxUint64}
		}, "a grace of 18446744073709551615 ms"},
		"segments of no template":      {func(s *tables) { s.rendered = &slimcppb.RenderedSegments{} }, "there are rendered segments, and no template"},
		"segments of another template": {func(s *tables) { withTemplate(s, "other", nil) }, "of another template"},
		"segments of no groups":        {func(s *tables) { withTemplate(s, testTemplate, nil); s.rendered.Groups = nil }, "of no set of groups"},
		"a template and segments": {func(s *tables) {
			withTemplate(s, testTemplate, nil)
			s.fleet.Topology.Segments = []*slimcppb.Segment{{Name: "s"}}
		}, "are mutually exclusive"},
		"an error without end": {func(s *tables) {
			withTemplate(s, testTemplate, nil)
			s.rendered.Error = strings.Repeat("x", maxRenderedError+1)
		}, "the error of the template has 1025 bytes"},
		"too many segments": {func(s *tables) {
			withTemplate(s, testTemplate, make([]*slimcppb.Segment, MaxRenderedSegments+1))
		}, "rendered 10001 segments, at most 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			file := crafted(t, view, c.change)
			var out bytes.Buffer
			_, err := RewriteSnapshot(&out, bytes.NewReader(file), view, RestoreOptions{Now: h.clock})
			if !errors.Is(err, ErrSnapshot) || out.Len() > 0 || strings.Contains(err.Error(), "\n") {
				t.Fatalf("restored with %v, %d bytes written", err, out.Len())
			}
			_, err = InspectSnapshot(bytes.NewReader(file))
			var wrong *StateError
			if !errors.Is(err, ErrSnapshot) || !errors.As(err, &wrong) || !strings.Contains(strings.Join(wrong.Problems, "\n"), c.says) {
				t.Fatalf("inspected with %v", err)
			}
		})
	}
	h.rewrite(crafted(t, view, func(*tables) {}), RestoreOptions{Now: h.clock})
}

// An inspection tells all that is wrong, not the first.
func TestAnInspectionListsAllProblems(t *testing.T) {
	file := crafted(t, wholeFleet(t).view(), func(s *tables) {
		s.meta.Generation = math.MaxUint64
		changeFirst(s.links, func(l *Link) { l.Status = 9 })
		changeFirst(s.nodes, func(n *Node) { n.State = 7 })
		s.fleet = &slimcppb.FleetConfig{RegistrationAuth: "spire"}
	})
	_, err := InspectSnapshot(bytes.NewReader(file))
	var wrong *StateError
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	all := strings.Join(wrong.Problems, "\n")
	for _, part := range []string{"the generation is", "status 9", "state 7", `"spire"`} {
		if !strings.Contains(all, part) {
			t.Errorf("%s is missing in:\n%s", part, all)
		}
	}
	if len(wrong.Problems) > maxProblems {
		t.Errorf("%d problems", len(wrong.Problems))
	}
}

// A file that is far from the cluster that it is restored into would use up its
// numbers; one of a cluster that lived longer, or less long, does not.
func TestAFileIsJudgedByTheCluster(t *testing.T) {
	h := wholeFleet(t)
	fresh := &history{t: t, store: New(), clock: h.clock, spoken: map[SessionName]uint64{}}
	fresh.must(initCommand("fresh"))
	fresh.must(leaderCommand(testTerm, "cp-9", "boot-9"))
	own := fresh.view().meta
	for name, c := range map[string]struct {
		change func(*meta)
		good   bool
	}{
		"as it is":           {func(*meta) {}, true},
		"index at the limit": {func(m *meta) { m.Index = own.Index + maxRestoreStep }, true},
		"index above it":     {func(m *meta) { m.Index = own.Index + maxRestoreStep + 1 }, false},
		"generation above":   {func(m *meta) { m.Generation = own.Generation + maxRestoreStep + 1 }, false},
		"term above":         {func(m *meta) { m.Term = own.Term + maxRestoreStep + 1 }, false},
		"clock above":        {func(m *meta) { m.Clock = fresh.clock.Add(maxClockStep + time.Hour) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := crafted(t, h.view(), func(s *tables) { c.change(&s.meta); s.meta.ActiveSchema = 1 })
			var out bytes.Buffer
			info, err := RewriteSnapshot(&out, bytes.NewReader(file), fresh.view(), RestoreOptions{Now: fresh.clock, Force: true})
			if c.good != (err == nil) || !c.good && !errors.Is(err, ErrSnapshot) {
				t.Fatalf("%v", err)
			}
			if err == nil && (info.Index <= own.Index || info.Generation <= own.Generation) {
				t.Errorf("index %d and generation %d after %d and %d", info.Index, info.Generation, own.Index, own.Generation)
			}
		})
	}
}

// After a file of a cluster that lived longer, nodes announce and confirm as ever: their
// revisions are above those of the file.
func TestAFreshClusterGoesOnFromALongerLife(t *testing.T) {
	old := meshed(t)
	sessions := old.fleetOf("a", "b")
	for i := range 50 {
		old.announce(sessions["a"], appName("x", byte(i)))
	}
	file := snapshotBytes(t, old.store)
	h := newHistory(t)
	info, rewritten := h.rewrite(file, RestoreOptions{Now: old.clock, Force: true})
	if err := h.store.Restore(bytes.NewReader(rewritten)); err != nil {
		t.Fatal(err)
	}
	for uint64(len(h.log)) < info.Index { // Raft leaves a hole
		h.log = append(h.log, Batch{})
	}
	h.must(leaderCommand(testTerm, "cp-1", "boot-1"))
	again := h.register("b", "n1")
	h.announce(again, appName("y", 1))
	h.register("a", "n1")
	h.withdraw(h.commandSession("a/n1"), appName("x", 7))
	h.check()
	equal(t, "announcers of y", h.announcers(appName("y", 1)), []string{"b/n1"})
	h.stand()
	h.confirm("a/n1", "b/n1")
	for route := range h.view().Routes(RouteFilter{}) {
		if route.Status != RouteApplied && route.Status != RouteDeleted {
			t.Errorf("route of %s is %d after all was confirmed", route.Name, route.Status)
		}
	}
}

// What the replicas agreed on stays theirs when they start: a configuration that no
// operator could make any more keeps no replica from its state.
func TestAStartTakesTheConfigurationThatIsActive(t *testing.T) {
	h := wholeFleet(t)
	file := crafted(t, h.view(), func(s *tables) {
		s.fleet = proto.Clone(s.fleet).(*slimcppb.FleetConfig)
		s.fleet.RegistrationAuth = "spire"
	})
	store := New()
	if err := store.Restore(bytes.NewReader(file)); err != nil {
		t.Fatal(err)
	}
	if _, err := RewriteSnapshot(&bytes.Buffer{}, bytes.NewReader(file), store.View(), RestoreOptions{Now: h.clock, Own: true}); err != nil {
		t.Errorf("it cannot be recovered: %v", err)
	}
	if err := New().Restore(bytes.NewReader(crafted(t, h.view(), func(s *tables) { s.meta.Index = math.MaxUint64 }))); !errors.Is(err, ErrSnapshot) {
		t.Errorf("numbers without end: %v", err)
	}
}
