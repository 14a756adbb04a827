package cluster

import (
	"bytes"
	"cmp"
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
	// LastIndex of what is kept of the log. What is not known to be committed counts
	// as committed.
	LastIndex uint64
	// Cut is how many entries behind LastIndex are given up since the first of them
	// cannot be read, which CutReason says; 0: none.
	Cut       uint64
	CutReason string
	State     fsm.SnapshotInfo
	// Backup is the copy of the data directory; empty after a dry run.
	Backup string
}

// Recover makes the replica of a data directory the only member of its cluster
// when a quorum is lost for good. The replica must not run. A copy of the
// directory is made first. The state gets a new generation, and the ids of the
// other members are barred: they set their data aside and join anew. Should they
// go on as a cluster of their own, there are two. Entries from the first one on
// that cannot be read are cut off. The error is ErrRemoved for a replica that was
// removed before: it would be a second cluster beside the one that goes on.
func Recover(ctx context.Context, options RecoverOptions) (Recovery, error) {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	path := filepath.Join(options.DataDir, logFile)
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return Recovery{}, fmt.Errorf("%w: %s holds no log", ErrDataDir, options.DataDir)
	}
	lock, err := lockDir(options.DataDir)
	if err != nil {
		return Recovery{}, err
	}
	defer func() { _ = lock.Close() }()
	if err := checkLogFile(path); err != nil {
		return Recovery{}, err
	}
	recovery, err := planRecovery(options)
	if err != nil || options.DryRun || ctx.Err() != nil {
		return recovery, cmp.Or(err, ctx.Err())
	}
	recovery.Backup = fmt.Sprintf("%s.before-recovery-%s", filepath.Clean(options.DataDir), time.Now().UTC().Format("20060102T150405Z"))
	if err := copyDir(recovery.Backup, options.DataDir); err != nil {
		return recovery, fmt.Errorf("copy the data directory: %w", err)
	}
	if err := carryOut(&recovery, options); err != nil {
		return recovery, fmt.Errorf("%w (a copy is in %s)", err, recovery.Backup)
	}
	return recovery, nil
}

// planRecovery reads the data directory, and writes nothing.
func planRecovery(options RecoverOptions) (Recovery, error) {
	identity, err := loadIdentity(options.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Recovery{}, fmt.Errorf("%w: %s holds no %s", ErrDataDir, options.DataDir, identityFile)
	}
	if err != nil {
		return Recovery{}, err
	}
	recovery := Recovery{ReplicaID: identity.replicaID(), ClusterID: identity.clusterID()}
	if recovery.ClusterID == "" {
		return recovery, fmt.Errorf("%w: %s is not a member of a cluster", ErrDataDir, recovery.ReplicaID)
	}
	if _, err := os.Stat(filepath.Join(options.DataDir, removedFile)); err == nil {
		return recovery, errNotToBeRecovered(recovery)
	}
	for file, reason := range map[string]string{
		distrustedFile: "its state differs from that of a majority: recover from another replica, or remove the file to use this state all the same",
		restoreFile:    "a restore was under way: start the replica once, which settles it, and stop it again",
	} {
		if _, err := os.Stat(filepath.Join(options.DataDir, file)); err == nil {
			return recovery, fmt.Errorf("%w: %s: %s", ErrDataDir, filepath.Join(options.DataDir, file), reason)
		}
	}
	storage, err := openToRecover(options, true)
	if err != nil {
		return recovery, err
	}
	found, err := survey(storage)
	if err := errors.Join(err, storage.close()); err != nil {
		return recovery, storeFailed(err)
	}
	recovery.LastIndex, recovery.Cut, recovery.CutReason = found.last, found.cut, found.cutReason
	member := false
	for _, server := range found.configuration.Servers {
		member = member || string(server.ID) == recovery.ReplicaID
		recovery.Members = append(recovery.Members, Member{
			ReplicaID: string(server.ID), Address: hostPort(server.Address), Voter: server.Suffrage == raft.Voter,
		})
	}
	if !member || found.store.View().ReplicaRemoved(recovery.ReplicaID) {
		return recovery, errNotToBeRecovered(recovery)
	}
	return recovery, nil
}

func errNotToBeRecovered(found Recovery) error {
	return fmt.Errorf("%w %s: set the data directory of %s aside and let it join anew", ErrRemoved, found.ClusterID, found.ReplicaID)
}

