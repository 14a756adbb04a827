package fsm

import (
	"slices"
	"testing"
)

// fleetOf begins a history with one node n1 in each group, all links standing.
// It returns their sessions.
func (h *history) fleetOf(groups ...string) map[string]SessionName {
	h.t.Helper()
	sessions := map[string]SessionName{}
	for _, group := range groups {
		sessions[group] = h.register(group, "n1")
	}
	h.stand()
	return sessions
}

func TestRoutesInAMesh(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b", "c")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}, "c/n1": {"a"}})
	// A second announcer is reached through the oldest one, so that each message
	// arrives once.
	h.announce(sessions["b"], x)
	h.expectForwards(x, map[string][]string{"a/n1": {"b"}, "b/n1": {"a"}, "c/n1": {"a"}})
	h.check()
}

func TestRoutesInAStar(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("s1", "s2", "hub", "s3")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(sessions["s1"], x)
	h.expectForwards(x, map[string][]string{"hub/n1": {"s1"}, "s2/n1": {"hub"}, "s3/n1": {"hub"}})
	h.announce(sessions["s3"], x)
	h.expectForwards(x, map[string][]string{"hub/n1": {"s1", "s3"}, "s1/n1": {"hub"}, "s2/n1": {"hub"}, "s3/n1": {"hub"}})
	h.announce(sessions["hub"], y)
	h.expectForwards(y, map[string][]string{"s1/n1": {"hub"}, "s2/n1": {"hub"}, "s3/n1": {"hub"}})
	h.check()
}

func TestRoutesInAChain(t *testing.T) {
	h := chain(t, "a", "b", "c", "d")
	sessions := h.fleetOf("a", "b", "c", "d")
	x := appName("x", 1)
	h.announce(sessions["d"], x)
	h.expectForwards(x, map[string][]string{"a/n1": {"b"}, "b/n1": {"c"}, "c/n1": {"d"}})
	h.announce(sessions["b"], x) // the path from d down to b
	h.expectForwards(x, map[string][]string{"a/n1": {"b"}, "b/n1": {"c"}, "c/n1": {"b", "d"}, "d/n1": {"c"}})
	h.announce(sessions["a"], x)
	h.expectForwards(x, map[string][]string{"a/n1": {"b"}, "b/n1": {"a", "c"}, "c/n1": {"b", "d"}, "d/n1": {"c"}})
	h.check()
}

// Between equally short paths the smallest group name decides, on every replica.
func TestEqualPathsGoByTheSmallestName(t *testing.T) {
	h := newHistory(t)
	h.must(topologyCommand(linksSegment(DefaultSegment,
		[2]string{"z", "from"}, [2]string{"m", "from"}, [2]string{"to", "z"}, [2]string{"to", "m"})))
	sessions := h.fleetOf("z", "from", "to", "m")
	x := appName("x", 1)
	h.announce(sessions["to"], x)
	h.expectForwards(x, map[string][]string{"from/n1": {"m"}, "m/n1": {"to"}, "z/n1": {"to"}})
}

// Once the oldest announcer left, the others could not be reached any more.
func TestTheOthersAreReachedWhenTheOldestAnnouncerLeaves(t *testing.T) {
	h := chain(t, "a", "b", "c", "d")
	sessions := h.fleetOf("a", "b", "c", "d")
	x := appName("x", 1)
	h.announce(sessions["d"], x)
	h.announce(sessions["a"], x)
	h.depart("d/n1", sessions["d"])
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}, "c/n1": {"b"}})
	h.check()
}

func TestTwoAnnouncersOfAGroupShareOneRoute(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	second := h.register("a", "n2")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	h.announce(second, x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	h.confirm("b/n1")
	// Each has a row of its own, with the status of the one route.
	for _, announcer := range []string{"a/n1", "a/n2"} {
		h.expectStatus("b/n1", announcer, x, RouteApplied)
	}
	h.depart("a/n2", second)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	h.expectStatus("b/n1", "a/n2", x, RouteDeleted)
}

func TestPartsOfASegmentDoNotReachEachOther(t *testing.T) {
	h := newHistory(t)
	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"a", "b"}, [2]string{"c", "d"})))
	sessions := h.fleetOf("a", "b", "c", "d", "alone")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	h.announce(sessions["c"], x)
	h.announce(sessions["alone"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}, "d/n1": {"c"}})
	h.check()
}

