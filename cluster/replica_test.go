package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestRestartKeepsStateAndIdentity(t *testing.T) {
	options := cluster.Options{DataDir: filepath.Join(t.TempDir(), "deep", "data")}
	first := start(t, options)
	for i := range 20 {
		propose(t, first, register(i))
	}
	before := nodeIDs(first.View())
	_, term := first.Leadership()
	stop(t, first)

	second := start(t, options)
	if after := nodeIDs(second.View()); !slices.Equal(before, after) || len(after) != 20 {
		t.Errorf("nodes before the restart %v, after %v", before, after)
	}
	if first.ReplicaID() != second.ReplicaID() || first.ClusterID() != second.ClusterID() {
		t.Errorf("identity changed: %s %s, then %s %s", first.ReplicaID(), first.ClusterID(), second.ReplicaID(), second.ClusterID())
	}
	if first.BootID() == second.BootID() {
		t.Error("two boots have one id")
	}
	if _, now := second.Leadership(); now <= term {
		t.Errorf("term %d after term %d", now, term)
	}
	if second.View().ClusterID() != second.ClusterID() || second.ClusterID() == "" {
		t.Errorf("cluster id %q, in the state %q", second.ClusterID(), second.View().ClusterID())
	}
}

func TestReplicaIDIsNameAndEightDigits(t *testing.T) {
	dir := t.TempDir()
	first := start(t, cluster.Options{Name: "east-1", DataDir: dir})
	if !regexp.MustCompile(`^east-1-[0-9a-f]{8}$`).MatchString(first.ReplicaID()) {
		t.Errorf("replica id %q", first.ReplicaID())
	}
	stop(t, first)
	renamed := start(t, cluster.Options{Name: "west-1", DataDir: dir})
	if renamed.ReplicaID() != first.ReplicaID() {
		t.Errorf("a new name changed the id from %s to %s", first.ReplicaID(), renamed.ReplicaID())
	}
}

func TestNameIsChecked(t *testing.T) {
	for _, name := range []string{"a b", "-a", "ü", strings.Repeat("x", 64), "a/b"} {
		if _, err := open(t, cluster.Options{Name: name}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestTimingsAreChecked(t *testing.T) {
	for _, timings := range []cluster.Timings{
		{Heartbeat: time.Second},
		{Heartbeat: time.Second, Election: 500 * time.Millisecond, LeaderLease: 400 * time.Millisecond},
		{Heartbeat: 500 * time.Millisecond, Election: 500 * time.Millisecond, LeaderLease: time.Second},
	} {
		if _, err := open(t, cluster.Options{Timings: timings}); err == nil || !strings.Contains(err.Error(), timings.Heartbeat.String()) {
			t.Errorf("timings %+v: %v", timings, err)
		}
	}
}

func TestDataDirHasOneUser(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	first := start(t, options)
	_, err := open(t, options)
	if !errors.Is(err, cluster.ErrDataDir) || !strings.Contains(err.Error(), fmt.Sprintf("%s is in use by another slim-cp (process %d)", options.DataDir, os.Getpid())) {
		t.Fatalf("second user: %v", err)
	}
	propose(t, first, register(1))
	stop(t, first)
	start(t, options)
}

func TestLoneReplicaElectsItselfQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		replica := start(t, cluster.Options{})
		if took := time.Since(began); took >= time.Second {
			t.Errorf("ready after %s", took)
		}
		if known, since := replica.LeaderKnown(); !known || since.Before(began) {
			t.Errorf("leader known: %v since %s", known, since)
		}
	})
}

func TestInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica := start(t, cluster.Options{SnapshotThreshold: 100})
		for i := range 3000 {
			propose(t, replica, register(i))
		}
		// A snapshot that is due shortens the log.
		<-time.After(2 * time.Minute)
		first, err := replica.FirstLogIndex()
		if err != nil || first == 1 {
			t.Errorf("log begins at %d after a snapshot (%v)", first, err)
		}
		view, err := replica.Read(t.Context())
		if err != nil || view.NodeCount() != 3000 {
			t.Errorf("%d nodes, error %v", view.NodeCount(), err)
		}
	})
}

