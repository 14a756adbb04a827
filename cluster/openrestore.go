package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// restoreFile stands in the data directory while it is not known whether a restore
// becomes the cluster's state.
const restoreFile = "restoring.json"

// openRestore is a restore that this replica has begun as the leader. The library
// makes the snapshot this replica's state before anybody else has it, and the log
// behind it begins with a hole. A leader that is cut off in that moment could never
// follow its successor: no entry of the successor's fits into the hole.
type openRestore struct {
	Term uint64 `json:"term"`
	// LastIndex of the log before the restore.
	LastIndex uint64 `json:"last_index"`
}

// markRestore notes on the disk that a restore begins.
func (r *Replica) markRestore() error {
	if r.options.DataDir == "" {
		return nil
	}
	content, err := json.Marshal(openRestore{Term: r.raft.CurrentTerm(), LastIndex: r.raft.LastIndex()})
	if err == nil {
		err = writeDurably(filepath.Join(r.options.DataDir, restoreFile), content)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	return nil
}

// unmarkRestore notes that a restore is over, for good or ill.
func unmarkRestore(dataDir string) error {
	if dataDir == "" {
		return nil
	}
	err := os.Remove(filepath.Join(dataDir, restoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(dataDir))
}

// settleRestore drops the snapshot of a restore that was open when this replica
// stopped, and what it wrote behind it: nobody was told that it is the state. One
// that a later leader has written behind stays: that leader has it too.
func (s *storage) settleRestore(dataDir string, logger hclog.Logger) error {
	if dataDir == "" {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(dataDir, restoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var begun openRestore
	if err == nil {
		err = json.Unmarshal(content, &begun)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDataDir, restoreFile, err)
	}
	snapshots, err := s.snapshots.List()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	for _, snapshot := range snapshots {
		if snapshot.Term != begun.Term || snapshot.Index <= begun.LastIndex {
			continue
		}
		followed, err := s.followedByTerm(snapshot.Index, begun.Term)
		if err == nil && !followed {
			logger.Warn("dropping a restore that did not reach the other replicas", "index", snapshot.Index, "term", snapshot.Term)
			err = errors.Join(s.committed.lower(begun.LastIndex), s.dropSnapshot(dataDir, snapshot))
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrStoreFailed, err)
		}
	}
	if err := unmarkRestore(dataDir); err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	return nil
}

// followedByTerm reports whether the log holds an entry of a later term behind an
// index.
func (s *storage) followedByTerm(index, term uint64) (bool, error) {
	last, err := s.logs.LastIndex()
	if err != nil || last <= index {
		return false, err
	}
	var entry raft.Log
	err = s.logs.GetLog(last, &entry)
	return entry.Term > term, err
}

// dropSnapshot removes a snapshot and the log from its index on.
func (s *storage) dropSnapshot(dataDir string, snapshot *raft.SnapshotMeta) error {
	last, err := s.logs.LastIndex()
	if err == nil && last >= snapshot.Index {
		err = s.logs.DeleteRange(snapshot.Index, last)
	}
	if err != nil {
		return err
	}
	dir := filepath.Join(dataDir, snapshotsDir)
	if err := os.RemoveAll(filepath.Join(dir, snapshot.ID)); err != nil {
		return err
	}
	return syncDir(dir)
}