// A name that two segments know has an oldest announcer in each.
func TestEqualNamesOfTwoSegments(t *testing.T) {
	h := newHistory(t)
	h.must(topologyCommand(
		linksSegment("one", [2]string{"a", "b"}, [2]string{"b", "hub"}),
		linksSegment("two", [2]string{"c", "d"}, [2]string{"d", "hub"}),
	))
	sessions := h.fleetOf("a", "b", "c", "d", "hub")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}, "hub/n1": {"b"}})
	h.announce(sessions["c"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}, "d/n1": {"c"}, "hub/n1": {"b", "d"}})
	h.check()
}

func TestRoutesNeedALinkWithTwoEnds(t *testing.T) {
	h := meshed(t)
	a := h.register("a", "n1")
	h.register("b", "n1")
	x := appName("x", 1)
	h.announce(a, x)
	h.expectForwards(x, nil)
	if !h.view().Fan("b/n1").Empty() {
		t.Error("a node has routes over a link that nobody claimed")
	}
	h.stand()
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})

	// Routes stay wanted while a link is being made again.
	h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenDown(h.between("a", "b"), "reset")))
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	h.expectStatus("b/n1", "a/n1", x, RoutePending)
}

func TestOnlyTheGatewayForwards(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	h.register("b", "n2")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	h.depart("b/n1", sessions["b"])
	h.expectForwards(x, nil) // until the link is made again
	h.stand()
	h.expectForwards(x, map[string][]string{"b/n2": {"a"}})
}

// A new edge that shortens a path once left the old hop in place as well.
func TestNoHopOutlivesATopologyChange(t *testing.T) {
	h := chain(t, "a", "b", "c")
	sessions := h.fleetOf("a", "b", "c")
	x := appName("x", 1)
	h.announce(sessions["c"], x)
	h.expectForwards(x, map[string][]string{"a/n1": {"b"}, "b/n1": {"c"}})
	h.must(topologyCommand(linksSegment(DefaultSegment, append(chainPairs("a", "b", "c"), [2]string{"a", "c"})...)))
	h.stand()
	h.expectForwards(x, map[string][]string{"a/n1": {"c"}, "b/n1": {"c"}})
	h.must(topologyCommand(linksSegment(DefaultSegment, chainPairs("a", "b")...)))
	h.expectForwards(x, nil)
}

// The last route and the last link of a node must be taken from it as well.
func TestTheLastRouteAndTheLastLinkGo(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	changes := h.changesOf(func() { h.withdraw(sessions["a"], x) })
	h.expectForwards(x, nil)
	if len(changes.Names) != 1 || !slices.Equal(changes.Names[0].GroupsBefore, []string{"a"}) {
		t.Fatalf("names %+v", changes.Names)
	}
	// Who forwarded it is found by the groups that announced it before.
	carriers := map[string]string{}
	for id, link := range h.view().Carriers(changes.Names[0].GroupsBefore) {
		carriers[id] = link.PeerGroup("b")
	}
	equal(t, "carriers", carriers, map[string]string{"b/n1": "a"})

	link := h.between("a", "b")
	changes = h.changesOf(func() { h.depart("a/n1", sessions["a"]) })
	found := false
	for _, change := range changes.Links {
		found = found || change.LinkID == link.ID && change.Before != nil && change.Before.Live()
	}
	if !found || !h.view().Fan("b/n1").Empty() {
		t.Errorf("the deletion of the last link is not told: %+v", changes.Links)
	}
}

func TestForwardsAgreesWithFan(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1", "s2", "s3")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	h.announce(sessions["s2"], x)
	view := h.view()
	record, _ := view.NameRecord(x)
	for link := range view.Links() {
		for _, group := range []string{link.SourceGroup, link.DestGroup} {
			wants := slices.Contains(h.forwards(group+"/n1", x), link.PeerGroup(group))
			equal(t, group+" over its link with "+link.PeerGroup(group), view.Forwards(link, group, record), wants)
		}
	}
}
