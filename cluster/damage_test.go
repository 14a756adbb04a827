package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
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
	// TestDamagedLogFileNeverCrashes is about the file's own structure.
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

// memberOf returns what a status says of a member.
func memberOf(t *testing.T, status cluster.Status, replicaID string) cluster.MemberStatus {
	t.Helper()
	for _, member := range status.Members {
		if member.ReplicaID == replicaID {
			return member
		}
	}
	t.Fatalf("%s is no member: %+v", replicaID, status.Members)
	return cluster.MemberStatus{}
}

// Whatever keeps a replica from writing: in touch and behind is not healthy.
func TestReplicaThatStandsStillIsNotHealthy(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	logs := &faultyLogs{}
	e.start("a")
	e.start("b", func(o *cluster.Options) { *o = o.WithLogs(logs.wrap) })
	e.start("c")
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	id := e.replicas["b"].ReplicaID()
	logs.setFailure(errors.New("refused"))
	propose(t, e.replicas["a"], register(0))
	eventually(t, "the leader sees it", func() bool {
		status := e.replicas["a"].Status(t.Context())
		return status.FailureTolerance == 0 && strings.Contains(memberOf(t, status, id).Problem, "has written none")
	})
	logs.setFailure(nil)
	eventually(t, "it is well again", func() bool { return e.replicas["a"].Status(t.Context()).FailureTolerance == 1 })
}

// A replica that cannot take in a restored state stays in the generation before.
func TestReplicaOfAnotherGenerationIsNotHealthy(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	propose(t, e.replicas["a"], register(0))
	var saved bytes.Buffer
	if _, err := e.replicas["a"].SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	snapshots, aside := filepath.Join(e.dirs["b"], "snapshots"), filepath.Join(e.dirs["b"], "aside")
	if err := errors.Join(os.Rename(snapshots, aside), os.WriteFile(snapshots, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.replicas["a"].RestoreSnapshot(t.Context(), &saved, false); err != nil {
		t.Fatal(err)
	}
	id := e.replicas["b"].ReplicaID()
	eventually(t, "the leader sees it", func() bool {
		return strings.Contains(memberOf(t, e.replicas["a"].Status(t.Context()), id).Problem, "of generation 1, the leader's of generation 2")
	})
	if err := errors.Join(os.Remove(snapshots), os.Rename(aside, snapshots)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is well again", func() bool { return memberOf(t, e.replicas["a"].Status(t.Context()), id).Healthy })
}

// A log file that was cut, or of which a part is something else, is refused in one
// line by a start and by a recovery, and stays as it is.
func TestDamagedLogFileIsRefused(t *testing.T) {
	t.Parallel()
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	for i := range 200 {
		propose(t, replica, register(i))
	}
	stop(t, replica)
	content, err := os.ReadFile(filepath.Join(options.DataDir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	noise := bytes.Clone(content)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(noise[8192:min(len(noise), 28000)])
	cases := map[string][]byte{"noise": noise}
	for _, size := range []int{1, 100, 4096, 8192, 12288, 16384, 20480} {
		cases[fmt.Sprintf("%d bytes", size)] = content[:size]
	}
	for name, damaged := range cases {
		dir := filepath.Join(t.TempDir(), "data")
		path := filepath.Join(dir, "raft.db")
		left := filepath.Join(dir, "restore-1.tmp")
		err := errors.Join(os.CopyFS(dir, os.DirFS(options.DataDir)), os.WriteFile(path, damaged, 0o600), os.WriteFile(left, nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		before := contentOf(t, dir)
		_, opened := open(t, cluster.Options{DataDir: dir})
		_, planned := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: dir, Advertise: "a:1", DryRun: true})
		_, recovered := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: dir, Advertise: "a:1"})
		for _, err := range []error{opened, planned, recovered} {
			text := fmt.Sprint(err)
			if !errors.Is(err, cluster.ErrStoreFailed) || strings.Contains(text, "\n") || strings.Count(text, path) != 1 || !strings.Contains(text, "join anew") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !maps.Equal(before, contentOf(t, dir)) {
			t.Errorf("%s: the data directory was changed", name)
		}
	}
}

// contentOf returns the files below a directory, but for the lock.
func contentOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() == "lock" {
			return err
		}
		if entry.IsDir() {
			files[path] = "a directory"
			return nil
		}
		content, err := os.ReadFile(path)
		files[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
