package fsm

import (
	"errors"
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// expectStands checks that a link stands since the last entry.
func expectStands(t *testing.T, h *history, destination string) {
	t.Helper()
	link := h.between("a", "b")
	equal(t, "status", link.Status, LinkApplied)
	equal(t, "end", link.DestNode, destination)
	equal(t, "source's revision", link.SourceRevision, h.view().Index())
	equal(t, "destination's revision", link.DestRevision, h.view().Index())
	equal(t, "reached", link.ReachedAt, h.view().Clock())
	equal(t, "disputed by", link.DisputedBy, "")
	h.check()
}

// unclaimed begins a history with a link that b/n1 is to dial; a has two nodes.
func unclaimed(t *testing.T) *history {
	h := meshed(t)
	h.register("a", "n1")
	h.register("a", "n2")
	h.register("b", "n1")
	equal(t, "source", h.between("a", "b").SourceNode, "b/n1")
	return h
}

func TestAClaimOvertakesTheDialsAnswer(t *testing.T) {
	h := unclaimed(t)
	pushed := h.between("a", "b")
	h.claim(h.commandSession("a/n2"), pushed.ID, "m1")
	expectStands(t, h, "a/n2")
	claimed := *h.between("a", "b")

	// The answer to what was pushed before the claim changes nothing.
	for _, ack := range []bool{true, false} {
		late := refused(pushed, "late")
		late.Success = ack
		h.must(reconciledCommand("b/n1", h.commandSession("b/n1"), 0, late))
		equal(t, "link", *h.between("a", "b"), claimed)
	}
}

func TestADialThatSucceedsWaitsForAClaim(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("b/n1")
	h.must(reconciledCommand("b/n1", session, 0, dialled(h.between("a", "b"))))
	link := h.between("a", "b")
	equal(t, "status", link.Status, LinkConnecting)
	equal(t, "acknowledged", link.Acked, true)
	h.claim(h.commandSession("a/n1"), link.ID, "m1")
	expectStands(t, h, "a/n1")
}

func TestARefusedDialFails(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("b/n1")
	for failures := range 3 {
		h.must(reconciledCommand("b/n1", session, 0, refused(h.between("a", "b"), "connection refused")))
		link := h.between("a", "b")
		equal(t, "status", link.Status, LinkFailed)
		equal(t, "message", link.StatusMessage, "connection refused")
		equal(t, "failures", int(link.Failures), failures+1)
		equal(t, "acknowledged", link.Acked, false)
	}
	// The next dial succeeds, and what failed before is forgotten with the claim.
	h.must(reconciledCommand("b/n1", session, 0, dialled(h.between("a", "b"))))
	equal(t, "status", h.between("a", "b").Status, LinkConnecting)
	equal(t, "message", h.between("a", "b").StatusMessage, "")
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	expectStands(t, h, "a/n1")
	equal(t, "failures", h.between("a", "b").Failures, 0)
}

func TestAClaimOfAFailedLinkCounts(t *testing.T) {
	h := unclaimed(t)
	h.must(reconciledCommand("b/n1", h.commandSession("b/n1"), 0, refused(h.between("a", "b"), "timed out")))
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	expectStands(t, h, "a/n1")
}

func TestAnswersForAnotherStateOfTheLinkAreIgnored(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("b/n1")
	old := h.between("a", "b")
	h.register("b", "n1") // dials again
	link := *h.between("a", "b")
	if link.SourceRevision == old.SourceRevision {
		t.Fatal("the new session did not raise the link's revision")
	}
	h.refuse(reconciledCommand("b/n1", session, 0, dialled(old)), ErrStale)
	session = h.commandSession("b/n1")
	h.must(reconciledCommand("b/n1", session, 0, dialled(old)))
	h.must(observedCommand("b/n1", session, seenUp(old, "n1"), seenDown(old, "gone")))
	equal(t, "link", *h.between("a", "b"), link)
	// Only the source is asked.
	h.must(reconciledCommand("a/n1", h.commandSession("a/n1"), 0, dialled(&link)))
	h.must(observedCommand("a/n1", h.commandSession("a/n1"), seenUp(&link, "n1")))
	equal(t, "link", *h.between("a", "b"), link)
}

// A link that stands was confirmed by its other end; how its source was dialled says less.
func TestAnswersForALinkThatStandsAreIgnored(t *testing.T) {
	h := unclaimed(t)
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "claim")
	link := *h.between("a", "b")
	equal(t, "status", link.Status, LinkApplied)
	for _, answer := range []*slimcppb.LinkAck{dialled(&link), refused(&link, "connection refused")} {
		h.must(reconciledCommand("b/n1", h.commandSession("b/n1"), 0, answer))
		equal(t, "link", *h.between("a", "b"), link)
	}
}

