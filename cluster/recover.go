package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// RecoverOptions say which data directory to recover a cluster from.
type RecoverOptions struct {
	DataDir string
	// Advertise is the HOST:PORT of the replica, as in its configuration.
	Advertise string
	// DryRun only says what would be done.
	DryRun bool
	Logger hclog.Logger
}

// Recovery says what a recovery found and did.
type Recovery struct {
	ReplicaID string
	ClusterID string
	// Members of the configuration that is given up.
	Members []Member
	// LastIndex of the log. What is not known to be committed counts as committed.
	LastIndex uint64
	State     fsm.SnapshotInfo
	// Backup is the copy of the data directory; empty after a dry run.
	Backup string
}

// Recover makes the replica of a data directory the only member of its cluster
// when a quorum is lost for good. The replica must not run. A copy of the
// directory is made first. The state gets a new generation, and the ids of the
// other members are barred: they set their data aside and join anew. Should they
// go on as a cluster of their own, there are two.
func Recover(ctx context.Context, options RecoverOptions) (Recovery, error) {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if _, err := os.Stat(filepath.Join(options.DataDir, logFile)); errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, fmt.Errorf("%w: %s holds no log", ErrDataDir, options.DataDir)
	}
	storage, err := openStorage(Options{DataDir: options.DataDir, Name: "recover"}, options.Logger)
	if err != nil {
		return Recovery{}, err
	}
	recovery, err := recoverStorage(ctx, storage, options)
	return recovery, errors.Join(err, storage.close())
}

func recoverStorage(ctx context.Context, storage *storage, options RecoverOptions) (Recovery, error) {
	replica := storage.identity.replicaID()
	last, err := storage.logs.LastIndex()
	if err != nil {
		return Recovery{}, fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = raft.ServerID(replica), options.Logger
	_, transport := raft.NewInmemTransport(raft.ServerAddress(options.Advertise))
	lookup := *config
	configuration, err := raft.GetConfiguration(&lookup, emptyMachine{}, storage.logs, storage.stable, storage.snapshots, transport)
	if err != nil {
		return Recovery{}, fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	recovery := Recovery{ReplicaID: replica, ClusterID: storage.identity.clusterID(), LastIndex: last}
	for _, server := range configuration.Servers {
		recovery.Members = append(recovery.Members, Member{
			ReplicaID: string(server.ID), Address: string(server.Address), Voter: server.Suffrage == raft.Voter,
		})
	}
	if recovery.ClusterID == "" {
		return recovery, fmt.Errorf("%w: %s is not a member of a cluster", ErrDataDir, replica)
	}
	if options.DryRun || ctx.Err() != nil {
		return recovery, ctx.Err()
	}
	recovery.Backup = fmt.Sprintf("%s.before-recovery-%s", filepath.Clean(options.DataDir), time.Now().UTC().Format("20060102T150405Z"))
	if err := copyDir(recovery.Backup, options.DataDir); err != nil {
		return recovery, fmt.Errorf("copy the data directory: %w", err)
	}
	machine := &recoveredMachine{
		stateMachine: stateMachine{store: fsm.New(), fail: func(error) {}, leaderStarted: func() {}},
		members:      recovery.Members, survivor: replica,
	}
	err = raft.RecoverCluster(config, machine, storage.logs, storage.stable, storage.snapshots, transport, raft.Configuration{
		Servers: []raft.Server{{Suffrage: raft.Voter, ID: config.LocalID, Address: raft.ServerAddress(options.Advertise)}},
	})
	if err := errors.Join(err, machine.stopped); err != nil {
		return recovery, fmt.Errorf("%w: %w (a copy is in %s)", ErrStoreFailed, err, recovery.Backup)
	}
	recovery.State = machine.info
	return recovery, nil
}

// emptyMachine stands in for the state where only Raft's configuration is read.
type emptyMachine struct{}

func (emptyMachine) Apply(*raft.Log) any                 { return nil }
func (emptyMachine) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }
func (emptyMachine) Restore(r io.ReadCloser) error       { return r.Close() }

// recoveredMachine replays the log, and snapshots what comes of it as the state of
// a new generation.
type recoveredMachine struct {
	stateMachine
	members  []Member
	survivor string
	info     fsm.SnapshotInfo
}

// Snapshot implements raft.FSM.
func (m *recoveredMachine) Snapshot() (raft.FSMSnapshot, error) {
	if m.stopped != nil {
		return nil, m.stopped
	}
	m.barOthers()
	var state, rewritten bytes.Buffer
	if err := m.store.Capture().Write(&state); err != nil {
		return nil, err
	}
	view := m.store.View()
	info, err := fsm.RewriteSnapshot(&rewritten, &state, view, fsm.RestoreOptions{Now: time.Now()})
	if err != nil {
		return nil, err
	}
	m.info = info
	return &writtenSnapshot{content: rewritten.Bytes()}, nil
}

// barOthers removes the other members from the state, as the last entry of the
// old generation: at the index and in the term of the last one.
func (m *recoveredMachine) barOthers() {
	view := m.store.View()
	entry := &slimcppb.Entry{}
	for _, member := range m.members {
		if member.ReplicaID == m.survivor {
			continue
		}
		entry.Commands = append(entry.Commands, &slimcppb.Command{
			Schema: 1, Generation: view.Generation(), Term: view.Term(), TimeUnixNanos: view.Clock().UnixNano(),
			Payload: &slimcppb.Command_RemoveReplica{RemoveReplica: &slimcppb.RemoveReplica{ReplicaId: member.ReplicaID}},
		})
	}
	if len(entry.GetCommands()) > 0 {
		m.store.Apply(view.Index(), view.Term(), entry)
	}
}

// writtenSnapshot is a snapshot in memory.
type writtenSnapshot struct{ content []byte }

func (s *writtenSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s.content); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s *writtenSnapshot) Release() {}

// copyDir copies a directory and makes the copy durable.
func copyDir(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o700)
		case !entry.Type().IsRegular() || relative == lockFile:
			return nil
		}
		return copyFile(target, path)
	})
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Sync(), target.Close(), syncDir(filepath.Dir(to)))
}
