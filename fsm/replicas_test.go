package fsm

import (
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func recordCommand(id string, schema uint32) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_RecordReplica{RecordReplica: &slimcppb.RecordReplica{
		ReplicaId: id, BootId: "boot-1", Name: "name of " + id, Address: id + ".test:1", Version: "1.2.3", Schema: schema,
	}}}
}

func removeReplicaCommand(id string) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_RemoveReplica{RemoveReplica: &slimcppb.RemoveReplica{ReplicaId: id}}}
}

func holdCommand(id string, held bool) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_HoldReplica{HoldReplica: &slimcppb.HoldReplica{ReplicaId: id, Held: held}}}
}

func finalizeCommand(schema uint32) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_FinalizeUpgrade{FinalizeUpgrade: &slimcppb.FinalizeUpgrade{Schema: schema}}}
}

func checkpointCommand() *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Checkpoint{Checkpoint: &slimcppb.Checkpoint{}}}
}

func (h *history) replica(id string) *Replica {
	h.t.Helper()
	replica, ok := h.view().Replica(id)
	if !ok {
		h.t.Fatalf("no replica %s", id)
	}
	return replica
}

func TestAReplicaIsRecorded(t *testing.T) {
	h := newHistory(t)
	h.refuse(recordCommand("", 1), ErrInvalid)
	h.must(recordCommand("cp-2", 1))
	h.must(recordCommand("cp-1", 1))
	want := &Replica{ID: "cp-1", BootID: "boot-1", Name: "name of cp-1", Address: "cp-1.test:1", Version: "1.2.3", Schema: 1}
	equal(t, "replica", h.replica("cp-1"), want)
	equal(t, "presented a file", h.replica("cp-1").Presented(), false)

	// What is known of its file and of the operator's wish stays, and the other way
	// round.
	h.must(configCommand(nil, "cp-1"))
	equal(t, "schema after it presented its file", h.replica("cp-1").Schema, 1)
	h.must(holdCommand("cp-1", true))
	restarted := recordCommand("cp-1", 1)
	restarted.GetRecordReplica().BootId = "boot-2"
	h.must(restarted)
	want.BootID, want.Fingerprint, want.HeldBack = "boot-2", []byte("fingerprint of cp-1"), true
	equal(t, "replica after it presented its file", h.replica("cp-1"), want)
	equal(t, "presented a file", h.replica("cp-1").Presented(), true)
	h.must(holdCommand("cp-1", false))
	equal(t, "held back", h.replica("cp-1").HeldBack, false)

	var ids []string
	for replica := range h.view().Replicas() {
		ids = append(ids, replica.ID)
	}
	equal(t, "replicas", ids, []string{"cp-1", "cp-2"})
	h.reopen()
	want.HeldBack = false
	equal(t, "replica after a restore", h.replica("cp-1"), want)
}

func TestARemovedReplicaNeverComesBack(t *testing.T) {
	h := meshed(t)
	h.must(recordCommand("cp-2", 1))
	h.must(configCommand(nil, "cp-2"))
	for _, id := range []string{"cp-2", "never-seen"} {
		h.must(removeReplicaCommand(id))
		equal(t, "removed", h.view().ReplicaRemoved(id), true)
		removed := *h.replica(id)
		for range 2 {
			h.refuse(recordCommand(id, 1), ErrReplicaRemoved)
			h.refuse(holdCommand(id, false), ErrReplicaRemoved)
			fleet := h.view().FleetRevision()
			h.refuse(configCommand(goldenConfig("none"), id), ErrReplicaRemoved)
			equal(t, "revision of the fleet configuration", h.view().FleetRevision(), fleet)
			h.must(removeReplicaCommand(id))
			equal(t, "replica", *h.replica(id), removed)
			h.reopen()
		}
	}
	equal(t, "name", h.replica("cp-2").Name, "name of cp-2")
	equal(t, "another replica", h.view().ReplicaRemoved("cp-1"), false)
	unfenced := removeReplicaCommand("cp-1")
	unfenced.Term = 0
	h.refuse(unfenced, ErrStaleTerm)
	h.refuse(removeReplicaCommand(""), ErrInvalid)
}

// Nobody reports the end of a removed replica's streams, so the removal ends them, as
// those of one that drains: its process may have them still.
func TestTheSessionsOfARemovedReplicaEnd(t *testing.T) {
	h := meshed(t)
	kept := h.register("a", "n1")
	names := []SessionName{
		{ReplicaID: "cp-2", BootID: "boot-1", Counter: 1}, {ReplicaID: "cp-2", BootID: "boot-2", Counter: 1}, {ReplicaID: "cp-2", Counter: 9},
	}
	for i, name := range names {
		h.must(registerCommand(name, "b", []string{"n1", "n2", "n3"}[i], "b.test:1"))
	}
	h.lose(SessionName{ReplicaID: "cp-2", BootID: "boot-2", Counter: 2}) // on its way
	h.must(removeReplicaCommand("cp-2"))
	for i, id := range []string{"b/n1", "b/n2", "b/n3"} {
		node := h.node(id)
		equal(t, "connected", node.Connected(), false)
		equal(t, "last session", node.LastSession.Name, names[i])
		equal(t, "reason", node.LastSession.Reason, slimcppb.LossReason_LOSS_REASON_DRAINING)
	}
	equal(t, "another replica's session", h.commandSession("a/n1"), kept)
	for _, late := range []uint64{2, 3} {
		h.refuse(registerCommand(SessionName{ReplicaID: "cp-2", BootID: "boot-2", Counter: late}, "b", "n1", ""), ErrReplicaRemoved)
	}
	equal(t, "barred sessions", h.store.state.ended.len(), 0)
	h.check()
}