// Of a pair whose link is replaced again and again, one deleted link is listed, and those
// that their sources have yet to drop.
func TestOneDeletedLinkOfAPairIsListed(t *testing.T) {
	h := unclaimed(t)
	for range 5 {
		former := h.between("a", "b")
		h.must(replaceCommand(former))
		gone := reconciledCommand(former.SourceNode, h.commandSession(former.SourceNode), 0)
		gone.GetNodeReconciled().GoneLinks = []string{former.ID}
		h.must(gone)
		listed := slices.DeleteFunc(slices.Collect(h.view().Links()), (*Link).Live)
		if len(listed) != 1 || listed[0].ID != former.ID {
			t.Fatalf("%d deleted links are listed", len(listed))
		}
		h.check()
	}
}

// A link that moved to a sibling while its old source was still answering.
func TestTheAnswerOfTheOldSourceSaysNothingAboutTheMovedLink(t *testing.T) {
	h := unclaimed(t)
	b1 := h.commandSession("b/n1")
	h.register("b", "n2")
	pushed := h.between("a", "b")
	h.must(silentCommand("b/n1", b1, true))
	moved := *h.between("a", "b")
	equal(t, "source", moved.SourceNode, "b/n2")
	h.must(reconciledCommand("b/n1", b1, 0, dialled(pushed)))
	h.must(reconciledCommand("b/n1", b1, 0, dialled(&moved)))
	equal(t, "link", *h.between("a", "b"), moved)
}

func TestOnlyTheDestinationGroupClaims(t *testing.T) {
	h := unclaimed(t)
	h.register("b", "n2")
	h.register("c", "n1")
	lone := h.sessionName()
	h.must(registerCommand(lone, "", "lone", ""))
	link := *h.between("a", "b")
	for _, session := range []SessionName{h.commandSession("b/n1"), h.commandSession("b/n2"), h.commandSession("c/n1"), lone} {
		h.claim(session, link.ID, "m1")
		equal(t, "link", *h.between("a", "b"), link)
	}
	h.claim(h.commandSession("a/n1"), link.ID, "m1")
	h.claim(h.commandSession("b/n1"), link.ID, "m2")
	equal(t, "end", h.between("a", "b").DestNode, "a/n1")
}

func TestAClaimOfAnUnknownLinkTakesItsNumber(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("a/n1")
	h.refuse(claimCommand(session, 1, "no-such-link", "m1"), ErrUnknownLink)
	h.refuse(claimCommand(session, 1, h.between("a", "b").ID, "m1"), ErrStaleSequence)
}

func TestADeletedLinkIsNotClaimed(t *testing.T) {
	h := unclaimed(t)
	id := h.between("a", "b").ID
	session := h.commandSession("a/n1")
	h.must(topologyCommand())
	h.refuse(claimCommand(session, 1, id, "m1"), ErrUnknownLink)
	equal(t, "status", h.link(id).Status, LinkDeleted)
	equal(t, "end", h.link(id).DestNode, "")
	h.check()
}

// A repeated claim is a new connection: the routes of the one before are gone at
// both ends. The same message read twice is not.
func TestARepeatedClaimPushesTheRoutesAgain(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("a/n1")
	id := h.between("a", "b").ID
	h.claim(session, id, "m1")
	first := *h.between("a", "b")
	h.claim(session, id, "m1")
	equal(t, "link after the same message", *h.between("a", "b"), first)
	h.claim(session, id, "m2")
	expectStands(t, h, "a/n1")
	if h.between("a", "b").SourceRevision == first.SourceRevision {
		t.Error("the revision stayed")
	}
}

