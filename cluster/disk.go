package cluster

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// disk is how the disk below the log is doing. A replica whose disk is full answers
// heartbeats like a good one.
type disk struct {
	mu        sync.Mutex
	problem   error     // of the last write to the log; nil: it succeeded
	progress  time.Time // the log or the snapshot grew, or was opened
	installed time.Time // the last snapshot was begun
	moved     time.Time // a part of a snapshot was written, or read into the state
}

func (d *disk) wrote(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problem = err
	if err == nil {
		d.progress = time.Now()
	}
}

func (d *disk) opened() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress = time.Now()
}

func (d *disk) snapshotBegun() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress = time.Now()
	d.installed = d.progress
}

// report says what is wrong with the disk, "" if nothing is, and for how long nothing
// was written; negative: there is no disk.
func (d *disk) report() (problem string, idle time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.problem != nil {
		problem = "its log cannot be written: " + d.problem.Error()
	}
	if d.progress.IsZero() {
		return problem, -1
	}
	return problem, time.Since(d.progress)
}

// sinceSnapshot is how long ago this process began to write a snapshot; very long if
// it did not yet.
func (d *disk) sinceSnapshot() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.installed)
}

// snapshotMoved notes that a snapshot is on its way.
func (d *disk) snapshotMoved() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moved = time.Now()
}

// sinceSnapshotBytes is how long ago a part of a snapshot was written or read; very
// long if none was yet.
func (d *disk) sinceSnapshotBytes() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.moved)
}

// notedLogs is a log store whose writes are noted.
type notedLogs struct {
	raft.LogStore
	disk *disk
}

func (s notedLogs) StoreLogs(logs []*raft.Log) error {
	err := s.LogStore.StoreLogs(logs)
	s.disk.wrote(err)
	return err
}

func (s notedLogs) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// notedSnapshots is a snapshot store that notes when a snapshot was begun.
type notedSnapshots struct {
	raft.SnapshotStore
	disk *disk
}

func (s notedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err == nil {
		s.disk.snapshotBegun()
		sink = notedSink{SnapshotSink: sink, disk: s.disk}
	}
	return sink, err
}

// notedSink is a snapshot that is written part by part.
type notedSink struct {
	raft.SnapshotSink
	disk *disk
}

func (s notedSink) Write(p []byte) (int, error) {
	s.disk.snapshotMoved()
	return s.SnapshotSink.Write(p)
}

// notedReader is a snapshot that is read part by part.
type notedReader struct {
	io.Reader
	moved func()
}

func (r notedReader) Read(p []byte) (int, error) {
	r.moved()
	return r.Reader.Read(p)
}
