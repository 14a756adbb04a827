package fsm

import (
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// replaying are changes read from the list that a node repeats after it
// registered.
func replaying(names ...Name) []*slimcppb.NameChange {
	changes := announcing(names...)
	for _, change := range changes {
		change.Replay = true
	}
	return changes
}

func (h *history) say(session SessionName, changes ...*slimcppb.NameChange) {
	h.t.Helper()
	h.must(announceCommand(session, h.nextSequence(session), changes...))
}

// audit tells what the node's own list says about names, read now.
func (h *history) audit(nodeID string, audit *slimcppb.Audit) {
	h.t.Helper()
	if audit.Asked == 0 {
		audit.Asked = h.view().Index()
	}
	command := observedCommand(nodeID, h.commandSession(nodeID))
	command.GetObserved().Audit = audit
	h.must(command)
}

func expectAnnouncers(t *testing.T, h *history, name Name, want ...string) {
	t.Helper()
	if got := h.announcers(name); !slices.Equal(got, want) {
		t.Errorf("announcers of %s are %q, not %q", name, got, want)
	}
	h.check()
}

func tombstones(h *history) []*Tombstone { return slices.Collect(h.view().Tombstones()) }

func TestANameIsAnnouncedAndWithdrawn(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x, other := appName("x", 1), appName("x", 2)
	h.announce(session, x, other)
	record, ok := h.view().NameRecord(x)
	if !ok {
		t.Fatal("no record")
	}
	equal(t, "revision", record.Revision, h.view().Index())
	equal(t, "updated", record.UpdatedAt, h.view().Clock())
	first := record.Announcers[0].First

	h.withdraw(session, x)
	expectAnnouncers(t, h, x)
	expectAnnouncers(t, h, other, "a/n1") // another instance of the application
	if got := tombstones(h); len(got) != 1 || got[0].Name != x || got[0].Announcer.First != first {
		t.Errorf("tombstones %+v", got)
	}
}

func TestANameWithoutAnInstanceIsANameOfItsOwn(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	h.announce(session, Name{C0: "org", C1: "ns", C2: "x", ID: NoInstance})
	expectAnnouncers(t, h, Name{C0: "org", C1: "ns", C2: "x", ID: NoInstance}, "a/n1")
	expectAnnouncers(t, h, Name{C0: "org", C1: "ns", C2: "x"})
}

func TestAnnouncingAgainChangesNoRoute(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x := appName("x", 1)
	h.announce(session, x)
	before, _ := h.view().NameRecord(x)
	h.announce(session, x)
	h.announce(h.register("a", "n1"), x)
	after, _ := h.view().NameRecord(x)
	equal(t, "revision", after.Revision, before.Revision)
	equal(t, "first announcement", after.Announcers[0].First, before.Announcers[0].First)
	equal(t, "number of announcers", len(after.Announcers), 1)
}

func TestAnnouncersAreInOrderOfAge(t *testing.T) {
	h := meshed(t)
	a, b, c := h.register("a", "n1"), h.register("b", "n1"), h.register("c", "n1")
	x := appName("x", 1)
	h.announce(c, x)
	// Two in one entry, in the order of its commands.
	h.apply(announceCommand(b, 1, announcing(x)...), announceCommand(a, 1, announcing(x)...))
	expectAnnouncers(t, h, x, "c/n1", "b/n1", "a/n1")
	record, _ := h.view().NameRecord(x)
	if got := record.Groups(); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("groups %q", got)
	}

	// A short absence keeps the rank, a departure loses it.
	h.lose(c)
	c = h.register("c", "n1")
	h.announce(c, x)
	expectAnnouncers(t, h, x, "c/n1", "b/n1", "a/n1")
	h.depart("c/n1", c)
	h.announce(h.register("c", "n1"), x)
	expectAnnouncers(t, h, x, "b/n1", "a/n1", "c/n1")
}

