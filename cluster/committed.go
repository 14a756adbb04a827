package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// committedFile holds the index up to which the log is known to be committed.
	committedFile = "committed"
	// committedBytes are the index and a checksum: one write, within one sector.
	committedBytes = 16
	// committedSync is how often the file is synced: a power failure costs that much
	// knowledge, and nothing else.
	committedSync = time.Second
)

// logPosition is a place in a log.
type logPosition struct{ index, term uint64 }

// committed remembers up to where this replica's log is known to be committed. Raft
// keeps that in memory only, so after a start it would let a leader that lacks such
// entries overwrite them. All entries up to there were applied here, so they never
// change again.
type committed struct {
	logger hclog.Logger
	file   *os.File // nil: in memory only
	known  atomic.Pointer[logPosition]

	changed chan struct{} // holds a token when known is newer than the file
	closing chan struct{}
	ended   chan struct{}
}

func newCommitted() *committed {
	c := &committed{changed: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
	c.known.Store(&logPosition{})
	return c
}

// openCommitted reads the file of a data directory, and keeps it until close. A
// directory of an older version has none, which says nothing.
func openCommitted(dir string, logger hclog.Logger) (*committed, error) {
	c := newCommitted()
	c.logger = logger
	path := filepath.Join(dir, committedFile)
	index, err := readCommitted(path)
	if errors.Is(err, errCommittedDamaged) {
		logger.Warn("the index of the last committed entry cannot be read, it is noted anew", "file", path)
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	c.known.Store(&logPosition{index: index})
	if c.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	go c.keep()
	return c, nil
}

var errCommittedDamaged = errors.New("damaged")

// readCommitted returns 0 if there is no file.
func readCommitted(path string) (uint64, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	content, err := io.ReadAll(io.LimitReader(file, committedBytes+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	if len(content) == 0 { // made, and not written yet
		return 0, nil
	}
	if len(content) != committedBytes || binary.BigEndian.Uint64(content[8:]) != xxhash.Sum64(content[:8]) {
		return 0, errCommittedDamaged
	}
	return binary.BigEndian.Uint64(content), nil
}

func encodeCommitted(index uint64) []byte {
	content := binary.BigEndian.AppendUint64(nil, index)
	return binary.BigEndian.AppendUint64(content, xxhash.Sum64(content))
}

// position returns the last entry that is known to be committed. The term is 0 if it
// has to be looked up in the log.
func (c *committed) position() logPosition { return *c.known.Load() }

// raise notes that an entry was applied. It is called by the goroutine that applies,
// and never blocks.
func (c *committed) raise(index, term uint64) {
	if index <= c.position().index {
		return
	}
	c.known.Store(&logPosition{index: index, term: term})
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// lower forgets what is behind an index, durably: entries that are given up on purpose.
// It is called before anything is applied.
func (c *committed) lower(index uint64) error {
	if c.position().index <= index {
		return nil
	}
	c.known.Store(&logPosition{index: index})
	if c.file == nil {
		return nil
	}
	_, err := c.file.WriteAt(encodeCommitted(index), 0)
	return errors.Join(err, c.file.Sync())
}

// lowerCommitted is lower for a replica that does not run.
func lowerCommitted(dir string, index uint64) error {
	path := filepath.Join(dir, committedFile)
	known, err := readCommitted(path)
	if known <= index && !errors.Is(err, errCommittedDamaged) {
		return err
	}
	return writeDurably(path, encodeCommitted(index))
}

// keep writes to the file beside Apply: at once, for the case that the process dies,
// and synced from time to time, for the case that the machine does.
func (c *committed) keep() {
	defer close(c.ended)
	var unsynced <-chan time.Time
	failed := false
	for {
		var err error
		select {
		case <-c.changed:
			_, err = c.file.WriteAt(encodeCommitted(c.position().index), 0)
			if unsynced == nil {
				unsynced = time.After(committedSync)
			}
		case <-unsynced:
			unsynced = nil
			err = c.file.Sync()
		case <-c.closing:
			return
		}
		if err != nil && !failed {
			c.logger.Warn("the index of the last committed entry cannot be noted", "file", c.file.Name(), "error", err)
		}
		failed = err != nil
	}
}

// close writes the file for the last time.
func (c *committed) close() error {
	close(c.closing)
	<-c.ended
	_, err := c.file.WriteAt(encodeCommitted(c.position().index), 0)
	return errors.Join(err, c.file.Sync(), c.file.Close())
}

// lastIndex is the index of the last entry, or of the newest snapshot if there is none
// behind it.
func (s *storage) lastIndex() (uint64, error) {
	last, err := s.logs.LastIndex()
	if err != nil {
		return 0, err
	}
	snapshot, err := s.snapshotIndex()
	return max(last, snapshot), err
}

// snapshotIndex is the index of the newest snapshot, 0 if there is none.
func (s *storage) snapshotIndex() (uint64, error) {
	snapshots, err := s.snapshots.List()
	if err != nil || len(snapshots) == 0 {
		return 0, err
	}
	return snapshots[0].Index, nil
}

// checkCommitted refuses a data directory whose log ends before what is known to be
// committed: a part of it is older than the rest. It returns where the log ends.
func (s *storage) checkCommitted(dataDir string) (last uint64, err error) {
	last, err = s.lastIndex()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	if known := s.committed.position().index; known > last {
		return 0, fmt.Errorf("%w: the log in %s ends at index %d, and entries up to index %d were committed: it has lost them, or is older than the rest of the directory; "+
			"set the data directory aside and let the replica join anew", ErrStoreFailed, dataDir, last, known)
	}
	return last, nil
}

// guardedLogs is a log store that keeps committed entries. The gate refuses what would
// drop them before the library sees it; this is for what the gate has missed.
type guardedLogs struct {
	raft.LogStore
	storage *storage
	fence   func(reason string)
}

// DeleteRange refuses to cut off committed entries at the end of the log. The
// beginning, which a snapshot has, may go.
func (s *guardedLogs) DeleteRange(first, last uint64) error {
	known := s.storage.committed.position()
	if first > known.index {
		return s.LogStore.DeleteRange(first, last)
	}
	end, err := s.LastIndex()
	if err != nil {
		return err
	}
	snapshot, err := s.storage.snapshotIndex()
	if err != nil {
		return err
	}
	if last < end || last <= snapshot {
		return s.LogStore.DeleteRange(first, last)
	}
	s.fence(fmt.Sprintf("its log was to be cut off from index %d on, and is committed up to index %d", first, known.index))
	return fmt.Errorf("%w: entries from index %d on are committed up to index %d", errDropsCommitted, first, known.index)
}
