package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// A replica that could not write its log does not stand for election for
	// candidacyBackoff, twice as long after each further failure, and longer while
	// the disk takes nothing.
	candidacyBackoff    = 2 * time.Second
	maxCandidacyBackoff = time.Minute
	// withdrawn is in the place of Raft's timeouts meanwhile.
	withdrawn = time.Hour
	// trialBytes are written to find out whether the disk takes something again.
	trialBytes = 256 << 10
	trialFile  = "write-test.tmp"
)

// logWrites counts the writes to the log that failed.
type logWrites struct {
	mu       sync.Mutex
	failed   bool // the last one
	failures int
	changed  chan struct{} // closed at the next one that fails, or that ends a failure
}

func (w *logWrites) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && !w.failed {
		return
	}
	w.failed = err != nil
	if w.failed {
		w.failures++
	}
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// failing reports whether the last write failed, and how many did so far. The channel
// is closed when that changes.
func (w *logWrites) failing() (failing bool, failures int, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.failed, w.failures, w.changed
}

// watchCandidacy keeps a replica that cannot write its log from standing for election
// again and again: it would win, lose its leadership at the first write, and raise the
// term each time. As a follower it goes on, and its next successful write ends this.
func (r *Replica) watchCandidacy(ctx context.Context) {
	stands, seen, backoff := true, 0, candidacyBackoff
	for {
		failing, failures, changed := r.logWrites.failing()
		stood := stands
		var retry <-chan time.Time
		switch {
		case !failing:
			stands, seen, backoff = true, failures, candidacyBackoff
		case failures > seen:
			stands, seen = false, failures
			retry = time.After(backoff)
			backoff = min(2*backoff, maxCandidacyBackoff)
		case r.trialWrite() == nil:
			stands = true
		default:
			retry = time.After(candidacyBackoff)
		}
		if stands != stood {
			r.setCandidacy(stands)
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Replica) setCandidacy(stands bool) {
	heartbeat, election := withdrawn, withdrawn
	if stands {
		heartbeat, election = r.options.Timings.Heartbeat, r.options.Timings.Election
		r.logger.Info("the disk takes writes again: this replica stands for election")
	} else {
		r.logger.Error("the log cannot be written: this replica does not stand for election until the disk takes writes", "data_dir", r.options.DataDir)
	}
	err := r.reloadRaft(func(config *raft.ReloadableConfig) {
		config.HeartbeatTimeout, config.ElectionTimeout = heartbeat, election
	})
	if err != nil {
		r.logger.Warn("the timeouts of elections could not be changed", "error", err)
	}
}

// reloadRaft changes some of the library's settings, and keeps the others.
func (r *Replica) reloadRaft(change func(*raft.ReloadableConfig)) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	config := r.raft.ReloadableConfig()
	change(&config)
	return r.raft.ReloadConfig(config)
}

// trialWrite reports whether the disk takes something.
func (r *Replica) trialWrite() error {
	if r.options.DataDir == "" {
		return nil
	}
	path := filepath.Join(r.options.DataDir, trialFile)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, trialBytes))
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close(), os.Remove(path))
}
