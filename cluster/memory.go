package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/hashicorp/raft"
)

// stagedFile holds a snapshot on its way into the state: a file in the data
// directory, or memory for a replica that has none.
type stagedFile interface {
	io.ReadWriteSeeker
}

func (r *Replica) newStagedFile() (stagedFile, error) {
	if r.options.DataDir == "" {
		return &memoryFile{}, nil
	}
	return os.CreateTemp(r.options.DataDir, temporaryFiles)
}

func discard(staged stagedFile) {
	if file, ok := staged.(*os.File); ok {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}
}

// memoryFile is a file that is written at its end only.
type memoryFile struct {
	content []byte
	read    int64 // where the next Read begins
}

func (m *memoryFile) Write(p []byte) (int, error) {
	m.content = append(m.content, p...)
	return len(p), nil
}

func (m *memoryFile) Read(p []byte) (int, error) {
	if m.read >= int64(len(m.content)) {
		return 0, io.EOF
	}
	n := copy(p, m.content[m.read:])
	m.read += int64(n)
	return n, nil
}

func (m *memoryFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += m.read
	case io.SeekEnd:
		offset += int64(len(m.content))
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	m.read = offset
	return offset, nil
}

// memorySnapshots is the snapshot store of a replica in memory. Nobody reads the
// snapshots that shorten its log, so they are dropped. The library reads a restored
// one, though, and ends the process if it cannot: while a restore is under way what
// is written is kept.
type memorySnapshots struct {
	mu        sync.Mutex
	restoring bool
	kept      map[string]*memorySnapshot // by id, while restoring
}

// memorySnapshot is a snapshot in memory. Its content is complete when the library
// opens it.
type memorySnapshot struct {
	meta    raft.SnapshotMeta
	keep    bool
	content bytes.Buffer
}

// keepRestored has the snapshots that are written from now on kept, or no longer.
func (s *memorySnapshots) keepRestored(keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restoring, s.kept = keep, map[string]*memorySnapshot{}
}

// Create implements raft.SnapshotStore.
func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := &memorySnapshot{keep: s.restoring, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}
	if s.restoring {
		s.kept[snapshot.meta.ID] = snapshot
	}
	return snapshot, nil
}

// List implements raft.SnapshotStore. There are none to start from.
func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) { return nil, nil }

// Open implements raft.SnapshotStore.
func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, ok := s.kept[id]
	if !ok {
		return nil, nil, fmt.Errorf("snapshot %s is not kept in memory", id)
	}
	meta := snapshot.meta
	meta.Size = int64(snapshot.content.Len())
	return &meta, io.NopCloser(bytes.NewReader(snapshot.content.Bytes())), nil
}

// ID implements raft.SnapshotSink.
func (s *memorySnapshot) ID() string { return s.meta.ID }

// Write implements raft.SnapshotSink.
func (s *memorySnapshot) Write(p []byte) (int, error) {
	if s.keep {
		return s.content.Write(p)
	}
	return len(p), nil
}

// Close implements raft.SnapshotSink.
func (s *memorySnapshot) Close() error { return nil }

// Cancel implements raft.SnapshotSink.
func (s *memorySnapshot) Cancel() error { return nil }
