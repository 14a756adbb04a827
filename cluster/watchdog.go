package cluster

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// watchdog reports writes to the disk that hang. A leader whose disk hangs keeps
// its leadership, since heartbeats are sent beside the disk's work
// (hashicorp/raft#503). It never gives up on a write: a write that ends later
// would be written twice, so the process has to go.
type watchdog struct {
	limit time.Duration
	fail  func(error)
}

func (w watchdog) guard(what string, write func() error) error {
	timer := time.AfterFunc(w.limit, func() {
		w.fail(fmt.Errorf("%w: %s has taken longer than %s", ErrStoreFailed, what, w.limit))
	})
	defer timer.Stop()
	return write()
}

// watchedLogs is a log store under the watchdog. A write that fails makes the
// leader step down.
type watchedLogs struct {
	raft.LogStore
	watchdog watchdog
	writes   *logWrites
	logger   hclog.Logger
}

func (s *watchedLogs) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

func (s *watchedLogs) StoreLogs(logs []*raft.Log) error {
	err := s.watchdog.guard("a write to the log", func() error { return s.LogStore.StoreLogs(logs) })
	s.writes.note(err)
	if err != nil {
		s.logger.Error("write to the log failed", "entries", len(logs), "error", err)
	}
	return err
}

// GetLog fails the replica when an entry cannot be read, and ends the calling
// goroutine, which is one of raft's: the library would panic. Nothing is deleted.
func (s *watchedLogs) GetLog(index uint64, log *raft.Log) error {
	err := s.LogStore.GetLog(index, log)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if !errors.Is(err, ErrStoreFailed) {
		err = fmt.Errorf("%w: log entry %d cannot be read: %w", ErrStoreFailed, index, err)
	}
	s.watchdog.fail(err)
	runtime.Goexit()
	return err
}

// watchedStable is a stable store under the watchdog. The library panics when
// it cannot store its term; this store fails the replica instead.
type watchedStable struct {
	raft.StableStore
	watchdog watchdog
}

func (s *watchedStable) Set(key, value []byte) error {
	return s.write(func() error { return s.StableStore.Set(key, value) })
}

func (s *watchedStable) SetUint64(key []byte, value uint64) error {
	return s.write(func() error { return s.StableStore.SetUint64(key, value) })
}

// write ends the calling goroutine, which is raft's main one, when the write
// fails: a replica that cannot store a term or a vote must not take part in an
// election, and an error would be a panic.
func (s *watchedStable) write(write func() error) error {
	if err := s.watchdog.guard("a write of term or vote", write); err != nil {
		s.watchdog.fail(fmt.Errorf("%w: %w", ErrStoreFailed, err))
		runtime.Goexit()
	}
	return nil
}
