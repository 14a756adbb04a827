package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// B-24: a log file keeps the size of the longest log that it ever held.
func TestLogFileIsCompacted(t *testing.T) {
	path := filepath.Join(t.TempDir(), logFile)
	open := func() *raftboltdb.BoltStore {
		t.Helper()
		bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		if err != nil {
			t.Fatal(err)
		}
		return bolt
	}
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	bolt := open()
	var logs []*raft.Log
	for i := range uint64(200) {
		logs = append(logs, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 32<<10)})
	}
	if err := bolt.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if err := bolt.Close(); err != nil {
		t.Fatal(err)
	}
	full := size()
	if err := compactLog(path, 1<<20, hclog.NewNullLogger()); err != nil || size() != full {
		t.Errorf("a full file of %d bytes has %d now, %v", full, size(), err)
	}
	bolt = open()
	if err := bolt.DeleteRange(1, 190); err != nil {
		t.Fatal(err)
	}
	if err := bolt.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compactLog(path, 1<<30, hclog.NewNullLogger()); err != nil || size() < full {
		t.Errorf("a small file was touched: %d bytes, %v", size(), err)
	}
	if err := compactLog(path, 1<<20, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	if size() > full/4 {
		t.Errorf("%d bytes after the compaction of %d", size(), full)
	}
	bolt = open()
	defer func() { _ = bolt.Close() }()
	first, err := bolt.FirstIndex()
	if err != nil || first != 191 {
		t.Errorf("first index %d, %v", first, err)
	}
	var last raft.Log
	if err := bolt.GetLog(200, &last); err != nil || len(last.Data) != 32<<10 {
		t.Errorf("last entry of %d bytes, %v", len(last.Data), err)
	}
}
