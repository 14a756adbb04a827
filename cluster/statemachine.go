package cluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// stateMachine hands committed entries to the store. Raft calls it from one
// goroutine at a time.
type stateMachine struct {
	store *fsm.Store
	// fail stops the replica. It must not block.
	fail func(error)
	// leaderStarted is called when a LeaderStarted was applied. It must not block.
	leaderStarted func()
	// snapshotMoved is called when a part of a snapshot was read, if it is not nil. It
	// must not block.
	snapshotMoved func()
	// applied is called with the last entry of each batch that was applied, if it is not
	// nil. It must not block.
	applied func(index, term uint64)

	leaderTerm uint64
	// stopped is set once an entry could not be applied. Nothing is applied and
	// no snapshot is taken after it: the state would diverge from the log.
	stopped error
}

var _ raft.BatchingFSM = (*stateMachine)(nil)

// Apply is required by the library, which only calls ApplyBatch.
func (m *stateMachine) Apply(log *raft.Log) any { return m.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch returns a []fsm.Result for each entry, nil for one that was not
// applied.
func (m *stateMachine) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	if m.stopped != nil {
		return responses
	}
	batch := make([]fsm.Batch, 0, len(logs))
	positions := make([]int, 0, len(logs))
	var undecodable error
	for i, log := range logs {
		if log.Type != raft.LogCommand {
			continue
		}
		entry := &slimcppb.Entry{}
		if err := proto.Unmarshal(log.Data, entry); err != nil {
			undecodable = fmt.Errorf("%w: log entry %d cannot be read: %w", ErrStoreFailed, log.Index, err)
			break
		}
		batch = append(batch, fsm.Batch{Index: log.Index, Term: log.Term, Entry: entry})
		positions = append(positions, i)
	}
	if len(batch) > 0 {
		for i, results := range m.store.ApplyBatch(batch) {
			responses[positions[i]] = results
		}
	}
	if err := m.store.Fatal(); err != nil {
		m.stop(fmt.Errorf("%w: %w", ErrUnknownSchema, err))
	} else if undecodable != nil {
		m.stop(undecodable)
	}
	if last := logs[len(logs)-1]; m.stopped == nil && m.applied != nil {
		m.applied(last.Index, last.Term)
	}
	m.noticeLeader()
	return responses
}

func (m *stateMachine) stop(err error) {
	m.stopped = err
	m.fail(err)
}

func (m *stateMachine) noticeLeader() {
	if term := m.store.View().LeaderTerm(); term != m.leaderTerm {
		m.leaderTerm = term
		m.leaderStarted()
	}
}

// Snapshot captures the state in O(1); writing it happens beside Apply.
func (m *stateMachine) Snapshot() (raft.FSMSnapshot, error) {
	if m.stopped != nil {
		return nil, m.stopped
	}
	return &stateSnapshot{snapshot: m.store.Capture()}, nil
}

// Restore replaces the state by a snapshot, which the store verifies first.
func (m *stateMachine) Restore(snapshot io.ReadCloser) error {
	var from io.Reader = snapshot
	if m.snapshotMoved != nil {
		from = notedReader{Reader: snapshot, moved: m.snapshotMoved}
	}
	if err := m.store.Restore(from); err != nil {
		if errors.Is(err, fsm.ErrSchema) {
			// The library would fall back to an older snapshot.
			m.stop(fmt.Errorf("%w: %w", ErrUnknownSchema, err))
		}
		return err
	}
	m.noticeLeader()
	return nil
}

// stateSnapshot is a state on its way to a snapshot store.
type stateSnapshot struct {
	snapshot *fsm.Snapshot
}

func (s *stateSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.snapshot.Write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s *stateSnapshot) Release() {}
