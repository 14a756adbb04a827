package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func exhaustCommand(link *Link) *slimcppb.Command {
	command := replaceCommand(link)
	command.GetReplaceLink().Exhausted = true
	return command
}

// fail lets a dial of a link be refused.
func (h *history) fail(link *Link) *Link {
	h.t.Helper()
	h.must(reconciledCommand(link.SourceNode, h.commandSession(link.SourceNode), 0, refused(link, "connection refused")))
	return h.link(link.ID)
}

// exhaust lets a link fail and gives it up.
func (h *history) exhaust(link *Link) *Link {
	h.t.Helper()
	h.must(exhaustCommand(h.fail(link)))
	return h.link(link.ID)
}

// registerInner opens a session for a node that others cannot dial.
func (h *history) registerInner(group, node string) SessionName {
	h.t.Helper()
	name := h.sessionName()
	h.must(registerCommand(name, group, node, ""))
	return name
}

// deadPair is a mesh of the groups a, b and c in which all links stand but a~b,
// which failed. Group a announces the name that is returned.
func deadPair(t *testing.T) (*history, map[string]SessionName, Name) {
	t.Helper()
	h := meshed(t)
	sessions := map[string]SessionName{}
	for _, group := range []string{"a", "b", "c"} {
		sessions[group] = h.register(group, "n1")
	}
	h.fail(h.between("a", "b"))
	for _, pair := range [][2]string{{"a", "c"}, {"b", "c"}} {
		standing := h.between(pair[0], pair[1])
		h.claim(h.commandSession(standing.EndpointNode), standing.ID, "claim of "+standing.ID)
	}
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	return h, sessions, x
}

// path returns the groups over which a name goes from one group to another,
// whatever the links are like.
func (h *history) path(name Name, from, to string) []string {
	h.t.Helper()
	record, ok := h.view().NameRecord(name)
	if !ok {
		h.t.Fatalf("nobody announces %s", name)
	}
	f := h.view().graph.forest(record.Groups())
	var follow func(at, over string) []string
	follow = func(at, over string) []string {
		if at == to {
			return []string{at}
		}
		for _, hop := range f.hops[at] {
			if hop.peer == over || !slices.Contains(hop.groups, to) {
				continue
			}
			if rest := follow(hop.peer, at); rest != nil {
				return append([]string{at}, rest...)
			}
		}
		return nil
	}
	return follow(from, "")
}

func (h *history) expectPath(name Name, want ...string) {
	h.t.Helper()
	if got := h.path(name, want[0], want[len(want)-1]); !slices.Equal(got, want) {
		h.t.Fatalf("%s goes %q, not %q", name, got, want)
	}
}

// TestALinkThatNobodyCanMakeIsAvoided: a link that failed is waited for; once it is
// given up, names are led around its pair, until it stands.
func TestALinkThatNobodyCanMakeIsAvoided(t *testing.T) {
	h, _, x := deadPair(t)
	h.expectPath(x, "b", "a")
	equal(t, "blocked", h.view().Blocked("a", "b"), false)

	link := h.between("a", "b")
	changes := h.changesOf(func() { h.must(exhaustCommand(link)) })
	equal(t, "trees changed", changes.Trees, true)
	equal(t, "trees revision", h.view().meta.TreesRevision, h.view().Index())
	equal(t, "blocked", h.view().Blocked("b", "a"), true)
	equal(t, "way around", h.view().WayAround("a", "b"), true)
	equal(t, "source revision", h.link(link.ID).SourceRevision, link.SourceRevision)
	h.expectPath(x, "b", "c", "a")
	h.expectForwards(x, map[string][]string{"b/n1": {"c"}, "c/n1": {"a"}})
	h.between("a", "b") // goes on being tried

	h.reopen()
	equal(t, "blocked after a restore", h.view().Blocked("a", "b"), true)
	h.expectPath(x, "b", "c", "a")

	h.claim(h.commandSession(link.EndpointNode), link.ID, "at last")
	equal(t, "blocked", h.view().Blocked("a", "b"), false)
	equal(t, "trees revision", h.view().meta.TreesRevision, h.view().Index())
	h.expectPath(x, "b", "a")
	h.check()
}

