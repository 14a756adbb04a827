package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// failing adds route failures to a report, at the route's present revision.
func (h *history) failing(report *slimcppb.Command, why string, names ...Name) *slimcppb.Command {
	h.t.Helper()
	body := report.GetNodeReconciled()
	for _, name := range names {
		record, _ := h.view().NameRecord(name)
		for link := range h.view().Fan(body.GetNodeId()).Links(record) {
			body.Failures = append(body.Failures, &slimcppb.RouteFailure{
				Name: name.Proto(), LinkId: link.ID, Error: why,
				Revision: h.view().RouteRevision(link, body.GetNodeId(), record),
			})
		}
	}
	return report
}

// routed begins a history in which b/n1 forwards names of a/n1.
func routed(t *testing.T, names ...Name) (*history, map[string]SessionName) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	h.announce(sessions["a"], names...)
	return h, sessions
}

func TestARouteIsPendingUntilItIsConfirmed(t *testing.T) {
	x, y := appName("x", 1), appName("y", 1)
	h, sessions := routed(t, x)
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
	h.must(reconciledCommand("b/n1", sessions["b"], h.view().Index()-1))
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
	h.confirm("b/n1")
	h.expectStatus("b/n1", "a/n1", x, RouteApplied)
	h.announce(sessions["a"], y)
	h.expectStatus("b/n1", "a/n1", y, RoutePending)
	h.expectStatus("b/n1", "a/n1", x, RouteApplied)
}

func TestAnAnswerWithoutAnIndexConfirmsNoRoute(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.must(reconciledCommand("b/n1", sessions["b"], 0))
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
}

func TestANewSessionConfirmsItsRoutesAnew(t *testing.T) {
	x := appName("x", 1)
	h, _ := routed(t, x)
	h.confirm("b/n1")
	h.register("b", "n1")
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
}

func TestRoutesOverALinkThatIsDownArePending(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.confirm("b/n1")
	h.must(observedCommand("b/n1", sessions["b"], seenDown(h.between("a", "b"), "reset by peer")))
	h.confirm("b/n1")
	status, message := h.status("b/n1", "a/n1", x)
	equal(t, "status", status, RoutePending)
	equal(t, "message", message, "reset by peer")
}

// Both ends of a link that was made again lost their routes over it.
func TestALinkThatStandsAgainHasItsRoutesPushedAtBothEnds(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(sessions["a"], x)
	h.announce(sessions["b"], y)
	h.confirm("a/n1", "b/n1")
	for name, raise := range map[string]func(){
		"a repeated claim": func() { h.claim(sessions["a"], h.between("a", "b").ID, "again") },
		"seen down, then up": func() {
			h.must(observedCommand("b/n1", sessions["b"], seenDown(h.between("a", "b"), "reset")))
			h.must(reconciledCommand("b/n1", sessions["b"], 0, dialled(h.between("a", "b"))))
			h.must(observedCommand("b/n1", sessions["b"], seenUp(h.between("a", "b"), "n1")))
		},
	} {
		h.expectStatus("b/n1", "a/n1", x, RouteApplied)
		h.expectStatus("a/n1", "b/n1", y, RouteApplied)
		raise()
		t.Log("after", name)
		h.expectStatus("b/n1", "a/n1", x, RoutePending)
		h.expectStatus("a/n1", "b/n1", y, RoutePending)
		h.confirm("a/n1", "b/n1")
	}
}

func TestAGroupThatJoinsAtTheEdgeDisturbsNoRoute(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1", "s2")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	h.confirm("hub/n1", "s2/n1")
	h.register("s3", "n1")
	h.stand()
	h.expectStatus("hub/n1", "s1/n1", x, RouteApplied)
	h.expectStatus("s2/n1", "s1/n1", x, RouteApplied)
	h.expectStatus("s3/n1", "s1/n1", x, RoutePending)
}