// A replica without a data directory needs no directory at all to restore a snapshot,
// and outlives it.
func TestInMemoryRestore(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "not-there"))
	replica := start(t, cluster.Options{})
	propose(t, replica, register(1))
	var saved bytes.Buffer
	if _, err := replica.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	propose(t, replica, register(2))
	before := replica.View().Generation()
	for range 2 {
		if _, err := replica.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()), false); err != nil {
			t.Fatal(err)
		}
		waitReady(t, replica)
	}
	propose(t, replica, register(3))
	view, err := replica.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := nodeIDs(view); !slices.Equal(got, []string{"g/n1", "g/n3"}) || view.Generation() != before+2 {
		t.Errorf("nodes %q of generation %d, before it was %d", got, view.Generation(), before)
	}
	if err := replica.Snapshot(t.Context()); err != nil {
		t.Errorf("a snapshot that shortens the log: %v", err)
	}
}

// The state holds secrets: only the replica's own user may read it. A directory that
// an operator made is left as it is, and named.
func TestDataDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	snapshots := filepath.Join(dir, "snapshots")
	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Warn})
	once := func() {
		log.Reset()
		replica, err := cluster.Open(t.Context(), cluster.Options{Name: "cp", DataDir: dir}, fsm.New(), logger)
		if err != nil {
			t.Fatal(err)
		}
		waitReady(t, replica)
		if err := replica.Snapshot(t.Context()); err != nil {
			t.Error(err)
		}
		stop(t, replica)
	}
	for _, made := range []os.FileMode{0, 0o755} {
		if made != 0 {
			for _, path := range []string{dir, snapshots} {
				if err := os.Chmod(path, made); err != nil {
					t.Fatal(err)
				}
			}
		}
		once()
		if named := strings.Contains(log.String(), dir); named != (made != 0) {
			t.Errorf("of a directory of mode %#o the log says:\n%s", made, &log)
		}
		if info, err := os.Stat(snapshots); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("snapshots: %v, %v", info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the operator's directory: %v, %v", info.Mode(), err)
	}
}

func TestSnapshotAndRestart(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}.WithTrailingLogs(5)
	replica := start(t, options)
	for i := range 40 {
		propose(t, replica, register(i))
	}
	for range 2 { // The second one has nothing new to write.
		if err := replica.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if first, err := replica.FirstLogIndex(); err != nil || first < 20 {
		t.Fatalf("log begins at %d after the snapshot (%v)", first, err)
	}
	for i := range 10 {
		propose(t, replica, register(100+i))
	}
	before := nodeIDs(replica.View())
	stop(t, replica)

	replica = start(t, options)
	if after := nodeIDs(replica.View()); !slices.Equal(before, after) || len(after) != 50 {
		t.Errorf("nodes before the restart %v, after %v", before, after)
	}
}