// TestTreesStayWhileAPairStaysBlocked: neither a blocked pair nor the others'
// ordinary life gives the trees a new revision.
func TestTreesStayWhileAPairStaysBlocked(t *testing.T) {
	h, sessions, x := deadPair(t)
	link := h.exhaust(h.between("a", "b"))
	stays := func(what string, do func()) {
		t.Helper()
		before := h.view().meta.TreesRevision
		do()
		h.check()
		equal(t, "trees revision after "+what, h.view().meta.TreesRevision, before)
		h.expectPath(x, "b", "c", "a")
	}
	stays("another failure", func() { link = h.fail(link) })
	stays("giving it up again", func() { h.must(exhaustCommand(link)) })
	stays("an acknowledged dial", func() {
		h.must(reconciledCommand(link.SourceNode, h.commandSession(link.SourceNode), 0, dialled(link)))
	})
	stays("an announcement", func() { h.announce(sessions["c"], appName("y", 1)) })
	stays("a link that is seen down and stands again", func() {
		other := h.between("a", "c")
		h.must(observedCommand(other.SourceNode, h.commandSession(other.SourceNode), seenDown(other, "reset")))
		other = h.between("a", "c")
		h.must(observedCommand(other.SourceNode, h.commandSession(other.SourceNode), seenUp(other, "n1")))
	})
	stays("another node", func() { sessions["b2"] = h.register("b", "n2") })
	stays("its departure", func() { h.depart("b/n2", sessions["b2"]) })
	stays("a reconnect", func() {
		h.lose(sessions["b"])
		h.register("b", "n1")
	})
	stays("a replacement", func() {
		h.must(replaceCommand(h.between("a", "b")))
		equal(t, "exhausted", h.between("a", "b").Exhausted, true)
	})
	stays("another way to make it", func() {
		link := h.between("a", "b")
		command := replaceCommand(link)
		command.GetReplaceLink().SourceNodeId, command.GetReplaceLink().DialledNodeId = link.DestGroup+"/n1", link.SourceGroup+"/n1"
		h.must(command)
	})
}

// TestOnlyAFailedLinkIsGivenUp: what the leader decided may have been overtaken.
func TestOnlyAFailedLinkIsGivenUp(t *testing.T) {
	h, _, _ := deadPair(t)
	link := h.between("a", "b")
	h.must(reconciledCommand(link.SourceNode, h.commandSession(link.SourceNode), 0, dialled(link)))
	h.refuse(exhaustCommand(link), ErrStale)
	h.claim(h.commandSession(link.EndpointNode), link.ID, "claim")
	h.refuse(exhaustCommand(link), ErrStale)
	h.refuse(exhaustCommand(h.link(link.ID)), ErrStale)
	equal(t, "blocked", h.view().Blocked("a", "b"), false)
}

// TestALinkInFullStateMayBeExhaustedToo: the last way to dial it is tried while
// names avoid it already.
func TestALinkInFullStateMayBeExhaustedToo(t *testing.T) {
	h, _, x := deadPair(t)
	command := exhaustCommand(h.between("a", "b"))
	command.GetReplaceLink().FullState = true
	h.must(command)
	link := h.between("a", "b")
	equal(t, "exhausted and in full state", link.Exhausted && link.FullState, true)
	h.expectPath(x, "b", "c", "a")
}

// TestGroupsThatCannotDialEachOtherAreLedAround: there is no link between two
// groups without external endpoints, however long one waits.
func TestGroupsThatCannotDialEachOtherAreLedAround(t *testing.T) {
	h := meshed(t)
	a := h.registerInner("a", "n1")
	h.registerInner("b", "n1")
	x := appName("x", 1)
	h.announce(a, x)
	h.unlinked("a", "b")
	equal(t, "blocked", h.view().Blocked("a", "b"), true)
	equal(t, "way around", h.view().WayAround("a", "b"), false)
	h.expectPath(x, "b", "a") // there is no other

	h.register("c", "n1")
	h.stand()
	equal(t, "way around", h.view().WayAround("a", "b"), true)
	h.expectForwards(x, map[string][]string{"b/n1": {"c"}, "c/n1": {"a"}})
	h.check()

	revision := h.view().meta.TreesRevision
	dialable := h.register("b", "n2")
	equal(t, "blocked", h.view().Blocked("a", "b"), false)
	if h.view().meta.TreesRevision == revision {
		t.Error("the trees have their old revision, and the direct path is there")
	}
	h.stand()
	h.expectPath(x, "b", "a")

	h.lose(dialable) // for a moment
	equal(t, "blocked", h.view().Blocked("a", "b"), false)
	h.must(departCommand("b/n2", dialable))
	equal(t, "blocked", h.view().Blocked("a", "b"), true)
	h.expectPath(x, "b", "c", "a")
	h.check()
}

// TestAGroupThatComesMayLeaveOthersPathsAlone: in a mesh around one group with an
// endpoint, those without one come and go unnoticed.
func TestAGroupThatComesMayLeaveOthersPathsAlone(t *testing.T) {
	h := meshed(t)
	h.register("hub", "n1")
	h.announce(h.registerInner("a", "n1"), appName("x", 1))
	h.registerInner("b", "n1")
	revision := h.view().meta.TreesRevision
	late := h.registerInner("late", "n1")
	h.expectPath(appName("x", 1), "late", "hub", "a")
	h.depart("late/n1", late)
	equal(t, "trees revision", h.view().meta.TreesRevision, revision)
	h.register("able", "n1") // a second way between a and b
	if h.view().meta.TreesRevision == revision {
		t.Error("the trees have their old revision, and another path is there")
	}
	h.check()
}

