package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// rewrite makes a snapshot fit for a restore into the present state.
func (h *history) rewrite(file []byte, options RestoreOptions) (SnapshotInfo, []byte) {
	h.t.Helper()
	var out bytes.Buffer
	info, err := RewriteSnapshot(&out, bytes.NewReader(file), h.view(), options)
	if err != nil {
		h.t.Fatalf("rewrite: %v", err)
	}
	return info, out.Bytes()
}

// restore brings a snapshot back, as the leader does.
func (h *history) restore(file []byte) SnapshotInfo {
	h.t.Helper()
	info, rewritten := h.rewrite(file, RestoreOptions{Now: h.clock})
	if err := h.store.Restore(bytes.NewReader(rewritten)); err != nil {
		h.t.Fatalf("restore: %v", err)
	}
	h.must(leaderCommand(testTerm, "cp-1", "boot-1"))
	return info
}

func recordsOf(info SnapshotInfo) map[string]int {
	counts := map[string]int{}
	for _, record := range info.Records {
		counts[record.Kind] = record.Count
	}
	return counts
}

func TestARestoredClusterIsThePresentOneWithTheOldFleet(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	x, y := appName("x", 1), appName("y", 1)
	h.announce(sessions["a"], x)
	h.confirm("a/n1", "b/n1")
	report := reconciledCommand("b/n1", sessions["b"], h.view().Index())
	h.failing(report, "no such connection", x)
	h.must(report)
	h.must(silentCommand("b/n1", sessions["b"], true))
	h.lose(SessionName{ReplicaID: "cp-1", BootID: "boot-1", Counter: 99}) // on its way
	h.must(recordCommand("cp-1", 1))
	h.must(configCommand(nil, "cp-1"))
	h.refuse(requested(segmentCommand("s"), "before"), ErrConfigManaged)
	link := *h.between("a", "b")
	file := snapshotBytes(t, h.store)
	old := h.view()

	h.register("c", "n1")
	h.announce(sessions["b"], y)
	h.must(configCommand(nil, "cp-1b"))
	h.must(recordCommand("cp-3", 1))
	h.must(removeReplicaCommand("cp-3"))
	h.refuse(requested(segmentCommand("s"), "after"), ErrConfigManaged)
	h.depart("a/n1", sessions["a"])
	h.lose(SessionName{ReplicaID: "cp-2", BootID: "b", Counter: 9})
	h.must(leaderCommand(testTerm, "cp-2", "boot-5"))
	present := h.view()
	result := h.apply(requested(segmentCommand("s"), "after"))[0]

	now, newest := h.clock.Add(time.Hour), h.view().Index()
	info, rewritten := h.rewrite(file, RestoreOptions{Now: now})
	inspected, err := InspectSnapshot(bytes.NewReader(rewritten))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "what was written", inspected, info)
	equal(t, "generation", info.Generation, present.Generation()+1)
	equal(t, "index", info.Index, newest)
	equal(t, "cluster id", info.ClusterID, "test-cluster")
	equal(t, "clock", info.Clock, now)
	counts := recordsOf(info)
	equal(t, "records", []int{counts["nodes"], counts["names"], counts["replicas"], counts["removed replicas"], counts["requests"], counts["ended sessions"]}, []int{2, 1, 2, 1, 2, 0})

	if err := h.store.Restore(bytes.NewReader(rewritten)); err != nil {
		t.Fatal(err)
	}
	h.check()
	h.clock = now
	stale := registerCommand(h.sessionName(), "a", "n1", "")
	stale.Generation = present.Generation()
	h.refuse(stale, ErrStaleGeneration)

	// The fleet is the old one, and every stream counts as ended now.
	for _, id := range []string{"a/n1", "b/n1"} {
		node := h.node(id)
		session, _ := mustNode(t, old, id).CommandSession()
		equal(t, "node "+id, *node, Node{
			ID: id, Group: node.Group, LocalID: "n1", CreatedAt: mustNode(t, old, id).CreatedAt, State: NodePresent,
			Details: session.Details, LastSession: LostSession{
				Name: session.Name, Reason: slimcppb.LossReason_LOSS_REASON_ENDED, At: now, Index: newest,
			},
		})
	}
	equal(t, "link", *h.between("a", "b"), link)
	equal(t, "announcers of x", h.announcers(x), []string{"a/n1"})
	equal(t, "announcers of y", h.announcers(y), nil)

	// The cluster is the present one.
	for _, id := range []string{"cp-1", "cp-1b", "cp-3"} {
		want, _ := present.Replica(id)
		equal(t, "replica", h.replica(id), want)
	}
	equal(t, "removed", h.view().ReplicaRemoved("cp-3"), true)
	leader := h.store.state.meta
	equal(t, "leader", []any{leader.LeaderTerm, leader.LeaderReplica, leader.LeaderBoot}, []any{uint64(testTerm), "cp-2", "boot-5"})
	sameResult(t, "a request of the time between", h.apply(requested(segmentCommand("s"), "after"))[0], result)
	h.refuse(segmentCommand("s"), ErrConfigManaged)

	// Streams that live on are registered again, and departures work.
	again := registerCommand(h.sessionName(), "a", "n1", "a-n1.test:1")
	again.GetRegisterNode().Resumed = true
	h.must(again)
	equal(t, "link after the node is back", *h.between("a", "b"), link)
	last := h.node("b/n1").LastSession.Name
	h.must(departCommand("b/n1", last))
	h.check()
}

