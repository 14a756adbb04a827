package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
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
	closers   []func() error
}

// openStorage opens the data directory, or makes storage in memory.
func openStorage(options Options, logger hclog.Logger) (*storage, error) {
	if options.DataDir == "" {
		memory := raft.NewInmemStore()
		return &storage{
			identity:  newIdentity("", options.Name),
			logs:      memory,
			stable:    memory,
			snapshots: raft.NewDiscardSnapshotStore(),
		}, nil
	}
	s := &storage{}
	if err := s.openDir(options, logger); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *storage) openDir(options Options, logger hclog.Logger) error {
	if err := makeDir(options.DataDir); err != nil {
		return err
	}
	lock, err := lockDir(options.DataDir)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, lock.Close)

	if err := removeTemporary(options.DataDir); err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	path := filepath.Join(options.DataDir, logFile)
	if err := compactLog(path, minCompactBytes, logger); err != nil {
		return fmt.Errorf("%w: compact %s: %w", ErrDataDir, path, err)
	}
	bolt, err := openBolt(path)
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", ErrDataDir, path, err)
	}
	s.logs, s.stable = sealedLogs{LogStore: bolt}, bolt
	s.closers = append(s.closers, bolt.Close)

	s.snapshots, err = raft.NewFileSnapshotStoreWithLogger(options.DataDir, retainedSnapshots, logger)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return s.openIdentity(options)
}

// openBolt opens a log file. bbolt panics over a damaged one.
func openBolt(path string) (bolt *raftboltdb.BoltStore, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the file is damaged: %v", reason)
		}
	}()
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
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
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case hasState:
		return fmt.Errorf("%w: %s holds a log but no %s", ErrDataDir, options.DataDir, identityFile)
	}
	s.identity = newIdentity(options.DataDir, options.Name)
	return s.identity.save()
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
