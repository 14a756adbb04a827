package cluster

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// The counted bytes are those of the entries that are in the log, to a span at each
// end, whatever is appended and cut.
func TestLogSizeFollowsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var counted logSize
		sizes := map[uint64]uint64{}
		first, next := uint64(1), uint64(1)
		cut := func(from, to uint64) {
			counted.remove(from, to)
			for i := from; i <= to; i++ {
				delete(sizes, i)
			}
		}
		add := func(t *rapid.T) {
			bytes := rapid.Uint64Range(60, 64<<10)
			for range rapid.IntRange(1, 200).Draw(t, "entries") {
				sizes[next] = bytes.Draw(t, "bytes")
				counted.add(next, sizes[next])
				next++
			}
		}
		cutHead := func(t *rapid.T) {
			if first < next {
				to := rapid.Uint64Range(first, next-1).Draw(t, "to")
				cut(first, to)
				first = to + 1
			}
		}
		cuts := uint64(0)
		cutTail := func(t *rapid.T) {
			if first < next && cuts < 3 {
				cuts++
				from := rapid.Uint64Range(first, next-1).Draw(t, "from")
				cut(from, next-1)
				next = from
			}
		}
		const slack = 2 * (logSpanBytes + 64<<10)
		check := func(t *rapid.T) {
			sum := uint64(0)
			for _, bytes := range sizes {
				sum += bytes
			}
			total := counted.bytes()
			if allowed := (cuts + 1) * slack; total > sum+allowed || sum > total+allowed {
				t.Fatalf("counted %d bytes of %d", total, sum)
			}
			budget := rapid.Uint64Range(0, 1<<23).Draw(t, "budget")
			fitting, newest := counted.fitting(budget), uint64(0)
			for i := range min(fitting, next-first) {
				newest += sizes[next-1-i]
			}
			if newest > budget+(cuts+1)*slack {
				t.Fatalf("%d entries of %d bytes fit into %d", fitting, newest, budget)
			}
		}
		t.Repeat(map[string]func(*rapid.T){"add": add, "head": cutHead, "tail": cutTail, "": check})
	})
}

// What is counted when a log file is opened is what was counted while it was written.
func TestLogSizeOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), logFile)
	var s storage
	if err := s.openLog(path, boltOptions()); err != nil {
		t.Fatal(err)
	}
	var logs []*raft.Log
	for i := range uint64(300) {
		logs = append(logs, &raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 100*i)})
	}
	if err := s.logs.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if err := s.logs.DeleteRange(1, 100); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	var read logSize
	if err := measureLogFile(path, &read); err != nil {
		t.Fatal(err)
	}
	written := s.size.bytes()
	if difference := max(written, read.bytes()) - min(written, read.bytes()); difference > 2*logSpanBytes {
		t.Errorf("%d bytes were written, %d read", written, read.bytes())
	}
	if fitting := read.fitting(1 << 20); fitting < 30 || fitting > 50 {
		t.Errorf("%d entries of some 28 kB fit into 1 MiB", fitting)
	}
}