func mustNode(t *testing.T, view *View, id string) *Node {
	t.Helper()
	node, ok := view.Node(id)
	if !ok {
		t.Fatalf("no node %s", id)
	}
	return node
}

// What departed before the snapshot keeps its time; what was only away is away since
// now, whatever was known of it then.
func TestNodesThatWereAwayInTheSnapshot(t *testing.T) {
	h := meshed(t)
	departed, away, leaving := h.register("a", "departed"), h.register("a", "away"), h.register("a", "leaving")
	h.depart("a/departed", departed)
	unreachable := lostCommand(away)
	unreachable.GetSessionLost().Reason = slimcppb.LossReason_LOSS_REASON_UNREACHABLE
	h.must(unreachable)
	h.deregister(leaving)
	before := h.node("a/departed").LastSession
	h.clock = h.clock.Add(time.Hour)
	h.restore(snapshotBytes(t, h.store))
	equal(t, "departed node's last session", h.node("a/departed").LastSession, before)
	for id, session := range map[string]SessionName{"a/away": away, "a/leaving": leaving} {
		last := h.node(id).LastSession
		equal(t, "session of "+id, last.Name, session)
		equal(t, "reason of "+id, last.Reason, slimcppb.LossReason_LOSS_REASON_ENDED)
		if !last.At.After(before.At.Add(time.Hour - time.Second)) {
			t.Errorf("%s is away since %v", id, last.At)
		}
	}
	h.must(departCommand("a/away", away))
	h.must(leftCommand("a/leaving"))
	h.check()
}

// A token that was used, before the snapshot or after it, opens no second session.
func TestUsedTokensStayUsedAfterARestore(t *testing.T) {
	h := newHistory(t)
	h.must(configCommand(goldenConfig(SharedSecret), "cp-1"))
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
		Secret: &slimcppb.GroupSecret{Group: "a", Secret: bytes.Repeat([]byte("s"), MinSecretBytes)},
	}}})
	register := func(node string, token byte) *slimcppb.Command {
		command := registerCommand(h.sessionName(), "a", node, "")
		command.GetRegisterNode().TokenHash = []byte{token}
		command.GetRegisterNode().TokenExpiresUnixNanos = h.clock.Add(time.Hour).UnixNano()
		return command
	}
	h.must(register("n1", 1))
	file := snapshotBytes(t, h.store)
	h.must(register("n2", 2))
	h.restore(file)
	h.refuse(register("n1", 1), ErrReplayed)
	h.refuse(register("n2", 2), ErrReplayed)
	h.must(register("n2", 3))
}

