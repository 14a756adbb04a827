package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	logFile = "raft.db"
	// boltLockTimeout bounds the wait for bbolt's own file lock. The directory's
	// lock is held by then, so nobody should hold it.
	boltLockTimeout = time.Second
)

// keyCurrentTerm is raft's key of the current term in its stable store.
var keyCurrentTerm = []byte("CurrentTerm")

// storage is what a replica keeps.
type storage struct {
	identity  *identity
	logs      raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	disk      disk
	size      logSize
	committed *committed
	closers   []func() error
}

// openStorage opens the data directory, or makes storage in memory. raftLogger is the
// library's.
func openStorage(options Options, logger, raftLogger hclog.Logger) (*storage, error) {
	if options.DataDir == "" {
		memory := raft.NewInmemStore()
		s := &storage{
			identity:  newIdentity("", options.Name),
			stable:    memory,
			snapshots: &memorySnapshots{},
			committed: newCommitted(),
		}
		s.logs = sizedLogs{LogStore: memory, size: &s.size}
		return s, nil
	}
	s := &storage{}
	if err := s.openDir(options, logger, raftLogger); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *storage) openDir(options Options, logger, raftLogger hclog.Logger) error {
	if err := makeDir(options.DataDir); err != nil {
		return err
	}
	if err := keepPrivate(options.DataDir, logger); err != nil {
		return err
	}
	lock, err := lockDir(options.DataDir)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, lock.Close)

	path := filepath.Join(options.DataDir, logFile)
	if err := measureLogFile(path, &s.size); err != nil {
		return err
	}
	if err := removeTemporary(options.DataDir); err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if err := compactLog(path, minCompactBytes, logger); err != nil {
		return fmt.Errorf("%w: compact %s: %w", ErrDataDir, path, err)
	}
	if err := s.openLog(path, boltOptions()); err != nil {
		return err
	}
	if err := s.openSnapshots(options.DataDir, raftLogger); err != nil {
		return err
	}
	if s.committed, err = openCommitted(options.DataDir, logger); err != nil {
		return err
	}
	s.closers = append(s.closers, s.committed.close)
	return s.openIdentity(options)
}

// openLog opens a log file that was checked.
func (s *storage) openLog(path string, options *bbolt.Options) error {
	bolt, err := openBolt(path, options)
	if err != nil {
		return err
	}
	s.disk.opened()
	logs := sizedLogs{LogStore: notedLogs{LogStore: bolt, disk: &s.disk}, size: &s.size}
	s.logs, s.stable = sealedLogs{LogStore: logs}, bolt
	s.closers = append(s.closers, bolt.Close)
	return nil
}

func (s *storage) openSnapshots(dir string, logger hclog.Logger) error {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, retainedSnapshots, logger)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	s.snapshots = notedSnapshots{SnapshotStore: files, disk: &s.disk}
	return nil
}

// snapshotsDir is where the library keeps snapshots in the data directory.
const snapshotsDir = "snapshots"

// keepPrivate keeps other users of the machine from reading the state, the groups'
// secrets among it. The library would let everybody read the snapshots. The mode of
// the data directory itself is the operator's, who may have made it.
func keepPrivate(dataDir string, logger hclog.Logger) error {
	const others = 0o077
	info, err := os.Stat(dataDir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if mode := info.Mode().Perm(); mode&others != 0 {
		logger.Warn("other users of this machine may enter the data directory: its mode should be 0700",
			"path", dataDir, "mode", fmt.Sprintf("%#o", mode))
	}
	dir := filepath.Join(dataDir, snapshotsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	if info, err = os.Stat(dir); err == nil && info.Mode().Perm()&others != 0 {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil { // it is somebody else's
		logger.Warn("other users of this machine may read the snapshots: the mode of their directory should be 0700",
			"path", dir, "error", err)
	}
	return nil
}

// openBolt opens a log file. bbolt panics over some damages.
func openBolt(path string, options *bbolt.Options) (bolt *raftboltdb.BoltStore, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			bolt, err = nil, damagedLog(path, reason)
		}
	}()
	bolt, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: options})
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", ErrDataDir, path, err)
	}
	return bolt, nil
}

// openIdentity loads the identity, or draws one if the directory is new.
func (s *storage) openIdentity(options Options) error {
	hasState, err := raft.HasExistingState(s.logs, s.stable, s.snapshots)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	s.identity, err = loadIdentity(options.DataDir)
	switch {
	case err == nil && s.identity.clusterID() != "" && !hasState:
		// The disk was emptied. Under its old id this replica could vote twice.
		return fmt.Errorf("%w: %s belongs to cluster %s but holds neither log nor snapshot; restore it, or start with an empty directory",
			ErrDataDir, options.DataDir, s.identity.clusterID())
	case err == nil:
		return s.identity.begin()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case hasState:
		return fmt.Errorf("%w: %s holds a log but no %s", ErrDataDir, options.DataDir, identityFile)
	}
	s.identity = newIdentity(options.DataDir, options.Name)
	return s.identity.begin()
}

// bootstrap makes a new replica the only voter of a new cluster. It does
// nothing once there is a log or a snapshot.
func (s *storage) bootstrap(config *raft.Config, transport raft.Transport) error {
	last, err := s.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	snapshots, err := s.snapshots.List()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	if last > 0 || len(snapshots) > 0 {
		return nil
	}
	configuration := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: config.LocalID, Address: transport.LocalAddr(),
	}}}
	hasState, err := raft.HasExistingState(s.logs, s.stable, s.snapshots)
	if err == nil && hasState {
		// The process died between the two writes of a bootstrap.
		err = s.finishBootstrap(configuration)
	} else if err == nil {
		err = raft.BootstrapCluster(config, s.logs, s.stable, s.snapshots, transport, configuration)
	}
	if err != nil {
		return fmt.Errorf("%w: bootstrap: %w", ErrStoreFailed, err)
	}
	return nil
}

func (s *storage) finishBootstrap(configuration raft.Configuration) error {
	term, err := s.stable.GetUint64(keyCurrentTerm)
	if err != nil {
		return err
	}
	if term != 1 {
		return fmt.Errorf("%w: term %d but neither log nor snapshot", ErrDataDir, term)
	}
	return s.logs.StoreLog(&raft.Log{
		Index: 1, Term: 1,
		Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(configuration),
	})
}

// close closes in the reverse order of opening.
func (s *storage) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}