// openToRecover opens what a replica has stored, as it is: nothing is compacted, and
// no identity drawn. The directory is locked and its log file checked.
func openToRecover(options RecoverOptions, readOnly bool) (*storage, error) {
	s := &storage{snapshots: raft.NewDiscardSnapshotStore()}
	bolt := *boltOptions()
	bolt.ReadOnly = readOnly
	if err := s.openLog(filepath.Join(options.DataDir, logFile), &bolt); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(options.DataDir, snapshotsDir)); readOnly && errors.Is(err, fs.ErrNotExist) {
		return s, nil // opening them would make the directory
	}
	if err := s.openSnapshots(options.DataDir, options.Logger); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// surveyed is what the files of a replica come to.
type surveyed struct {
	store         *fsm.Store
	configuration raft.Configuration
	last          uint64 // index of the last entry that can be read
	cut           uint64 // entries behind it
	cutReason     string
}

// survey replays the files as raft.RecoverCluster will do it.
func survey(storage *storage) (found surveyed, err error) {
	defer func() {
		if reason := recover(); reason != nil { // the libraries', over what no checksum covers
			err = fmt.Errorf("the log cannot be read: %v", reason)
		}
	}()
	found.store = fsm.New()
	machine := &stateMachine{store: found.store, fail: func(error) {}, leaderStarted: func() {}}
	if err := found.restore(storage, machine); err != nil {
		return found, err
	}
	first, err := storage.logs.FirstIndex()
	if err != nil {
		return found, err
	}
	end, err := storage.logs.LastIndex()
	if err != nil {
		return found, err
	}
	if end > found.last && first > found.last+1 {
		return found, fmt.Errorf("the log begins at index %d, and the snapshot ends at index %d", first, found.last)
	}
	for index := found.last + 1; index <= end; index++ {
		var entry raft.Log
		if err := storage.logs.GetLog(index, &entry); err != nil {
			found.cut, found.cutReason = end-index+1, fmt.Sprintf("entry %d cannot be read: %v", index, err)
			return found, nil
		}
		switch entry.Type {
		case raft.LogCommand:
			machine.Apply(&entry)
		case raft.LogConfiguration:
			found.configuration = raft.DecodeConfiguration(entry.Data)
		}
		if machine.stopped != nil {
			return found, machine.stopped
		}
		found.last = index
	}
	return found, nil
}

// restore begins with the newest snapshot that is whole.
func (s *surveyed) restore(storage *storage, machine *stateMachine) error {
	snapshots, err := storage.snapshots.List()
	if err != nil {
		return err
	}
	for _, snapshot := range snapshots {
		_, content, err := storage.snapshots.Open(snapshot.ID)
		if err != nil {
			continue
		}
		err = errors.Join(machine.Restore(content), content.Close())
		if machine.stopped != nil {
			return machine.stopped
		}
		if err == nil {
			s.configuration, s.last = snapshot.Configuration, snapshot.Index
			return nil
		}
	}
	if len(snapshots) > 0 {
		return errors.New("no snapshot can be read")
	}
	return nil
}

// carryOut does what was planned.
func carryOut(recovery *Recovery, options RecoverOptions) (err error) {
	storage, err := openToRecover(options, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, storage.close()) }()
	if err := errors.Join(lowerCommitted(options.DataDir, recovery.LastIndex), removeFence(options.DataDir)); err != nil {
		return storeFailed(err)
	}
	if recovery.Cut > 0 {
		if err := storage.logs.DeleteRange(recovery.LastIndex+1, recovery.LastIndex+recovery.Cut); err != nil {
			return storeFailed(err)
		}
	}
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = raft.ServerID(recovery.ReplicaID), options.Logger
	_, transport := raft.NewInmemTransport(raft.ServerAddress(options.Advertise))
	machine := &recoveredMachine{
		stateMachine: stateMachine{store: fsm.New(), fail: func(error) {}, leaderStarted: func() {}},
		members:      recovery.Members, survivor: recovery.ReplicaID,
	}
	err = raft.RecoverCluster(config, machine, storage.logs, storage.stable, storage.snapshots, transport, raft.Configuration{
		Servers: []raft.Server{{Suffrage: raft.Voter, ID: config.LocalID, Address: raft.ServerAddress(options.Advertise)}},
	})
	if err := cmp.Or(machine.stopped, err); err != nil {
		return storeFailed(err)
	}
	recovery.State = machine.info
	return nil
}

// storeFailed makes an error ErrStoreFailed, or leaves it what it is already.
func storeFailed(err error) error {
	for _, known := range []error{ErrStoreFailed, ErrUnknownSchema, ErrDataDir} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrStoreFailed, err)
}

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
	info, err := fsm.RewriteSnapshot(&rewritten, &state, view, fsm.RestoreOptions{Now: time.Now(), Own: true})
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