// TestATopologyThatReturnsFindsItsPairsBlocked: a forbidden pair is not blocked,
// and an allowed one is at once.
func TestATopologyThatReturnsFindsItsPairsBlocked(t *testing.T) {
	h := meshed(t)
	h.registerInner("a", "n1")
	h.registerInner("b", "n1")
	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"a", "c"})))
	equal(t, "blocked", h.view().Blocked("a", "b"), false)
	h.check()
	h.must(mesh())
	equal(t, "blocked", h.view().Blocked("a", "b"), true)
	h.check()
}

// usable returns the groups that a path within one segment joins with a group
// over pairs that are not dead.
func (d *drawnTopology) usable(group string, dead map[[2]string]bool) map[string]bool {
	alive := &drawnTopology{groups: d.groups}
	for _, edges := range d.edges {
		kept := map[string][]string{}
		for from, peers := range edges {
			for _, to := range peers {
				if !dead[[2]string{from, to}] {
					kept[from] = append(kept[from], to)
				}
			}
		}
		alive.edges = append(alive.edges, kept)
	}
	return alive.joined(group)
}

// TestDeadPairsCutNobodyOff draws topologies in which any pairs have no link or
// one that nobody can make. Messages do not loop and come to nobody twice; from
// each group, every announcing group is reached that a path of living links in
// one segment joins with it. When the links stand, all is as if nothing had been.
func TestDeadPairsCutNobodyOff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawTopology(t)
		h := newHistory(t)
		h.must(topologyCommand(d.segments...))
		sessions := map[string]SessionName{}
		for _, group := range rapid.Permutation(d.groups).Draw(t, "registered") {
			if rapid.IntRange(0, 2).Draw(t, "inner") == 0 {
				sessions[group] = h.registerInner(group, "n1")
			} else {
				sessions[group] = h.register(group, "n1")
			}
		}
		x := appName("x", 1)
		announcing := rapid.SliceOfNDistinct(rapid.SampledFrom(d.groups), 1, -1, rapid.ID).Draw(t, "announcers")
		for _, group := range announcing {
			h.announce(sessions[group], x)
		}
		var broken []string
		for link := range h.view().Links() {
			if rapid.IntRange(0, 2).Draw(t, "dead") == 0 {
				broken = append(broken, link.ID)
			}
		}
		for _, id := range broken {
			h.exhaust(h.link(id))
		}
		for link := range h.view().Links() {
			if !slices.Contains(broken, link.ID) {
				h.claim(sessions[link.DestGroup], link.ID, "claim of "+link.ID)
			}
		}
		h.check()
		h.deliverAll(d, announcing, x)
		h.reopen()
		h.check()
		h.deliverAll(d, announcing, x)

		h.stand()
		h.check()
		h.deliverAll(d, announcing, x)
	})
}

// deliverAll passes a message from each group over the links that stand.
func (h *history) deliverAll(d *drawnTopology, announcing []string, name Name) {
	h.t.Helper()
	view := h.view()
	record, _ := view.NameRecord(name)
	dead := map[[2]string]bool{}
	for _, a := range d.groups {
		for _, b := range d.groups {
			link, ok := view.LinkBetween(a, b)
			dead[[2]string{a, b}] = !ok || link.Status != LinkApplied
		}
	}
	carried := map[string][]string{}
	for id, link := range view.Carriers(record.Groups()) {
		if group := h.node(id).Group; link.Status == LinkApplied {
			carried[group] = append(carried[group], link.PeerGroup(group))
		}
	}
	for _, group := range d.groups {
		reached := deliver(h.t, carried, group, len(d.groups))
		for at, times := range reached {
			if times > 1 {
				h.t.Fatalf("a message from %s comes to %s %d times", group, at, times)
			}
		}
		for _, announcer := range announcing {
			if group != announcer && d.usable(group, dead)[announcer] && reached[announcer] != 1 {
				h.t.Fatalf("%s is not reached from %s, though living links join them; routes %v", announcer, group, carried)
			}
		}
	}
}

// BenchmarkForestOfAMesh makes all forests of a mesh, with and without pairs that
// are avoided.
func BenchmarkForestOfAMesh(b *testing.B) {
	for _, dead := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("dead=%d", dead), func(b *testing.B) {
			const groups = 300
			h := meshed(b)
			for i := range groups {
				h.register(fmt.Sprintf("group-%03d", i), "n")
			}
			for i := range dead {
				h.exhaust(h.between(fmt.Sprintf("group-%03d", i), fmt.Sprintf("group-%03d", i+1)))
			}
			graph := h.view().graph
			b.ReportAllocs()
			for b.Loop() {
				fresh := graph.avoiding(graph.blocked) // without a cached forest
				for i := range groups {
					fresh.forest([]string{fmt.Sprintf("group-%03d", i)})
				}
			}
		})
	}
}