func TestSnapshotRightAfterStart(t *testing.T) {
	replica := start(t, cluster.Options{DataDir: t.TempDir()})
	if err := replica.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// snapshotDirs returns the snapshots of a data directory, oldest first.
func snapshotDirs(t *testing.T, dir string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(dir, "snapshots", "*-*-*"))
	if err != nil {
		t.Fatal(err)
	}
	written := func(path string) time.Time {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	slices.SortFunc(dirs, func(a, b string) int { return written(a).Compare(written(b)) })
	return dirs
}

// damage flips a bit in the middle of a snapshot.
func damage(t *testing.T, snapshot string) {
	t.Helper()
	path := filepath.Join(snapshot, "state.bin")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// twoSnapshots leaves a data directory with two snapshots, 30 nodes in all.
func twoSnapshots(t *testing.T, options cluster.Options) []string {
	t.Helper()
	replica := start(t, options)
	for i := range 30 {
		propose(t, replica, register(i))
		if i == 9 || i == 19 {
			if err := replica.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop(t, replica)
	return snapshotDirs(t, options.DataDir)
}

func TestDamagedSnapshotFallsBackToOlderOneAndLog(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	snapshots := twoSnapshots(t, options)
	damage(t, snapshots[len(snapshots)-1])
	replica := start(t, options)
	if count := replica.View().NodeCount(); count != 30 {
		t.Errorf("%d nodes", count)
	}
}

func TestDamagedSnapshotWithoutLogStopsTheStart(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}.WithTrailingLogs(1)
	snapshots := twoSnapshots(t, options)
	damage(t, snapshots[len(snapshots)-1])
	if _, err := open(t, options); !errors.Is(err, cluster.ErrStoreFailed) {
		t.Fatalf("start over a hole in the log: %v", err)
	}
	if left := snapshotDirs(t, options.DataDir); len(left) != len(snapshots) {
		t.Errorf("the failed start left %v of %v", left, snapshots)
	}
}

func TestEmptiedDiskIsRefused(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	stop(t, replica)
	if err := os.Remove(filepath.Join(options.DataDir, "raft.db")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, options); !errors.Is(err, cluster.ErrDataDir) || !strings.Contains(err.Error(), replica.ClusterID()) {
		t.Fatalf("start with an emptied disk: %v", err)
	}
}

func TestLogWithoutIdentityIsRefused(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	stop(t, start(t, options))
	if err := os.Remove(filepath.Join(options.DataDir, "identity.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, options); !errors.Is(err, cluster.ErrDataDir) {
		t.Fatalf("start without identity: %v", err)
	}
}

func TestForeignLogIsRefused(t *testing.T) {
	mine := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, mine)
	stop(t, replica)
	identity := filepath.Join(mine.DataDir, "identity.json")
	content, err := json.Marshal(map[string]string{"replica_id": replica.ReplicaID(), "cluster_id": "another"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(identity, content, 0o600); err != nil {
		t.Fatal(err)
	}
	// Without a snapshot the state is only known when the log was applied.
	replica, err = open(t, mine)
	if err != nil {
		t.Fatal(err)
	}
	waitDone(t, replica)
	if err := replica.Err(); !errors.Is(err, cluster.ErrWrongCluster) {
		t.Errorf("foreign log: %v", err)
	}
	stop(t, replica)
}

func openBolt(t *testing.T, dir string) *raftboltdb.BoltStore {
	t.Helper()
	store, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestInterruptedBootstrapIsFinished(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	first := start(t, options)
	stop(t, first)
	// What a process leaves that dies between the two writes of a bootstrap.
	content, err := json.Marshal(map[string]string{"replica_id": first.ReplicaID()})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.Remove(filepath.Join(options.DataDir, "raft.db")), os.Remove(filepath.Join(options.DataDir, "committed")),
		os.WriteFile(filepath.Join(options.DataDir, "identity.json"), content, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	bolt := openBolt(t, options.DataDir)
	if err := errors.Join(bolt.SetUint64([]byte("CurrentTerm"), 1), bolt.Close()); err != nil {
		t.Fatal(err)
	}
	propose(t, start(t, options), register(1))
}

func TestNewerCommandStopsTheReplica(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	propose(t, replica, register(0))
	_, term := replica.Leadership()
	last := replica.LastLogIndex()
	stop(t, replica)

	newer := register(1)
	newer.Schema, newer.Generation = 99, 1
	data, err := proto.Marshal(&slimcppb.Entry{Commands: []*slimcppb.Command{newer}})
	if err != nil {
		t.Fatal(err)
	}
	bolt := openBolt(t, options.DataDir)
	if err := errors.Join(bolt.StoreLog(&raft.Log{Index: last + 1, Term: term, Data: data}), bolt.Close()); err != nil {
		t.Fatal(err)
	}
	replica, err = open(t, options)
	if err != nil {
		t.Fatal(err)
	}
	waitDone(t, replica)
	if err := replica.Err(); !errors.Is(err, cluster.ErrUnknownSchema) {
		t.Errorf("error of the replica: %v", err)
	}
	if _, err := replica.Propose(t.Context(), register(2)); !errors.Is(err, cluster.ErrUnknownSchema) {
		t.Errorf("proposal after the failure: %v", err)
	}
	if err := replica.WaitReady(t.Context()); !errors.Is(err, cluster.ErrUnknownSchema) {
		t.Errorf("wait after the failure: %v", err)
	}
	if hasNode(replica.View(), 1) || !hasNode(replica.View(), 0) {
		t.Error("the state is not the one before the newer command")
	}
	stop(t, replica)
}

func TestFailedLogWriteStepsDownAndRecovers(t *testing.T) {
	logs := &faultyLogs{}
	replica := start(t, cluster.Options{DataDir: t.TempDir()}.WithLogs(logs.wrap))
	_, term := replica.Leadership()
	logs.setFailure(errors.New("no space left on device"))
	if _, err := replica.Propose(t.Context(), register(1)); !errors.Is(err, cluster.ErrUnknownOutcome) {
		t.Fatalf("proposal with a full disk: %v", err)
	}
	eventually(t, "step down", func() bool { leading, _ := replica.Leadership(); return !leading })
	if _, err := replica.Propose(t.Context(), register(2)); err == nil || errors.Is(err, cluster.ErrUnknownOutcome) {
		t.Errorf("proposal without a leader: %v", err)
	}
	logs.setFailure(nil)
	waitReady(t, replica)
	if _, now := replica.Leadership(); now <= term {
		t.Errorf("term %d after term %d", now, term)
	}
	propose(t, replica, register(3))
	if hasNode(replica.View(), 2) {
		t.Error("a command that was refused took effect")
	}
}

// failingStable fails writes once it is told to.
type failingStable struct {
	raft.StableStore
	failing atomic.Bool
}

func (f *failingStable) wrap(stable raft.StableStore) raft.StableStore {
	f.StableStore = stable
	return f
}

func (f *failingStable) SetUint64(key []byte, value uint64) error {
	if f.failing.Load() {
		return errors.New("input/output error")
	}
	return f.StableStore.SetUint64(key, value)
}

func TestFailedTermWriteFailsTheReplicaWithoutPanic(t *testing.T) {
	logs, stable := &faultyLogs{}, &failingStable{}
	replica := start(t, cluster.Options{DataDir: t.TempDir()}.WithLogs(logs.wrap).WithStable(stable.wrap))
	stable.failing.Store(true)
	logs.setFailure(errors.New("input/output error")) // The next election writes a term.
	_, _ = replica.Propose(t.Context(), register(1))
	waitDone(t, replica)
	if err := replica.Err(); !errors.Is(err, cluster.ErrStoreFailed) {
		t.Errorf("error of the replica: %v", err)
	}
	stop(t, replica)
}

func TestHangingDiskFailsTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		unblock := logs.block()
		defer unblock()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := replica.Propose(ctx, register(1)); !errors.Is(err, cluster.ErrUnknownOutcome) || !errors.Is(err, cluster.ErrStoreFailed) {
			t.Errorf("proposal to a hanging disk: %v", err)
		}
		waitDone(t, replica)
		if took := time.Since(began); took != cluster.StoreLimit {
			t.Errorf("noticed after %s", took)
		}
		if err := replica.Err(); !errors.Is(err, cluster.ErrStoreFailed) {
			t.Errorf("error of the replica: %v", err)
		}
		// The disk still hangs: shutting down is given up in time.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := replica.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shutdown with a hanging disk: %v", err)
		}
		unblock()
	})
}

func TestShutdownAnswersWhatIsWithRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		unblock := logs.block()
		var callers sync.WaitGroup
		for i := range cluster.MaxEntriesInFlight {
			callers.Go(func() { propose(t, replica, register(i)) })
			synctest.Wait()
		}
		callers.Go(func() {
			if _, err := replica.Propose(t.Context(), register(100)); !errors.Is(err, cluster.ErrShutdown) || errors.Is(err, cluster.ErrUnknownOutcome) {
				t.Errorf("proposal in the queue at shutdown: %v", err)
			}
		})
		synctest.Wait()
		callers.Go(func() { stop(t, replica) })
		<-time.After(time.Second)
		unblock()
		callers.Wait()
	})
}

