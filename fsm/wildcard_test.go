package fsm

import "testing"

// Groups that nobody knew when the topology was given are part of "every group"
// from their first node on.
func TestGroupThatJoinsIsReachedOverAWildcard(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	h.fleetOf("newcomer")
	if !h.linked("hub", "newcomer") || h.linked("s1", "newcomer") {
		t.Error("the newcomer is not linked with the hub alone")
	}
	h.expectForwards(x, map[string][]string{"hub/n1": {"s1"}, "newcomer/n1": {"hub"}})
	h.check()
}
