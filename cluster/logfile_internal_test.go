package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// writeLogFile makes a log file as a replica leaves it: with deeper trees, free pages
// and entries that run over several pages.
func writeLogFile(tb testing.TB, entries, bytesEach int) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), logFile)
	bolt, err := openBolt(path, boltOptions())
	if err != nil {
		tb.Fatal(err)
	}
	for at := 0; at < entries; at += 100 {
		var logs []*raft.Log
		for i := at; i < min(at+100, entries); i++ {
			logs = append(logs, &raft.Log{Index: uint64(i + 1), Term: 1, Data: make([]byte, bytesEach+i%3*9000*(i%50/49))})
		}
		if err := bolt.StoreLogs(logs); err != nil {
			tb.Fatal(err)
		}
	}
	err = errors.Join(bolt.DeleteRange(1, uint64(entries/10)), bolt.SetUint64(keyCurrentTerm, 7), bolt.Close())
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestGoodLogFilePasses(t *testing.T) {
	for _, entries := range []int{0, 1, 30, 3000, 30000} {
		path := writeLogFile(t, entries, 100)
		if err := checkLogFile(path); err != nil {
			t.Errorf("%d entries: %v", entries, err)
		}
	}
	fresh := filepath.Join(t.TempDir(), logFile)
	if err := os.WriteFile(fresh, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(checkLogFile(fresh), checkLogFile(fresh+".missing")); err != nil {
		t.Errorf("a new file: %v", err)
	}
}

// Whatever happened to a log file, a start gets an error or a log that it can read:
// what bbolt does over a bad page cannot be caught.
func TestDamagedLogFileNeverCrashes(t *testing.T) {
	content, err := os.ReadFile(writeLogFile(t, 3000, 100))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), logFile)
	const pageBytes = 4096
	rapid.Check(t, func(t *rapid.T) {
		damaged := bytes.Clone(content)
		at := rapid.IntRange(0, len(content)/pageBytes-1).Draw(t, "page") * pageBytes
		switch rapid.SampledFrom([]string{"cut", "head", "bytes", "page"}).Draw(t, "damage") {
		case "cut":
			damaged = damaged[:at+rapid.IntRange(0, pageBytes-1).Draw(t, "rest")]
		case "head": // of the page or of its elements
			damaged[at+rapid.IntRange(0, 80).Draw(t, "byte")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		case "bytes":
			copy(damaged[at+rapid.IntRange(0, pageBytes-9).Draw(t, "byte"):], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "noise"))
		case "page":
			from := rapid.IntRange(0, len(content)/pageBytes-1).Draw(t, "from") * pageBytes
			copy(damaged[at:at+pageBytes], content[from:from+pageBytes])
		}
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := readLogFile(path); err != nil && !errors.Is(err, ErrStoreFailed) {
			t.Error(err)
		}
	})
}

// readLogFile opens a log file as a start does, and reads and writes it.
func readLogFile(path string) error {
	if err := checkLogFile(path); err != nil {
		return err
	}
	bolt, err := openBolt(path, boltOptions())
	if err != nil {
		return fmt.Errorf("a file that passed: %w", err)
	}
	last, _ := bolt.LastIndex()
	for index := uint64(1); index <= min(last, 5000); index++ {
		_ = bolt.GetLog(index, &raft.Log{})
	}
	_, _ = bolt.GetUint64(keyCurrentTerm)
	return errors.Join(bolt.StoreLog(&raft.Log{Index: last + 1}), bolt.Close())
}

func BenchmarkCheckLogFile(b *testing.B) {
	path := writeLogFile(b, 100_000, 1000)
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	for b.Loop() {
		if err := checkLogFile(path); err != nil {
			b.Fatal(err)
		}
	}
}