func TestShutdownUnderLoad(t *testing.T) {
	options := cluster.Options{DataDir: t.TempDir()}
	replica := start(t, options)
	var mu sync.Mutex
	var accepted []int
	var workers sync.WaitGroup
	for worker := range 32 {
		workers.Go(func() {
			for i := worker; ; i += 32 {
				result, err := replica.Propose(context.Background(), register(i))
				switch {
				case err == nil && result.Err == nil:
					mu.Lock()
					accepted = append(accepted, i)
					mu.Unlock()
				case errors.Is(err, cluster.ErrShutdown), errors.Is(err, cluster.ErrUnknownOutcome), errors.Is(err, cluster.ErrNoLeader):
					return
				default:
					t.Errorf("proposal during shutdown: %v, %v", err, result.Err)
					return
				}
			}
		})
	}
	eventually(t, "some proposals", func() bool { mu.Lock(); defer mu.Unlock(); return len(accepted) > 500 })
	stop(t, replica)
	workers.Wait()
	if _, err := replica.Propose(t.Context(), register(0)); !errors.Is(err, cluster.ErrShutdown) {
		t.Errorf("proposal after shutdown: %v", err)
	}
	if _, err := replica.Read(t.Context()); err == nil {
		t.Error("read after shutdown succeeded")
	}
	stop(t, replica) // Once more does no harm.
	if err := replica.Err(); err != nil {
		t.Errorf("error after a clean shutdown: %v", err)
	}

	replica = start(t, options)
	for _, i := range accepted {
		if !hasNode(replica.View(), i) {
			t.Fatalf("node %d was acknowledged and is lost", i)
		}
	}
}