func TestASnapshotOfAnotherClusterIsRefusedUnlessForced(t *testing.T) {
	other := star(t)
	other.register("hub", "n1")
	file := snapshotBytes(t, other.store)
	h := &history{t: t, store: New(), clock: other.clock, spoken: map[SessionName]uint64{}}
	var out bytes.Buffer
	if _, err := RewriteSnapshot(&out, bytes.NewReader(file), h.view(), RestoreOptions{}); !errors.Is(err, ErrNotInitialised) {
		t.Errorf("into nothing: %v", err)
	}
	h.must(initCommand("this-one"))
	h.must(leaderCommand(testTerm, "cp-9", "boot-9"))
	_, err := RewriteSnapshot(&out, bytes.NewReader(file), h.view(), RestoreOptions{Now: h.clock})
	if !errors.Is(err, ErrOtherCluster) || out.Len() > 0 {
		t.Errorf("another cluster's: %v, %d bytes written", err, out.Len())
	}
	for _, id := range []string{"test-cluster", "this-one"} {
		if !bytes.Contains([]byte(err.Error()), []byte(id)) {
			t.Errorf("%q does not name %s", err, id)
		}
	}
	info, rewritten := h.rewrite(file, RestoreOptions{Now: h.clock, Force: true})
	equal(t, "cluster id", info.ClusterID, "this-one")
	equal(t, "nodes", recordsOf(info)["nodes"], 1)
	if err := h.store.Restore(bytes.NewReader(rewritten)); err != nil {
		t.Fatal(err)
	}
	equal(t, "cluster id", h.view().ClusterID(), "this-one")
}

func TestARestoreNeedsTheUpgradeOfItsSnapshot(t *testing.T) {
	upgraded := newHistory(t)
	upgraded.ofSchema(2)
	upgraded.must(recordCommand("cp-1", 2))
	before := snapshotBytes(t, upgraded.store)
	upgraded.must(finalizeCommand(2))
	after := snapshotBytes(t, upgraded.store)

	h := newHistory(t)
	var out bytes.Buffer
	if _, err := rewriteSnapshot(&out, bytes.NewReader(after), h.view(), RestoreOptions{}, 2); !errors.Is(err, ErrInactiveSchema) || out.Len() > 0 {
		t.Errorf("a newer one: %v, %d bytes written", err, out.Len())
	}
	if _, err := rewriteSnapshot(&out, bytes.NewReader(after), h.view(), RestoreOptions{}, 1); !errors.Is(err, ErrSchema) || out.Len() > 0 {
		t.Errorf("one that this binary does not know: %v, %d bytes written", err, out.Len())
	}
	// An older one does not take the upgrade back.
	info, _ := upgraded.rewrite(before, RestoreOptions{Now: upgraded.clock})
	equal(t, "schema", info.Schema, 2)
}

// Damage anywhere is noticed before a byte is written.
func TestADamagedSnapshotIsNotRewritten(t *testing.T) {
	h := meshed(t)
	data := smallSnapshot(t)
	source := newTarget(h.store).buffer // not made anew for each try
	refused := func(damaged []byte, what string) {
		t.Helper()
		var out bytes.Buffer
		source.Reset(bytes.NewReader(damaged))
		if _, err := RewriteSnapshot(&out, source, h.view(), RestoreOptions{}); !errors.Is(err, ErrSnapshot) || out.Len() > 0 {
			t.Fatalf("%s: %v, %d bytes written", what, err, out.Len())
		}
		source.Reset(bytes.NewReader(damaged))
		if info, err := InspectSnapshot(source); !errors.Is(err, ErrSnapshot) || info.ClusterID != "" {
			t.Fatalf("%s: inspected with %v: %+v", what, err, info)
		}
	}
	for at := range data {
		data[at] ^= 1 << (at % 8)
		refused(data, fmt.Sprint("a flipped bit at ", at))
		data[at] ^= 1 << (at % 8)
		refused(data[:at], fmt.Sprint("cut off at ", at))
	}
	refused(append(slices.Clone(data), 0), "longer")
	h.rewrite(data, RestoreOptions{})
}

func TestAWriteErrorOfARestoreIsReported(t *testing.T) {
	h := meshed(t)
	_, err := RewriteSnapshot(&failingWriter{}, bytes.NewReader(snapshotBytes(t, h.store)), h.view(), RestoreOptions{})
	if !errors.Is(err, errDiskFull) {
		t.Errorf("%v", err)
	}
}

