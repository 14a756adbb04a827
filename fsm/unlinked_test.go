package fsm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func makeLinksCommand() *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_MakeLinks{MakeLinks: &slimcppb.MakeLinks{}}}
}

// makeLinks has the log go on with links until none are left over, as a leader does.
func (h *history) makeLinks() {
	h.t.Helper()
	for left := 10_000; h.view().UnlinkedGroups() > 0; left-- {
		if left == 0 {
			h.t.Fatalf("the links of %d groups are never done", h.view().UnlinkedGroups())
		}
		h.must(makeLinksCommand())
	}
}

func (h *history) liveLinks() int {
	live := 0
	for link := range h.view().Links() {
		if link.Live() {
			live++
		}
	}
	return live
}

// registrations are of one node for each of n groups.
func (h *history) registrations(n int) []*slimcppb.Command {
	var commands []*slimcppb.Command
	for i := range n {
		group := fmt.Sprintf("g%03d", i)
		commands = append(commands, registerCommand(h.sessionName(), group, "n", group+".test:1"))
	}
	return commands
}

// Four hundred groups that come at once are 80,000 links: each entry makes a bounded
// number of them, and in the end all are there.
func TestLinksOfManyGroupsAreMadeOverManyEntries(t *testing.T) {
	const groups, shared, most = 400, 256, entryLinkBudget/linkCost + 1
	h := newHistoryOf(t, 2)
	h.must(mesh())
	before := 0
	bounded := func() {
		t.Helper()
		if now := h.liveLinks(); now-before > most {
			t.Fatalf("one entry made %d links, at most %d may be", now-before, most)
		} else {
			before = now
		}
	}
	commands := h.registrations(groups)
	for len(commands) > 0 {
		n := min(shared, len(commands))
		for _, result := range h.apply(commands[:n]...) {
			if result.Err != nil {
				t.Fatal(result.Err)
			}
		}
		commands = commands[n:]
		bounded()
	}
	entries := 0
	for ; h.view().UnlinkedGroups() > 0; entries++ {
		h.must(makeLinksCommand())
		bounded()
	}
	if want := groups * (groups - 1) / 2; before != want {
		t.Errorf("%d links were made, not %d", before, want)
	}
	if want := before/most + 2*groups; entries > want {
		t.Errorf("it took %d entries, more than %d", entries, want)
	}
}

// A topology that links groups no longer ends many links over many entries. Names take
// the paths of the new one at once.
func TestLinksOfAChangedTopologyEndOverManyEntries(t *testing.T) {
	const groups, most = 12, 3
	h := newHistoryOf(t, 2)
	h.store.linkBudget = most * linkCost
	h.must(mesh())
	h.apply(h.registrations(groups)...)
	h.makeLinks()
	h.stand()
	h.announce(h.commandSession("g003/n"), appName("x", 1))

	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"g000", Wildcard})))
	record, _ := h.view().NameRecord(appName("x", 1))
	for id, link := range h.view().Carriers(record.Groups()) {
		if link.SourceGroup != "g000" && link.DestGroup != "g000" {
			t.Errorf("%s forwards the name from %s to %s, which are not to be linked", id, link.SourceGroup, link.DestGroup)
		}
	}
	before := groups * (groups - 1) / 2
	for {
		h.check()
		now := h.liveLinks()
		if before-now > most+1 {
			t.Fatalf("one entry ended %d links, at most %d may be", before-now, most+1)
		}
		before = now
		if h.view().UnlinkedGroups() == 0 {
			break
		}
		h.must(makeLinksCommand())
	}
	if before != groups-1 {
		t.Errorf("%d links are left, not %d", before, groups-1)
	}
}

// A fleet of usual size has its links with the registration, so that the first message to
// a node can name them.
func TestLinksOfFewGroupsAreMadeAtOnce(t *testing.T) {
	h := newHistoryOf(t, 2)
	h.must(mesh())
	for i, command := range h.registrations(100) {
		h.must(command)
		if live, want := h.liveLinks(), i*(i+1)/2; live != want {
			t.Fatalf("%d groups have %d links, not %d", i+1, live, want)
		}
	}
	if n := h.view().UnlinkedGroups(); n > 0 {
		t.Errorf("%d groups are left over", n)
	}
}

// What is left over survives a restart, and a restore, and the leader goes on with it.
func TestLinksThatAreLeftOverAreInSnapshots(t *testing.T) {
	h := newHistoryOf(t, 2)
	h.store.linkBudget = 2 * linkCost
	h.must(mesh())
	h.apply(h.registrations(6)...)
	if h.view().UnlinkedGroups() == 0 {
		t.Fatal("nothing is left over")
	}
	h.reopen()
	h.store.linkBudget = 2 * linkCost
	h.makeLinks()
	if live := h.liveLinks(); live != 15 {
		t.Errorf("6 groups have %d links, not 15", live)
	}
	h.check()
}

// Before schema 2 is active an entry makes all links, as older versions do.
func TestLinksBeforeSchema2(t *testing.T) {
	h := newHistory(t)
	h.store.linkBudget = 1
	h.must(mesh())
	h.apply(h.registrations(6)...)
	if live, left := h.liveLinks(), h.view().UnlinkedGroups(); live != 15 || left != 0 {
		t.Errorf("6 groups have %d links and %d groups are left over, not 15 and 0", live, left)
	}
}

// Only the leader's own work may go on with links (protocol C14).
func TestMakeLinksIsLeadersWork(t *testing.T) {
	h := newHistoryOf(t, 2)
	command := makeLinksCommand()
	command.Term = 0
	if err := h.apply(command)[0].Err; !errors.Is(err, ErrStaleTerm) {
		t.Errorf("without a term: %v", err)
	}
}
