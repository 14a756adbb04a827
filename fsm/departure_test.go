package fsm

import (
	"slices"
	"testing"
)

func TestDepartureNeedsTheLastSessionAndNoOther(t *testing.T) {
	h := meshed(t)
	first := h.register("a", "n1")
	h.register("b", "n1")
	h.refuse(departCommand("a/n1", first), ErrStale) // it has a session
	h.refuse(departCommand("a/n1", SessionName{}), ErrStale)
	h.refuse(departCommand("a/n9", first), ErrUnknownNode)
	h.lose(first)
	second := h.register("a", "n1")
	h.lose(second)
	h.refuse(departCommand("a/n1", first), ErrStale) // decided about an older loss
	h.refuse(departCommand("a/n1", SessionName{}), ErrStale)
	equal(t, "state", h.node("a/n1").State, NodePresent)
	h.between("a", "b")

	h.must(departCommand("a/n1", second))
	equal(t, "state", h.node("a/n1").State, NodeDeparted)
	h.refuse(departCommand("a/n1", second), ErrStale) // it has departed
	h.check()
}

func TestAnOutgoingLinkKeepsItsIDAndMovesToASibling(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b1 := h.register("b", "n1")
	h.register("b", "n2")
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	before := h.between("a", "b")
	equal(t, "source", before.SourceNode, "b/n1")

	h.depart("b/n1", b1)
	moved := h.between("a", "b")
	equal(t, "id", moved.ID, before.ID)
	equal(t, "source", moved.SourceNode, "b/n2")
	equal(t, "status", moved.Status, LinkPending)
	equal(t, "end", moved.DestNode, "")
	equal(t, "endpoint", moved.Endpoint, before.Endpoint)
	equal(t, "source's revision", moved.SourceRevision, h.view().Index())
	h.check()

	// The end can be claimed again, also by the notice of a message whose id was
	// used before.
	h.claim(h.commandSession("a/n1"), moved.ID, "m1")
	equal(t, "status", h.between("a", "b").Status, LinkApplied)
	equal(t, "end", h.between("a", "b").DestNode, "a/n1")
}

func TestAnIncomingLinkIsMadeAnew(t *testing.T) {
	h := meshed(t)
	a1 := h.register("a", "n1")
	h.register("b", "n1")
	h.stand()
	before := h.between("a", "b")
	h.register("a", "n2")

	h.depart("a/n1", a1)
	remade := h.between("a", "b")
	if remade.ID == before.ID {
		t.Error("the link kept its id: its source would not dial again")
	}
	equal(t, "source", remade.SourceNode, before.SourceNode)
	equal(t, "endpoint", remade.Endpoint, "a-n2.test:1")
	equal(t, "end", remade.DestNode, "")
	equal(t, "status", remade.Status, LinkPending)
	old := h.link(before.ID)
	equal(t, "old link's status", old.Status, LinkDeleted)
	if old.Gone {
		t.Error("the source still holds the old link")
	}
	h.check()
}

// Upstream could leave out replacements when a group had links with several
// others.
func TestEveryLinkOfADepartingNodeIsTakenOver(t *testing.T) {
	h := meshed(t)
	for _, group := range []string{"a", "b"} {
		h.register(group, "n1") // these will be dialled by m and dial it
	}
	m1 := h.register("m", "n1")
	h.register("y", "n1")
	h.register("z", "n1")
	h.stand()
	h.register("m", "n2")
	before := map[string]*Link{}
	for peer := range h.view().LinkedGroups("m") {
		before[peer] = h.between("m", peer)
	}
	equal(t, "number of links", len(before), 4)

	h.depart("m/n1", m1)
	for peer, old := range before {
		link := h.between("m", peer)
		equal(t, "end of m~"+peer+" in m", link.End("m") == "m/n2" || link.DestNode == "" && link.Endpoint == "m-n2.test:1", true)
		equal(t, "m~"+peer+" keeps its id", link.ID == old.ID, old.SourceGroup == "m")
		equal(t, "source group of m~"+peer, link.SourceGroup, old.SourceGroup)
	}
	h.check()
}

func TestAnUnclaimedLinkLeavesTheEndpointOfADepartingNode(t *testing.T) {
	h := meshed(t)
	a1 := h.register("a", "n1")
	h.register("b", "n1")
	before := h.between("a", "b")
	equal(t, "endpoint", before.Endpoint, "a-n1.test:1")
	h.register("a", "n2")
	h.depart("a/n1", a1)
	equal(t, "endpoint", h.between("a", "b").Endpoint, "a-n2.test:1")
	if h.between("a", "b").ID == before.ID {
		t.Error("a link with another endpoint kept its id")
	}
}