// TestRandomRestores restores a snapshot into a state that went on. The invariants
// hold at once and while the streams that live on register again, and all that comes
// then; links keep their ids; nothing of the old generation takes effect; and a
// second restore works like the first.
func TestRandomRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		f.drawMany(t, "before")
		file, old := snapshotBytes(t, f.store), f.view()
		for range rapid.IntRange(1, 2).Draw(t, "restores") {
			f.drawMany(t, "meanwhile")
			present := f.view()
			f.restore(file)
			f.expectChecked(t)
			if f.view().Generation() <= max(old.Generation(), present.Generation()) {
				t.Fatalf("generation %d after %d and %d", f.view().Generation(), old.Generation(), present.Generation())
			}
			for node := range f.view().Nodes() {
				if node.Connected() {
					t.Fatalf("node %s has a session", node.ID)
				}
			}
			f.expectLinks(t, old)
			f.resume(t, present)
			f.expectLinks(t, old)
			stale := f.draw(t)
			stale.Generation = present.Generation()
			if result := f.apply(stale)[0]; !errors.Is(result.Err, ErrStaleGeneration) {
				t.Fatalf("of the old generation: %v", result.Err)
			}
		}
		f.drawMany(t, "after")
	})
}

func (f *fleet) drawMany(t *rapid.T, when string) {
	for range rapid.IntRange(0, 25).Draw(t, when) {
		f.apply(f.draw(t))
		f.expectChecked(t)
	}
}

func (f *fleet) expectChecked(t *rapid.T) {
	t.Helper()
	if err := f.view().Check(); err != nil {
		t.Fatalf("%v", err)
	}
}

// expectLinks checks that every live link of a view is still there.
func (f *fleet) expectLinks(t *rapid.T, old *View) {
	t.Helper()
	for link := range old.Links() {
		if now, ok := f.view().Link(link.ID); link.Live() && (!ok || !now.Live()) {
			t.Fatalf("link %s between %s and %s is gone", link.ID, link.SourceGroup, link.DestGroup)
		}
	}
}

// resume registers again what was connected before the restore, whether the
// snapshot knew the node or not (protocol S5).
func (f *fleet) resume(t *rapid.T, present *View) {
	t.Helper()
	for node := range present.Nodes() {
		for _, session := range node.Sessions {
			if present.ReplicaRemoved(session.Name.ReplicaID) || node.State == NodeLeaving {
				continue
			}
			name := f.sessionName()
			f.sessions = append(f.sessions, name)
			external := ""
			for _, detail := range session.Details {
				external = detail.ExternalEndpoint
			}
			// The endpoint it had in the snapshot: another one would replace links.
			if known, ok := f.view().Node(node.ID); ok {
				detail, _ := known.ExternalDetail()
				external = detail.ExternalEndpoint
			}
			command := registerCommand(name, node.Group, node.LocalID, external)
			command.GetRegisterNode().Resumed = true
			if result := f.apply(command)[0]; result.Err != nil || result.NodeID != node.ID {
				t.Fatalf("node %s registers again: %+v", node.ID, result)
			}
			f.expectChecked(t)
			if !connected(f.view(), node.ID) {
				t.Fatalf("node %s has no session", node.ID)
			}
		}
	}
}

func connected(view *View, id string) bool {
	node, ok := view.Node(id)
	return ok && node.Connected()
}

// What a snapshot holds is counted as lists count it.
func TestSnapshotInfoCountsWhatListsShow(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	counts := func() map[string]int { return recordsOf(h.store.Capture().Info()) }
	equal(t, "segments of the API", counts()["segments"], len(h.view().Segments()))
	h.must(topologyCommand(linksSegment("core", [2]string{"a", Wildcard}), linksSegment("edge-$group", [2]string{"a", "$group"})))
	equal(t, "segments of a file without nodes", counts()["segments"], 0)
	for _, group := range []string{"a", "b", "c"} {
		h.register(group, "n1")
	}
	equal(t, "segments of a file", counts()["segments"], len(h.view().Segments()))
	equal(t, "links", []int{counts()["links"], counts()["deleted links"]}, []int{2, 0})
	h.must(topologyCommand(linksSegment("core", [2]string{"a", "b"})))
	equal(t, "links after one was deleted", []int{counts()["links"], counts()["deleted links"]}, []int{1, 1})
	for _, id := range []string{"cp-1", "cp-2", "cp-3"} {
		h.must(recordCommand(id, SchemaVersion))
	}
	h.must(removeReplicaCommand("cp-3"))
	equal(t, "replicas", []int{counts()["replicas"], counts()["removed replicas"]}, []int{2, 1})
}
