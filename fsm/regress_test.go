package fsm

import (
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestRemovalIsNotConfirmedWhileANodeOfAnotherGroupForwards(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1", "s2")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	h.confirm("hub/n1", "s2/n1")
	h.depart("s1/n1", sessions["s1"])
	// s2 still forwards x to hub and has not confirmed.
	equal(t, "confirmed", h.view().RemovalConfirmed(tombstones(h)[0]), false)
	h.confirm("s2/n1")
	h.confirm("hub/n1")
	equal(t, "confirmed", h.view().RemovalConfirmed(tombstones(h)[0]), true)
}

func TestAnEntryThatCannotBeAppliedDoesNotCount(t *testing.T) {
	h := meshed(t)
	next := h.view().Index() + 1
	command := registerCommand(h.sessionName(), "a", "n1", "")
	command.Schema, command.Generation = 99, 1
	h.store.Apply(next, testTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})
	equal(t, "index", h.view().Index(), next-1)
	equal(t, "snapshot index", h.store.Capture().Index(), next-1)
}

func TestATemplateLinksOtherGroupsWhileItsGroupIsThere(t *testing.T) {
	h := newHistory(t)
	h.must(topologyCommand(&slimcppb.Segment{Name: "x-$group", Links: []*slimcppb.Adjacency{
		{Group: "a", Neighbors: []string{"b"}}, {Group: "b", Neighbors: []string{"$group"}},
	}}))
	h.fleetOf("a", "b")
	h.check()
	c := h.register("c", "n1") // with it the template allows a~b
	h.check()
	h.between("b", "c")
	if _, ok := h.view().LinkBetween("a", "b"); !ok {
		t.Error("a~b is allowed now, but not linked")
	}
	h.register("a", "n1") // makes the link
	h.between("a", "b")
	h.depart("c/n1", c) // and takes the permission away
	h.check()
}

func TestANodeThatAnswersAgainOnItsOlderSessionIsLinked(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	second := h.register("a", "n1")
	h.must(silentCommand("a/n1", second, true))
	h.register("b", "n1")
	h.unlinked("a", "b")
	h.lose(second) // the older session is pushed to now
	equal(t, "silent", h.node("a/n1").Silent, false)
	h.between("a", "b")
}