func TestOnlyAConnectedSiblingThatAnswersTakesOver(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b1 := h.register("b", "n1")
	away := h.register("b", "n2")
	mute := h.register("b", "n3")
	h.register("b", "n4")
	h.lose(away)
	h.must(silentCommand("b/n3", mute, true))
	h.depart("b/n1", b1)
	equal(t, "source", h.between("a", "b").SourceNode, "b/n4")
}

func TestTheLastNodeOfAGroupTakesItsLinksAndNamesWithIt(t *testing.T) {
	h := meshed(t)
	a := h.register("a", "n1")
	b := h.register("b", "n1")
	h.register("c", "n1")
	h.stand()
	x, y := appName("x", 1), appName("y", 1)
	h.announce(b, x, y)
	h.announce(a, y)
	links := []string{h.between("a", "b").ID, h.between("b", "c").ID}

	h.depart("b/n1", b)
	h.unlinked("a", "b")
	h.unlinked("b", "c")
	h.between("a", "c")
	equal(t, "announcers of x", len(h.announcers(x)), 0)
	if got := h.announcers(y); !slices.Equal(got, []string{"a/n1"}) {
		t.Errorf("announcers of y: %q", got)
	}
	var buried []string
	for tombstone := range h.view().Tombstones() {
		buried = append(buried, tombstone.Name.C2+" of "+tombstone.Announcer.NodeID)
		equal(t, "revision of a tombstone", tombstone.Revision, h.view().Index())
		equal(t, "time of a tombstone", tombstone.RemovedAt, h.view().Clock())
	}
	if !slices.Equal(buried, []string{"x of b/n1", "y of b/n1"}) {
		t.Errorf("tombstones %q", buried)
	}
	// The one that b dialled died with it; the other is told to its source.
	for _, id := range links {
		link := h.link(id)
		equal(t, "link "+id+" is gone", link.Gone, link.SourceNode == "b/n1")
	}
	for a, b := range h.view().AllowedPairs() {
		if a == "b" || b == "b" {
			t.Errorf("a group without present nodes has the pair %s~%s", a, b)
		}
	}
	h.check()
}

func TestADepartedNodeComesBack(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b := h.register("b", "n1")
	h.stand()
	x := appName("x", 1)
	h.announce(b, x)
	created := h.node("b/n1").CreatedAt
	old := h.between("a", "b").ID
	h.depart("b/n1", b)

	back := h.register("b", "n1")
	node := h.node("b/n1")
	equal(t, "state", node.State, NodePresent)
	equal(t, "created", node.CreatedAt, created)
	if h.between("a", "b").ID == old {
		t.Error("the link came back under its old id")
	}
	equal(t, "announcers before the replay", len(h.announcers(x)), 0)
	h.announce(back, x)
	equal(t, "announcers after the replay", len(h.announcers(x)), 1)
	h.check()
}

// A gateway that comes back is another sibling: gateways never move back.
func TestAReturningGatewayTakesNothingBack(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b1 := h.register("b", "n1")
	h.register("b", "n2")
	h.stand()
	h.depart("b/n1", b1)
	h.stand()
	link := *h.between("a", "b")
	h.register("b", "n1")
	equal(t, "link", *h.between("a", "b"), link)
}

func TestANodeThatIsOnlyAwayKeepsEverything(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b := h.register("b", "n1")
	h.stand()
	x := appName("x", 1)
	h.announce(b, x)
	link := *h.between("a", "b")
	record, _ := h.view().NameRecord(x)

	h.lose(b)
	equal(t, "link", *h.between("a", "b"), link)
	after, _ := h.view().NameRecord(x)
	if after != record {
		t.Error("the name changed")
	}
	h.announce(h.register("b", "n1"), x)
	after, _ = h.view().NameRecord(x)
	equal(t, "first announcement", after.Announcers[0].First, record.Announcers[0].First)
	equal(t, "revision", after.Revision, record.Revision)
}