// ofSchema makes a store that knows newer schemas than this binary.
func (h *history) ofSchema(known uint32) { h.store.known = known }

func TestAnUpgradeIsFinalizedWhenEveryReplicaIsAble(t *testing.T) {
	h := newHistory(t)
	h.ofSchema(3)
	equal(t, "active schema", h.view().ActiveSchema(), 1)
	h.refuse(finalizeCommand(2), ErrOldSchema) // nobody has said what it knows
	h.must(configCommand(nil, "cp-0"))         // nor has this one
	for id, schema := range map[string]uint32{"cp-1": 2, "cp-2": 1, "cp-3": 3, "cp-4": 1, "cp-5": 1} {
		h.must(recordCommand(id, schema))
	}
	h.must(removeReplicaCommand("cp-5"))
	result := h.apply(finalizeCommand(2))[0]
	equal(t, "error", ErrorName(result.Err), "old_schema")
	for text, named := range map[string]bool{
		"name of cp-2 cp-2 (schema 1)": true, "cp-4": true, "cp-0": false, "cp-1": false, "cp-3": false, "cp-5": false,
	} {
		if strings.Contains(result.Err.Error(), text) != named {
			t.Errorf("%q names %q: %v, not %v", result.Err, text, !named, named)
		}
	}
	h.must(recordCommand("cp-2", 2))
	h.must(recordCommand("cp-4", 2))
	for _, schema := range []uint32{2, 2, 1, 0} { // it never goes back
		h.must(finalizeCommand(schema))
		equal(t, "active schema", h.view().ActiveSchema(), 2)
	}
	h.refuse(finalizeCommand(3), ErrOldSchema)
	h.refuse(recordCommand("cp-6", 1), ErrOldSchema) // an old one does not join any more
	equal(t, "fatal", h.store.Fatal(), nil)

	data := snapshotBytes(t, h.store)
	restored := New()
	restored.known = 2
	if err := restored.Restore(strings.NewReader(string(data))); err != nil {
		t.Fatal(err)
	}
	equal(t, "active schema after a restore", restored.View().ActiveSchema(), 2)
	older := New()
	older.known = 1
	newTarget(older).refuses(t, data, "a schema that the binary does not know")
}

// A snapshot that a newer binary wrote before the upgrade was finalized can be read
// by the old one, which may come back until then.
func TestASnapshotNeedsTheActiveSchemaOnly(t *testing.T) {
	h := newHistory(t)
	h.ofSchema(7)
	h.must(recordCommand("cp-1", 7))
	h.reopen()
	equal(t, "active schema", h.view().ActiveSchema(), 1)
}

// Nobody older can be in a cluster that is only beginning, so it uses the newest
// schema at once.
func TestANewClusterUsesTheNewestSchema(t *testing.T) {
	for schema, want := range map[uint32]uint32{0: 1, 1: 1, SchemaVersion: SchemaVersion} {
		h := &history{t: t, store: New()}
		init := initCommand("c")
		init.GetInitCluster().ActiveSchema = schema
		equal(t, "error", h.apply(init)[0].Err, nil)
		equal(t, "active schema", h.view().ActiveSchema(), want)
		h.must(init) // again: nothing changes
		equal(t, "active schema", h.view().ActiveSchema(), want)
	}
	h := &history{t: t, store: New()}
	init := initCommand("c")
	init.GetInitCluster().ActiveSchema = SchemaVersion + 1
	equal(t, "error", ErrorName(h.apply(init)[0].Err), "schema")
	equal(t, "fatal", ErrorName(h.store.Fatal()), "schema")
}

func TestACommandOfAnInactiveSchemaIsRefused(t *testing.T) {
	h := newHistory(t)
	h.ofSchema(2)
	newer := registerCommand(h.sessionName(), "a", "n1", "")
	logged := Batch{Index: uint64(len(h.log) + 1), Term: testTerm, Entry: &slimcppb.Entry{Commands: []*slimcppb.Command{newer}}}
	newer.Schema, newer.Generation = 2, 1
	apply := func() error { return h.store.ApplyBatch([]Batch{logged})[0][0].Err }
	equal(t, "before", ErrorName(apply()), "inactive_schema")
	equal(t, "fatal", h.store.Fatal(), nil)
	h.must(recordCommand("cp-1", 2))
	h.must(finalizeCommand(2))
	equal(t, "after", apply(), nil)
	newer.Schema = 3
	equal(t, "of a schema that nobody knows", ErrorName(apply()), "schema")
	equal(t, "fatal", ErrorName(h.store.Fatal()), "schema")
}

