package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// B-28: disks that lie. TestDamagedSnapshotFallsBackToOlderOneAndLog and its
// neighbours are about snapshots.

// A flipped bit in any entry of the log file is noticed, or did not matter: no
// acknowledged command is lost in silence, and nothing is deleted.
func TestFlippedBitsOfTheLogAreNoticed(t *testing.T) {
	t.Parallel()
	const nodes, attempts = 20, 64
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	for i := range nodes {
		propose(t, replica, register(i))
	}
	stop(t, replica)
	content, err := os.ReadFile(filepath.Join(options.DataDir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	// Of the file's own structure bbolt notices some flips, by a panic.
	var used []int
	entry := []byte("AppendedAt")
	for at := bytes.Index(content, entry); at >= 0 && at < len(content); {
		for i := range 120 {
			used = append(used, at+i)
		}
		next := bytes.Index(content[at+120:], entry)
		if next < 0 {
			break
		}
		at += 120 + next
	}
	var trying sync.WaitGroup
	var mu sync.Mutex
	noticed := 0
	for worker := range 8 {
		trying.Go(func() {
			for attempt := worker; attempt < attempts; attempt += 8 {
				at := used[attempt*len(used)/attempts]
				if flippedBitIsNoticed(t, options.DataDir, content, at, byte(1)<<(attempt%8), nodes) {
					mu.Lock()
					noticed++
					mu.Unlock()
				}
			}
		})
	}
	trying.Wait()
	if noticed < attempts/8 {
		t.Errorf("only %d of %d flipped bits were noticed", noticed, attempts)
	}
}

// flippedBitIsNoticed starts a replica on a copy of a data directory with one bit
// flipped. It fails the test if the replica has lost any of the nodes.
func flippedBitIsNoticed(t *testing.T, dir string, content []byte, at int, bit byte, nodes int) bool {
	copied := filepath.Join(t.TempDir(), "data")
	damaged := bytes.Clone(content)
	damaged[at] ^= bit
	path := filepath.Join(copied, "raft.db")
	if err := errors.Join(os.CopyFS(copied, os.DirFS(dir)), os.WriteFile(path, damaged, 0o600)); err != nil {
		t.Error(err)
		return false
	}
	replica, err := open(t, cluster.Options{DataDir: copied})
	if err == nil {
		defer stop(t, replica)
		eventually(t, "it is ready or stops", func() bool { return replica.Ready() || replica.Err() != nil })
		err = replica.Err()
	}
	if _, gone := os.Stat(path); gone != nil {
		t.Errorf("bit %08b at %d: the log is gone: %v", bit, at, gone)
	}
	switch {
	case errors.Is(err, cluster.ErrStoreFailed), errors.Is(err, cluster.ErrDataDir):
		return true
	case err != nil:
		t.Errorf("bit %08b at %d: %v", bit, at, err)
	default:
		for i := range nodes {
			if !hasNode(replica.View(), i) {
				t.Errorf("bit %08b at %d: node %d was acknowledged and is lost", bit, at, i)
			}
		}
	}
	return false
}

// A replica with a damaged log stops, the others go on, and it comes back with an
// empty directory.
func TestReplicaWithADamagedLogIsReplaced(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	for i := range 10 {
		propose(t, e.replicas["a"], register(i))
	}
	eventually(t, "the follower has it", func() bool { return hasNode(e.replicas["c"].View(), 9) })
	id := e.replicas["c"].ReplicaID()
	e.kill("c")
	path := filepath.Join(e.dirs["c"], "raft.db")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.ReplaceAll(content, []byte("n7"), []byte("n6"))
	if bytes.Equal(damaged, content) {
		t.Fatal("the log does not hold what was written")
	}
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // nothing is deleted or repaired
		c, err := e.open("c")
		if err == nil {
			waitDone(t, c)
			err = c.Err()
			e.kill("c")
		}
		if !errors.Is(err, cluster.ErrStoreFailed) || !strings.Contains(fmt.Sprint(err), "log entry") {
			t.Errorf("a replica with a damaged log: %v", err)
		}
	}
	propose(t, e.replicas["b"], register(10))
	if err := e.replicas["a"].Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	e.dirs["c"] = ""
	e.start("c")
	if err := e.replicas["c"].Join(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	e.waitVoters("a", "b", "c")
	eventually(t, "it has the state", func() bool { return hasNode(e.replicas["c"].View(), 10) })
}

// What was acknowledged is in the files, not only in the process: its death at any
// moment loses none of it.
func TestAcknowledgedWritesAreInTheFiles(t *testing.T) {
	t.Parallel()
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	for i := range 15 {
		propose(t, replica, register(i))
		if i%5 != 4 {
			continue
		}
		if i == 9 {
			if err := replica.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		image := cluster.Options{DataDir: filepath.Join(t.TempDir(), "image")}
		if err := os.CopyFS(image.DataDir, os.DirFS(options.DataDir)); err != nil {
			t.Fatal(err)
		}
		survivor := start(t, image)
		for j := range i + 1 {
			if !hasNode(survivor.View(), j) {
				t.Errorf("after %d writes write %d is lost", i+1, j)
			}
		}
		stop(t, survivor)
	}
}