func TestADeregisteringNodeIsLeaving(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b1 := h.register("b", "n1")
	second := h.register("b", "n1") // a second stream of the same node
	h.stand()
	x := appName("x", 1)
	h.announce(b1, x)
	equal(t, "node", h.deregister(b1).NodeID, "b/n1")
	h.deregister(second) // once more says nothing new

	equal(t, "state", h.node("b/n1").State, NodeLeaving)
	equal(t, "sessions until their streams end", len(h.node("b/n1").Sessions), 2)
	h.unlinked("a", "b")
	equal(t, "announcers", len(h.announcers(x)), 0)
	h.refuse(announceCommand(b1, 99, announcing(x)...), ErrSessionEnded)
	h.refuse(claimCommand(b1, 99, "any", "m"), ErrSessionEnded)
	h.register("c", "n1")
	h.unlinked("b", "c")
	h.check()

	h.must(leftCommand("b/n1"))
	if _, known := h.view().Node("b/n1"); known {
		t.Error("the record is still there")
	}
	if _, known := h.view().Group("b"); known {
		t.Error("the group is still there")
	}
	h.refuse(announceCommand(b1, 100, announcing(x)...), ErrUnknownSession)
	h.must(leftCommand("b/n1")) // a repetition does no harm
	h.check()
}

func TestOnlyALeavingNodeLeaves(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	h.refuse(leftCommand("a/n1"), ErrStale)
	h.depart("a/n1", session)
	h.refuse(leftCommand("a/n1"), ErrStale)
}

func TestADeregisteringGatewayHandsOverAtOnce(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	b1 := h.register("b", "n1")
	h.register("b", "n2")
	h.stand()
	before := h.between("a", "b")
	h.deregister(b1)
	moved := h.between("a", "b")
	equal(t, "id", moved.ID, before.ID)
	equal(t, "source", moved.SourceNode, "b/n2")
}

func TestANodeThatReturnsWhileLeavingIsJudgedAfresh(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	old := h.register("b", "n1")
	h.stand()
	h.confirm("b/n1")
	created := h.node("b/n1").CreatedAt
	h.deregister(old)

	back := h.register("b", "n1")
	node := h.node("b/n1")
	equal(t, "state", node.State, NodePresent)
	equal(t, "number of sessions", len(node.Sessions), 1)
	equal(t, "session", node.Sessions[0].Name, back)
	equal(t, "confirmed index", node.Acked, 0)
	if !node.CreatedAt.After(created) {
		t.Error("the record was not made anew")
	}
	h.between("a", "b")
	h.refuse(announceCommand(old, 99, announcing(appName("x", 1))...), ErrUnknownSession)
	h.refuse(leftCommand("b/n1"), ErrStale)
	h.check()
}

func TestADeletedLinkWaitsForItsSource(t *testing.T) {
	begin := func() (*history, string) {
		h, link := pairOfNodes(t)
		h.must(topologyCommand())
		if h.link(link.ID).Gone {
			t.Fatal("gone while its source holds it")
		}
		return h, link.ID
	}
	t.Run("reported gone", func(t *testing.T) {
		h, id := begin()
		report := reconciledCommand("b/n1", h.commandSession("b/n1"), 0)
		report.GetNodeReconciled().GoneLinks = []string{id, "unknown"}
		h.must(report)
		equal(t, "gone", h.link(id).Gone, true)
	})
	t.Run("not the other end's word", func(t *testing.T) {
		h, id := begin()
		report := reconciledCommand("a/n1", h.commandSession("a/n1"), 0)
		report.GetNodeReconciled().GoneLinks = []string{id}
		h.must(report)
		equal(t, "gone", h.link(id).Gone, false)
	})
	t.Run("its source's stream ended", func(t *testing.T) {
		h, id := begin()
		h.lose(h.commandSession("b/n1"))
		equal(t, "gone", h.link(id).Gone, true)
	})
	t.Run("purged only when gone", func(t *testing.T) {
		h, id := begin()
		h.must(purgeCommand(nil, id))
		h.link(id)
		h.lose(h.commandSession("b/n1"))
		h.must(purgeCommand(nil, id))
		if _, ok := h.view().Link(id); ok {
			t.Error("the link is still listed")
		}
		h.check()
	})
}

// A report that an old link is gone, sent before the pair was linked again, must
// not take the new link away.
func TestALateGoneReportSparesTheNewLink(t *testing.T) {
	h, old := pairOfNodes(t)
	h.must(topologyCommand())
	h.must(mesh())
	link := h.between("a", "b")
	report := reconciledCommand("b/n1", h.commandSession("b/n1"), 0)
	report.GetNodeReconciled().GoneLinks = []string{old.ID, link.ID}
	h.must(report)
	equal(t, "link", *h.between("a", "b"), *link)
	h.must(purgeCommand(nil, old.ID, link.ID))
	equal(t, "link", *h.between("a", "b"), *link)
}