func TestAGroupThatChangesPathsHasAllRoutesConfirmedAnew(t *testing.T) {
	h := newHistory(t)
	h.must(topologyCommand(linksSegment(DefaultSegment, append(chainPairs("a", "b", "c", "d"), [2]string{"a", "x"}, [2]string{"x", "d"})...)))
	sessions := h.fleetOf("a", "b", "c", "d")
	name := appName("x", 1)
	h.announce(sessions["d"], name)
	h.confirm("a/n1", "b/n1", "c/n1")
	changes := h.changesOf(func() { h.register("x", "n1") })
	h.stand()
	equal(t, "trees changed", changes.Trees, true)
	h.expectForwards(name, map[string][]string{"a/n1": {"x"}, "b/n1": {"c"}, "c/n1": {"d"}, "x/n1": {"d"}})
	h.expectStatus("a/n1", "d/n1", name, RoutePending)
}

// A path may change to a link that stands and a name that is known since long: what
// the node confirmed before does not count for the new route.
func TestANewPathOverOldLinksIsConfirmedAnew(t *testing.T) {
	ring := [][2]string{{"a", "b"}, {"a", "c"}, {"b", "d"}, {"c", "d"}}
	for what, change := range map[string]func(h *history, sessions map[string]SessionName){
		"an edge goes": func(h *history, _ map[string]SessionName) {
			h.must(topologyCommand(linksSegment(DefaultSegment, slices.Delete(slices.Clone(ring), 2, 3)...)))
		},
		"a group goes": func(h *history, sessions map[string]SessionName) { h.depart("b/n1", sessions["b"]) },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHistory(t)
			h.must(topologyCommand(linksSegment(DefaultSegment, ring...)))
			sessions := h.fleetOf("a", "b", "c", "d")
			x := appName("x", 1)
			h.announce(sessions["d"], x)
			h.confirm("a/n1", "b/n1", "c/n1")
			equal(t, "path before", h.forwards("a/n1", x), []string{"b"})
			link := *h.between("a", "c")
			changes := h.changesOf(func() { change(h, sessions) })
			equal(t, "trees changed", changes.Trees, true)
			equal(t, "path", h.forwards("a/n1", x), []string{"c"})
			equal(t, "link", *h.between("a", "c"), link)
			h.expectStatus("a/n1", "d/n1", x, RoutePending)
			h.confirm("a/n1")
			h.expectStatus("a/n1", "d/n1", x, RouteApplied)
		})
	}
}

func TestARefusedRouteIsFailed(t *testing.T) {
	x, y := appName("x", 1), appName("y", 1)
	h, sessions := routed(t, x, y)
	h.must(h.failing(reconciledCommand("b/n1", sessions["b"], h.view().Index()), "no such connection", x))
	status, message := h.status("b/n1", "a/n1", x)
	equal(t, "status", status, RouteFailed)
	equal(t, "message", message, "no such connection")
	h.expectStatus("b/n1", "a/n1", y, RouteApplied)

	// A report holds all failures: what it does not name has recovered.
	h.confirm("b/n1")
	h.expectStatus("b/n1", "a/n1", x, RouteApplied)
}

func TestAStampedRouteLeavesTheFailures(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.must(h.failing(reconciledCommand("b/n1", sessions["b"], h.view().Index()), "refused", x))
	h.expectStatus("b/n1", "a/n1", x, RouteFailed)
	h.claim(sessions["a"], h.between("a", "b").ID, "again")
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
}

func TestAFailureKeepsItsTimeWhileItsTextStays(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	fail := func(why string) {
		h.must(h.failing(reconciledCommand("b/n1", sessions["b"], h.view().Index()), why, x))
	}
	fail("refused")
	since := h.node("b/n1").Failures[0].UpdatedAt
	fail("refused")
	equal(t, "time", h.node("b/n1").Failures[0].UpdatedAt, since)
	fail("refused otherwise")
	equal(t, "time", h.node("b/n1").Failures[0].UpdatedAt, h.view().Clock())
}

func TestFailuresAreBounded(t *testing.T) {
	var names []Name
	for i := range MaxFailures + 20 {
		names = append(names, appName(fmt.Sprintf("app-%03d", i), 1))
	}
	h, sessions := routed(t, names...)
	h.must(h.failing(reconciledCommand("b/n1", sessions["b"], h.view().Index()), "refused", names...))
	failures := h.node("b/n1").Failures
	equal(t, "number of failures", len(failures), MaxFailures)
	if !slices.IsSortedFunc(failures, compareFailures) {
		t.Error("failures are out of order")
	}
	h.deregister(sessions["b"])
	equal(t, "failures of a node that is leaving", len(h.node("b/n1").Failures), 0)
}

