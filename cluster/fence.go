package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// fenceFile keeps in the data directory that a replica is fenced, and why.
const fenceFile = "fenced"

var (
	// errFenced: this replica takes no part in Raft any more.
	errFenced = errors.New("replica is fenced: it takes no part in Raft")
	// errDropsCommitted: a leader lacks entries that are committed here.
	errDropsCommitted = errors.New("committed entries would be lost")
)

// fence keeps a replica out of Raft for as long as it has its data directory: it
// neither answers nor asks, follows nobody and votes for nobody. Its process goes on,
// to say why and to keep its log and its state for the operator.
type fence struct {
	reason atomic.Pointer[string]
}

// get says why the replica is fenced, "" if it is not.
func (f *fence) get() string {
	if reason := f.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// fenceOff fences this replica. It may be called from inside the library.
func (r *Replica) fenceOff(reason string) {
	if !r.fence.reason.CompareAndSwap(nil, &reason) {
		return
	}
	r.checkpoints.mu.Lock()
	r.checkpoints.distrusted = reason
	r.checkpoints.mu.Unlock()
	r.logger.Error("this replica is fenced: it takes no part in Raft until an operator has decided, and keeps its log", "reason", reason)
	if r.options.DataDir != "" {
		if err := writeDurably(filepath.Join(r.options.DataDir, fenceFile), []byte(reason+"\n")); err != nil {
			r.logger.Error("that this replica is fenced could not be kept", "error", err)
		}
	}
	r.readiness.poke()
}

// loadFence reads what fenceOff kept: a restart changes nothing.
func (r *Replica) loadFence() error {
	if r.options.DataDir == "" {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(r.options.DataDir, fenceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	reason := cmp.Or(strings.TrimSpace(string(content)), "it was fenced before, and the reason is lost")
	r.fence.reason.Store(&reason)
	r.checkpoints.distrusted = reason
	r.logger.Error("this replica is fenced: it takes no part in Raft until an operator has decided, and keeps its log", "reason", reason)
	return nil
}

// removeFence is for an operator who decided that this log is the right one.
func removeFence(dataDir string) error {
	err := os.Remove(filepath.Join(dataDir, fenceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(dataDir))
}