// A replica whose own record is wrong must not go on with a state that it cannot
// understand.
func TestABinaryThatIsTooOldStopsAtTheUpgrade(t *testing.T) {
	h := newHistory(t)
	h.ofSchema(1)
	h.must(recordCommand("cp-1", 2))
	equal(t, "error", ErrorName(h.apply(finalizeCommand(2))[0].Err), "schema")
	equal(t, "fatal", ErrorName(h.store.Fatal()), "schema")
	equal(t, "active schema", h.view().ActiveSchema(), 1)
}

func TestACheckpointHandsOutTheStateOfItsEntry(t *testing.T) {
	h := meshed(t)
	var taken []*Snapshot
	h.must(checkpointCommand()) // nobody takes it
	h.store.SetCheckpointHandler(func(snapshot *Snapshot) { taken = append(taken, snapshot) })
	h.register("a", "n1")
	h.apply(checkpointCommand(), registerCommand(h.sessionName(), "b", "n1", "b.test:1"), checkpointCommand())
	index, want := h.view().Index(), snapshotBytes(t, h.store)
	h.register("c", "n1")
	unfenced := checkpointCommand()
	unfenced.Term = 0
	h.refuse(unfenced, ErrStaleTerm)
	equal(t, "checkpoints", len(taken), 1)
	equal(t, "index", taken[0].Index(), index)
	var written strings.Builder
	if err := taken[0].Write(&written); err != nil || written.String() != string(want) {
		t.Errorf("the state is not that after the entry (%v)", err)
	}
	h.store.SetCheckpointHandler(nil)
	h.must(checkpointCommand())
	equal(t, "checkpoints without a handler", len(taken), 1)
}

// A copy of a data directory, or an older image of it, is told from the replica by the
// number of its start.
func TestAnEarlierStartIsRefused(t *testing.T) {
	h := newHistory(t)
	start := func(number uint64, boot string) *slimcppb.Command {
		command := recordCommand("cp-1", 2)
		command.GetRecordReplica().Boots, command.GetRecordReplica().BootId = number, boot
		return command
	}
	h.must(start(9, "a")) // before the upgrade is finalized numbers do nothing
	h.must(start(4, "b"))
	equal(t, "boots", h.replica("cp-1").Boots, 0)
	h.must(finalizeCommand(2))
	h.must(start(5, "c"))
	h.must(start(5, "c")) // delivered again
	h.refuse(start(5, "d"), ErrEarlierStart)
	h.refuse(start(4, "b"), ErrEarlierStart)
	equal(t, "boot", h.replica("cp-1").BootID, "c")
	h.must(start(6, "e"))
	equal(t, "boots", h.replica("cp-1").Boots, 6)
	h.must(removeReplicaCommand("cp-1"))
	equal(t, "boots of a removed replica", h.replica("cp-1").Boots, 6)
}

// How far a replica's log reached is kept, so that one that has lost entries is told.
func TestConfirmedLogs(t *testing.T) {
	h := newHistory(t)
	h.must(recordCommand("cp-1", 2))
	h.must(recordCommand("cp-2", 2))
	confirm := func(logs ...*slimcppb.ConfirmedIndex) *slimcppb.Command {
		return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Probe{Probe: &slimcppb.Probe{Confirmed: logs}}}
	}
	log := func(id string, index uint64) *slimcppb.ConfirmedIndex {
		return &slimcppb.ConfirmedIndex{ReplicaId: id, Index: index}
	}
	h.must(confirm(log("cp-1", 1)))
	equal(t, "before the upgrade is finalized", h.replica("cp-1").Confirmed, 0)
	h.must(finalizeCommand(2))
	h.must(confirm(log("cp-1", 3), log("cp-2", 2), log("nobody", 2)))
	h.must(confirm(log("cp-1", 2)))
	equal(t, "an older probe", h.replica("cp-1").Confirmed, 3)
	equal(t, "the other one", h.replica("cp-2").Confirmed, 2)
	if _, known := h.view().Replica("nobody"); known {
		t.Error("a probe has made a replica")
	}
	h.must(confirm(log("cp-1", 1<<40), log("cp-2", h.view().Index()+1)))
	equal(t, "an index behind the probe", h.replica("cp-1").Confirmed, 3)
	equal(t, "that of the probe", h.replica("cp-2").Confirmed, 2)
	h.reopen()
	equal(t, "after a snapshot", h.replica("cp-1").Confirmed, 3)
	h.must(recordCommand("cp-1", 2))
	equal(t, "after another start", h.replica("cp-1").Confirmed, 3)
	h.must(removeReplicaCommand("cp-2"))
	h.must(confirm(log("cp-2", 4)))
	equal(t, "of a removed one", h.replica("cp-2").Confirmed, 0)
}
