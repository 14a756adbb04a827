package fsm

import (
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func incoming(link *Link) *slimcppb.ReportedLink {
	return &slimcppb.ReportedLink{LinkId: link.ID, Incoming: true}
}

func outgoing(link *Link) *slimcppb.ReportedLink {
	return &slimcppb.ReportedLink{LinkId: link.ID}
}

// pairOfNodes begins a history with the link that b/n1 dials and a/n1 holds.
func pairOfNodes(t *testing.T) (h *history, link *Link) {
	h = meshed(t)
	h.register("a", "n1")
	h.register("b", "n1")
	h.stand()
	link = h.between("a", "b")
	if link.SourceNode != "b/n1" || link.DestNode != "a/n1" || link.Status != LinkApplied {
		t.Fatalf("link %+v", *link)
	}
	return h, link
}

// expectDown checks that a link was set back, with new revisions at both ends.
func expectDown(t *testing.T, h *history, before *Link) {
	t.Helper()
	link := h.between("a", "b")
	equal(t, "id", link.ID, before.ID)
	equal(t, "status", link.Status, LinkPending)
	equal(t, "end", link.DestNode, before.DestNode)
	equal(t, "source's revision", link.SourceRevision, h.view().Index())
	equal(t, "destination's revision", link.DestRevision, h.view().Index())
	if link.StatusMessage == "" {
		t.Error("the link does not say why it is down")
	}
	h.check()
}

func TestAnIncomingLinkThatIsNotReportedIsDown(t *testing.T) {
	h, link := pairOfNodes(t)
	h.register("a", "n1")
	expectDown(t, h, link)
}

func TestALinkReportedAsOutgoingIsNotAnIncomingOne(t *testing.T) {
	h, link := pairOfNodes(t)
	h.register("a", "n1", outgoing(link))
	expectDown(t, h, link)
}

func TestAnIncomingLinkThatIsReportedStands(t *testing.T) {
	h, link := pairOfNodes(t)
	h.register("a", "n1", incoming(link))
	equal(t, "link", *h.between("a", "b"), *link)
}

func TestADialledIncomingLinkThatIsNotReportedIsDown(t *testing.T) {
	h, _ := pairOfNodes(t)
	h.register("b", "n1")
	link := h.between("a", "b")
	h.must(reconciledCommand("b/n1", h.commandSession("b/n1"), 0, dialled(link)))
	equal(t, "status", h.between("a", "b").Status, LinkConnecting)
	h.register("a", "n1")
	expectDown(t, h, link)
}

func TestAReportedUnclaimedLinkIsClaimed(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	h.register("a", "n2")
	h.register("b", "n1")
	link := h.between("a", "b")
	h.register("a", "n2", incoming(link)) // whichever endpoint was dialled
	claimed := h.between("a", "b")
	equal(t, "end", claimed.DestNode, "a/n2")
	equal(t, "status", claimed.Status, LinkApplied)
	equal(t, "source's revision", claimed.SourceRevision, h.view().Index())
	equal(t, "destination's revision", claimed.DestRevision, h.view().Index())
	h.check()
}

func TestALinkReportedAsOutgoingIsNotClaimed(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	h.register("b", "n1")
	link := h.between("a", "b")
	h.register("a", "n2", outgoing(link))
	equal(t, "link", *h.between("a", "b"), *link)
}

func TestAReportedLinkThatASiblingHoldsIsDisputed(t *testing.T) {
	h, link := pairOfNodes(t)
	changes := h.changesOf(func() { h.register("a", "n2", incoming(link)) })
	disputed := h.between("a", "b")
	equal(t, "end", disputed.DestNode, "a/n1")
	equal(t, "disputed by", disputed.DisputedBy, "a/n2")
	if len(changes.Disputes) != 1 || changes.Disputes[0] != link.ID {
		t.Errorf("disputes %q", changes.Disputes)
	}
}

// A node drops its outgoing links before it connects, whatever it reports.
func TestANewSessionOfTheSourceSetsItsLinksBack(t *testing.T) {
	for _, reports := range []func(*Link) *slimcppb.ReportedLink{incoming, outgoing} {
		h, link := pairOfNodes(t)
		h.register("b", "n1", reports(link))
		expectDown(t, h, link)
	}
}

func TestAReportClaimsNothingForTheSourcesGroup(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	h.register("b", "n1")
	link := h.between("a", "b")
	h.register("b", "n2", incoming(link))
	h.register("c", "n1", incoming(link))
	equal(t, "link", *h.between("a", "b"), *link)
}

func TestReportsOfStrangeLinksAreIgnored(t *testing.T) {
	h, link := pairOfNodes(t)
	h.register("a", "n1", incoming(link), incoming(&Link{ID: "e9a3aab6-2f5b-4c8b-9f7e-0a4f3c1e8d55"}), incoming(&Link{}))
	equal(t, "link", *h.between("a", "b"), *link)
	h.check()
}

func TestAResumedRegistrationSaysNothingAboutLinks(t *testing.T) {
	for _, id := range []string{"a", "b"} {
		h, link := pairOfNodes(t)
		resumed := registerCommand(h.sessionName(), id, "n1", id+"-n1.test:1")
		resumed.GetRegisterNode().Resumed = true
		h.must(resumed)
		equal(t, "link", *h.between("a", "b"), *link)
		if session, _ := h.node(id + "/n1").CommandSession(); !session.Resumed {
			t.Error("the session is not marked as resumed")
		}
	}
}

func TestTheReportOfASessionThatIsNotTheNewestIsNotUsed(t *testing.T) {
	h, link := pairOfNodes(t)
	late := registerCommand(h.sessionName(), "a", "n1", "a-n1.test:1")
	late.GetRegisterNode().ProvisionalEpoch = 1
	h.must(late)
	equal(t, "link", *h.between("a", "b"), *link)
}

// A link that was deleted while its source was away is not held by it any more.
func TestARegisteringSourceHoldsNoDeletedLink(t *testing.T) {
	h, link := pairOfNodes(t)
	h.must(topologyCommand())
	if deleted := h.link(link.ID); deleted.Live() || deleted.Gone {
		t.Fatalf("link %+v", *deleted)
	}
	h.register("b", "n1")
	if !h.link(link.ID).Gone {
		t.Error("the link is still waited for")
	}
}
