package cluster

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func entry(t *testing.T, index uint64, commands ...*slimcppb.Command) *raft.Log {
	t.Helper()
	data, err := proto.Marshal(&slimcppb.Entry{Commands: commands})
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Index: index, Term: 2, Data: data}
}

func leaderStarted(term uint64) *slimcppb.Command {
	return &slimcppb.Command{Generation: 1, Payload: &slimcppb.Command_LeaderStarted{
		LeaderStarted: &slimcppb.LeaderStarted{Term: term, ReplicaId: "cp-01", BootId: "boot"},
	}}
}

// An entry that cannot be read stops the state where it is: nothing behind it,
// in its batch or later, is applied, and no snapshot hides the gap.
func TestUnreadableEntryStopsTheState(t *testing.T) {
	var failed error
	started := 0
	machine := &stateMachine{
		store:         fsm.New(),
		fail:          func(err error) { failed = err },
		leaderStarted: func() { started++ },
	}
	init := &slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "c", ActiveSchema: fsm.SchemaVersion}}}
	responses := machine.ApplyBatch([]*raft.Log{
		entry(t, 2, init),
		{Index: 3, Term: 2, Type: raft.LogConfiguration},
		{Index: 4, Term: 2, Data: []byte{0xff}},
		entry(t, 5, leaderStarted(2)),
	})
	if results, ok := responses[0].([]fsm.Result); !ok || results[0].Err != nil {
		t.Errorf("first entry: %v", responses[0])
	}
	if responses[2] != nil || responses[3] != nil || !errors.Is(failed, ErrStoreFailed) {
		t.Errorf("from the unreadable entry on: %v, failure %v", responses[2:], failed)
	}
	if response := machine.Apply(entry(t, 6, leaderStarted(2))); response != nil || started != 0 || machine.store.View().Index() != 2 {
		t.Errorf("later entry: %v, index %d", response, machine.store.View().Index())
	}
	if _, err := machine.Snapshot(); !errors.Is(err, ErrStoreFailed) {
		t.Errorf("snapshot: %v", err)
	}
}
