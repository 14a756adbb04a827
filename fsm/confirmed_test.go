package fsm

import (
	"bytes"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A node knows of its own links only.
func TestDriftIsReportedOfANodesOwnLinks(t *testing.T) {
	h := unclaimed(t)
	h.register("c", "n1")
	before := *h.between("a", "b")
	report := observedCommand("c/n1", h.commandSession("c/n1"))
	report.GetObserved().DriftedLinks = []string{before.ID}
	h.must(report)
	equal(t, "link", *h.between("a", "b"), before)
}

// A list that was asked for before a withdrawal says nothing about it.
func TestAnOlderListSettlesNoDoubt(t *testing.T) {
	h := meshed(t)
	session, x := h.register("a", "n1"), appName("x", 1)
	h.announce(session, x)
	h.announce(session, x)
	asked := h.view().Index()
	h.withdraw(session, x)
	doubted := func() bool {
		record, _ := h.view().NameRecord(x)
		return record.Announcers[0].DoubtedAt > 0
	}
	equal(t, "doubted", doubted(), true)
	h.audit("a/n1", &slimcppb.Audit{Asked: asked, Kept: []*slimcppb.Name{x.Proto()}})
	equal(t, "doubted after an older list", doubted(), true)
	h.audit("a/n1", &slimcppb.Audit{Asked: h.view().Index(), Kept: []*slimcppb.Name{x.Proto()}})
	equal(t, "doubted after a newer list", doubted(), false)
}

// A file's secret goes with its group: else its nodes would be let in again.
func TestTheSecretOfAFileGoesWithItsGroup(t *testing.T) {
	h := newHistory(t)
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{RegistrationAuth: SharedSecret, Secrets: []*slimcppb.GroupSecret{
			{Group: "a", Secret: bytes.Repeat([]byte("a"), MinSecretBytes)},
			{Group: "b", Secret: bytes.Repeat([]byte("b"), MinSecretBytes)},
		}},
	}}})
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: "a"}}})
	for group, want := range map[string]bool{"a": false, "b": true} {
		if _, ok := h.view().Secret(group); ok != want {
			t.Errorf("group %s has a secret: %v", group, ok)
		}
	}
}

// A claim that was made to the old source, with the message that the link knew, is news
// to the new one.
func TestAMovedLinkForgetsItsClaim(t *testing.T) {
	h := unclaimed(t)
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "claim")
	b1 := h.commandSession("b/n1")
	h.register("b", "n2")
	h.depart("b/n1", b1)
	link := h.between("a", "b")
	equal(t, "source", link.SourceNode, "b/n2")
	equal(t, "claim", link.ClaimMessage, "")
}