// Behind a load balancer a new dial may reach another node of the group. The
// source knows which connection is the living one.
func TestADisputedEndIsSettledByTheSource(t *testing.T) {
	begin := func() *history {
		h := unclaimed(t)
		h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
		before := *h.between("a", "b")
		changes := h.changesOf(func() { h.claim(h.commandSession("a/n2"), before.ID, "m2") })
		link := *h.between("a", "b")
		equal(t, "disputed by", link.DisputedBy, "a/n2")
		equal(t, "end", link.DestNode, "a/n1")
		equal(t, "revision", link.SourceRevision, before.SourceRevision)
		if len(changes.Disputes) != 1 || changes.Disputes[0] != before.ID {
			t.Errorf("the feed names the disputes %q", changes.Disputes)
		}
		return h
	}
	t.Run("for the one that claimed", func(t *testing.T) {
		h := begin()
		h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenUp(h.between("a", "b"), "n2")))
		expectStands(t, h, "a/n2")
	})
	t.Run("for the one that holds it", func(t *testing.T) {
		h := begin()
		before := *h.between("a", "b")
		h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenUp(h.between("a", "b"), "n1")))
		before.DisputedBy = ""
		equal(t, "link", *h.between("a", "b"), before)
	})
	t.Run("for nobody we know", func(t *testing.T) {
		h := begin()
		before := *h.between("a", "b")
		h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenUp(h.between("a", "b"), "n9")))
		equal(t, "link", *h.between("a", "b"), before)
	})
	t.Run("it is down", func(t *testing.T) {
		h := begin()
		h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenDown(h.between("a", "b"), "reset by peer")))
		link := h.between("a", "b")
		equal(t, "status", link.Status, LinkPending)
		equal(t, "message", link.StatusMessage, "reset by peer")
	})
}

func TestTheSourceNamesTheEndOfAnUnclaimedLink(t *testing.T) {
	h := unclaimed(t)
	session := h.commandSession("b/n1")
	h.must(reconciledCommand("b/n1", session, 0, dialled(h.between("a", "b"))))
	h.must(observedCommand("b/n1", session, seenUp(h.between("a", "b"), "n2")))
	expectStands(t, h, "a/n2")
}

func TestALinkSeenDownIsDialledAgain(t *testing.T) {
	h := unclaimed(t)
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	session := h.commandSession("b/n1")
	up := h.between("a", "b")
	h.must(observedCommand("b/n1", session, seenDown(up, "not in the connection list")))
	expectDown(t, h, up)
	equal(t, "message", h.between("a", "b").StatusMessage, "not in the connection list")

	// Seen down again says nothing new about a link that waits to be dialled.
	pending := *h.between("a", "b")
	h.must(observedCommand("b/n1", session, seenDown(&pending, "still not there")))
	equal(t, "link", *h.between("a", "b"), pending)

	// A dial that succeeds does not yet prove the end: an id that is dying is
	// acknowledged as well.
	h.must(reconciledCommand("b/n1", session, 0, dialled(&pending)))
	equal(t, "status", h.between("a", "b").Status, LinkConnecting)
	h.must(observedCommand("b/n1", session, seenUp(h.between("a", "b"), "n1")))
	expectStands(t, h, "a/n1")
}

func TestObservationsThatAgreeChangeNothing(t *testing.T) {
	h := unclaimed(t)
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	before := *h.between("a", "b")
	h.must(observedCommand("b/n1", h.commandSession("b/n1"), seenUp(&before, "n1")))
	equal(t, "link", *h.between("a", "b"), before)
}

func TestASiblingIsFreeToClaimAfterTheHolderLost(t *testing.T) {
	h := unclaimed(t)
	a1 := h.commandSession("a/n1")
	h.claim(a1, h.between("a", "b").ID, "m1")
	h.depart("a/n1", a1)
	link := h.between("a", "b")
	h.claim(h.commandSession("a/n2"), link.ID, "m2")
	expectStands(t, h, "a/n2")
}

// A claim of a link of ours that the state does not know is of a leftover connection: its
// node is to be listed, so that the source is told to drop it (protocol L4). What others
// have made is none of our business.
func TestAClaimOfALeftoverLinkHasItsNodeListed(t *testing.T) {
	h := meshed(t)
	h.fleetOf("a", "b")
	deleted := h.between("a", "b")
	end := deleted.EndpointNode
	session := h.commandSession(end)
	h.must(topologyCommand())
	for _, claim := range []struct {
		what, linkID string
		suspects     []string
	}{
		{"a deleted link", deleted.ID, []string{end}},
		{"a link of ours that is not known", deleted.ID[:len(deleted.ID)-4] + "0000", []string{end}},
		{"a connection of others", "0190a7a0-0000-7000-8000-000000000000", nil},
	} {
		changes := h.changesOf(func() {
			result := h.apply(claimCommand(session, h.nextSequence(session), claim.linkID, "m"))[0]
			if !errors.Is(result.Err, ErrUnknownLink) {
				t.Errorf("%s: %v", claim.what, result.Err)
			}
		})
		if !slices.Equal(changes.Suspects, claim.suspects) {
			t.Errorf("%s: %q are to be listed, not %q", claim.what, changes.Suspects, claim.suspects)
		}
	}
}