func TestAnOlderSessionWithdrawsNothing(t *testing.T) {
	h := meshed(t)
	older := h.register("a", "n1")
	newer := h.register("a", "n1")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(older, x, y)
	h.announce(newer, x)
	changes := h.changesOf(func() { h.withdraw(older, x) })
	expectAnnouncers(t, h, x, "a/n1")
	equal(t, "doubts", len(changes.Doubts), 0)
	// What only the older one said it may take back, and so may the newer one.
	h.withdraw(older, y)
	expectAnnouncers(t, h, y)
	h.announce(older, y)
	h.withdraw(newer, y)
	expectAnnouncers(t, h, y)
}

// An announcement of a name that was withdrawn once met the record of the
// withdrawal and failed.
func TestATombstoneNeverBlocksAnAnnouncement(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x := appName("x", 1)
	h.announce(session, x)
	before, _ := h.view().NameRecord(x)
	h.withdraw(session, x)
	buried := tombstones(h)
	h.announce(session, x)
	expectAnnouncers(t, h, x, "a/n1")
	after, _ := h.view().NameRecord(x)
	if len(tombstones(h)) != 0 {
		t.Error("an announced name has a tombstone")
	}
	if after.Revision <= buried[0].Revision || after.Announcers[0].First.Compare(before.Announcers[0].First) <= 0 {
		t.Errorf("revision %d, first announced at %v", after.Revision, after.Announcers[0].First)
	}
	// A purge that was decided before comes too late.
	h.must(purgeCommand(buried))
	expectAnnouncers(t, h, x, "a/n1")
}

func TestATombstoneIsPurgedAtTheRevisionThatWasSeen(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x := appName("x", 1)
	h.announce(session, x)
	h.withdraw(session, x)
	first := tombstones(h)
	h.announce(session, x)
	h.withdraw(session, x)
	h.must(purgeCommand(first))
	equal(t, "tombstones after a purge of the older one", len(tombstones(h)), 1)
	h.must(purgeCommand(tombstones(h)))
	equal(t, "tombstones", len(tombstones(h)), 0)
}

// A node reports the loss of a link by withdrawing the names that it learned
// over it, which it never announced.
func TestAWithdrawalOfAStrangeNameHintsAtALostLink(t *testing.T) {
	h := meshed(t)
	a, b := h.register("a", "n1"), h.register("b", "n1")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(a, x)
	changes := h.changesOf(func() { h.withdraw(b, x, y) })
	if !slices.Equal(changes.Suspects, []string{"b/n1"}) {
		t.Errorf("suspects %q, not one hint for the batch", changes.Suspects)
	}
	if want := []NodeName{{"b/n1", x}, {"b/n1", y}}; !slices.Equal(changes.Forgotten, want) {
		t.Errorf("forgotten %v", changes.Forgotten)
	}
	expectAnnouncers(t, h, x, "a/n1")
	equal(t, "tombstones", len(tombstones(h)), 0)
}

func TestAWithdrawalMakesItsNodeForgetTheName(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x := appName("x", 1)
	h.announce(session, x)
	changes := h.changesOf(func() { h.withdraw(session, x) })
	if !slices.Equal(changes.Forgotten, []NodeName{{"a/n1", x}}) || len(changes.Suspects) != 0 {
		t.Errorf("forgotten %v, suspects %q", changes.Forgotten, changes.Suspects)
	}
}

func TestEarlyAnnouncementsCountAndEarlyWithdrawalsDoNot(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(session, x)
	early := append(withdrawing(x), announcing(y)...)
	for _, change := range early {
		change.Early = true
	}
	changes := h.changesOf(func() { h.say(session, early...) })
	expectAnnouncers(t, h, x, "a/n1")
	expectAnnouncers(t, h, y, "a/n1")
	if len(changes.Suspects)+len(changes.Forgotten)+len(changes.Doubts) != 0 {
		t.Errorf("an early withdrawal says something: %+v", changes)
	}
}