func TestAWithdrawnRouteIsListedAsDeleted(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.confirm("b/n1")
	h.withdraw(sessions["a"], x)
	h.expectStatus("b/n1", "a/n1", x, RouteDeleted)
	h.expectStatus(TemplateSource, "a/n1", x, RouteDeleted)
	h.must(purgeCommand(tombstones(h)))
	if rows := routeRows(h.view(), RouteFilter{}); len(rows) != 0 {
		t.Errorf("rows %q", rows)
	}
}

func TestADepartedAnnouncersRouteIsListedAsDeleted(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.depart("a/n1", sessions["a"])
	h.expectStatus("b/n1", "a/n1", x, RouteDeleted)
}

func TestTemplatesListWhatIsAnnounced(t *testing.T) {
	x := appName("x", 1)
	h, sessions := routed(t, x)
	h.announce(sessions["b"], x)
	h.expectStatus(TemplateSource, "a/n1", x, RouteApplied)
	h.expectStatus(TemplateSource, "b/n1", x, RouteApplied)
	want := []string{
		"* -> a/n1 org/ns/x 2", "* -> b/n1 org/ns/x 2", "a/n1 -> b/n1 org/ns/x 1", "b/n1 -> a/n1 org/ns/x 1",
	}
	if rows := routeRows(h.view(), RouteFilter{}); !slices.Equal(rows, want) {
		t.Errorf("rows %q, not %q", rows, want)
	}
	if rows := routeRows(h.view(), RouteFilter{Dest: "b/n1"}); !slices.Equal(rows, []string{want[1], want[2]}) {
		t.Errorf("rows towards b/n1 %q", rows)
	}
	if rows := routeRows(h.view(), RouteFilter{Source: "b/n1"}); !slices.Equal(rows, want[3:]) {
		t.Errorf("rows of b/n1 %q", rows)
	}
	if rows := routeRows(h.view(), RouteFilter{Source: "c/n1"}); len(rows) != 0 {
		t.Errorf("rows of nobody %q", rows)
	}
}

// A withdrawal must reach every node that forwarded the name, also if a command
// that still set the route was on its way.
func TestARemovalIsConfirmedByEveryNodeThatForwarded(t *testing.T) {
	x := appName("x", 1)
	begin := func() (*history, map[string]SessionName, func() bool) {
		h := star(t)
		sessions := h.fleetOf("hub", "s1", "s2")
		h.announce(sessions["s1"], x)
		h.confirm("hub/n1", "s1/n1", "s2/n1")
		pushed := h.view().Index()
		h.withdraw(sessions["s1"], x)
		confirmed := func() bool { return h.view().RemovalConfirmed(tombstones(h)[0]) }
		if confirmed() {
			t.Fatal("confirmed by nobody")
		}
		// The answer to what was pushed before the withdrawal.
		h.must(reconciledCommand("hub/n1", sessions["hub"], pushed))
		h.must(reconciledCommand("s2/n1", sessions["s2"], pushed))
		if confirmed() {
			t.Fatal("confirmed by an answer to an older push")
		}
		h.confirm("hub/n1")
		return h, sessions, confirmed
	}
	t.Run("by its answer", func(t *testing.T) {
		h, _, confirmed := begin()
		equal(t, "confirmed before the last answer", confirmed(), false)
		h.confirm("s2/n1")
		equal(t, "confirmed", confirmed(), true)
	})
	t.Run("by the end of its session", func(t *testing.T) {
		h, sessions, confirmed := begin()
		h.lose(sessions["s2"])
		equal(t, "confirmed", confirmed(), true)
	})
	t.Run("by the end of the link", func(t *testing.T) {
		h, sessions, confirmed := begin()
		h.depart("s2/n1", sessions["s2"])
		equal(t, "confirmed", confirmed(), true)
	})
}

func TestARemovalBesideAnotherAnnouncerIsConfirmed(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1", "s2")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	h.announce(sessions["s2"], x)
	h.depart("s2/n1", sessions["s2"])
	h.confirm("hub/n1", "s1/n1")
	equal(t, "confirmed", h.view().RemovalConfirmed(tombstones(h)[0]), true)
	h.expectForwards(x, map[string][]string{"hub/n1": {"s1"}})
}