// One malformed name must not lose the rest of a batch, let alone the stream.
func TestAMalformedNameIsPassedOver(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x, y := appName("x", 1), appName("y", 1)
	changes := announcing(x)
	changes = append(changes,
		&slimcppb.NameChange{},
		&slimcppb.NameChange{Name: &slimcppb.Name{Component0: "org", InstanceId: []byte{1, 2, 3}}},
		&slimcppb.NameChange{Name: &slimcppb.Name{Component0: strings.Repeat("x", maxComponentBytes+1)}},
		&slimcppb.NameChange{Name: &slimcppb.Name{Component0: "\xff"}, Withdraw: true},
	)
	h.say(session, append(changes, announcing(y)...)...)
	equal(t, "names", len(slices.Collect(h.view().Names())), 2)
	expectAnnouncers(t, h, y, "a/n1")
}

// A node withdraws a name when one of its applications ends, also if another
// serves it still: what the node's own table says decides.
func TestADoubtfulWithdrawalWaitsForAnAudit(t *testing.T) {
	x := appName("x", 1)
	begin := map[string]func(h *history) SessionName{
		"announced more than once": func(h *history) SessionName {
			session := h.register("a", "n1")
			h.announce(session, x)
			h.announce(session, x)
			return session
		},
		"announced by replay only": func(h *history) SessionName {
			session := h.register("a", "n1")
			h.say(session, replaying(x)...)
			return session
		},
		"announced elsewhere too": func(h *history) SessionName {
			h.announce(h.register("b", "n1"), x)
			session := h.register("a", "n1")
			h.announce(session, x)
			return session
		},
	}
	for name, begin := range begin {
		doubted := func(t *testing.T) (*history, SessionName, uint64) {
			h := meshed(t)
			session := begin(h)
			revision := func() uint64 { record, _ := h.view().NameRecord(x); return record.Revision }
			before := revision()
			changes := h.changesOf(func() { h.withdraw(session, x) })
			if !slices.Equal(changes.Doubts, []string{"a/n1"}) || !slices.Contains(h.announcers(x), "a/n1") {
				t.Fatalf("doubts %q, announcers %q", changes.Doubts, h.announcers(x))
			}
			equal(t, "revision", revision(), before)
			return h, session, h.view().Index()
		}
		t.Run(name+", and it is gone", func(t *testing.T) {
			h, _, _ := doubted(t)
			h.audit("a/n1", &slimcppb.Audit{Absent: []*slimcppb.Name{x.Proto()}})
			if slices.Contains(h.announcers(x), "a/n1") {
				t.Errorf("announcers %q", h.announcers(x))
			}
			equal(t, "tombstones", len(tombstones(h)), 1)
			h.check()
		})
		t.Run(name+", and it is served still", func(t *testing.T) {
			h, _, _ := doubted(t)
			h.audit("a/n1", &slimcppb.Audit{Kept: []*slimcppb.Name{x.Proto()}})
			record, _ := h.view().NameRecord(x)
			at := announcerIndex(record.Announcers, "a/n1")
			equal(t, "doubt", record.Announcers[at].DoubtedAt, 0)
		})
		t.Run(name+", and announced again since the list was asked for", func(t *testing.T) {
			h, session, asked := doubted(t)
			h.announce(session, x)
			h.audit("a/n1", &slimcppb.Audit{Asked: asked, Absent: []*slimcppb.Name{x.Proto()}})
			if !slices.Contains(h.announcers(x), "a/n1") {
				t.Errorf("announcers %q", h.announcers(x))
			}
		})
	}
}

func TestAnAuditFindsNamesThatWereNotAnnounced(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(session, y)
	asked := h.view().Index()
	h.withdraw(session, y)
	// y was withdrawn after the list was asked for: the list is old.
	h.audit("a/n1", &slimcppb.Audit{Asked: asked, Present: []*slimcppb.Name{x.Proto(), y.Proto(), nil}})
	expectAnnouncers(t, h, x, "a/n1")
	expectAnnouncers(t, h, y)
}
