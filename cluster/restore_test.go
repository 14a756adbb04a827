package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// blockedReader sends the beginning of a file and then nothing.
type blockedReader struct {
	began chan struct{}
	once  sync.Once
	ctx   context.Context
}

func (b *blockedReader) Read(p []byte) (int, error) {
	first := false
	b.once.Do(func() { first = true; close(b.began) })
	if first {
		return 1, nil
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

// A client that sends a snapshot and stops in the middle holds up no change of the
// members and no hand-over, and its file goes.
func TestRestoreThatIsNeverSentHoldsUpNothing(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a := e.replicas["a"]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := &blockedReader{began: make(chan struct{}), ctx: ctx}
	ended := make(chan error, 1)
	go func() {
		_, err := a.RestoreSnapshot(ctx, stuck, false)
		ended <- err
	}()
	<-stuck.began
	if _, err := a.RestoreSnapshot(t.Context(), strings.NewReader(""), false); !errors.Is(err, cluster.ErrMembership) {
		t.Errorf("another restore meanwhile: %v", err)
	}
	if err := a.Demote(t.Context(), "b"); err != nil {
		t.Errorf("a change meanwhile: %v", err)
	}
	if _, err := a.TransferLeadership(t.Context(), "c"); err != nil {
		t.Errorf("a hand-over meanwhile: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the restore ended with %v", err)
	}
	eventually(t, "its file is gone", func() bool {
		left, err := filepath.Glob(filepath.Join(e.dirs["a"], "*.tmp"))
		return err == nil && len(left) == 0
	})
}

// What a restore has left behind when its process died does not stay.
func TestStartRemovesWhatARestoreLeftBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, "restore-123.tmp")
	if err := os.WriteFile(left, []byte("half a snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, cluster.Options{DataDir: dir})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// withoutSnapshots is a transport over which no snapshot reaches the others.
type withoutSnapshots struct {
	cluster.PeerTransport
}

func (withoutSnapshots) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	return errors.New("cut off")
}

// A leader that is cut off after it has the restored state, and before anybody else
// has it, would hold a log that no later leader's fits behind.
func TestRestoreThatReachedNobodyIsDropped(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.start("a", func(o *cluster.Options) {
		*o = o.WithTransport(func(t cluster.PeerTransport) cluster.PeerTransport { return withoutSnapshots{t} })
	})
	e.start("b")
	e.start("c")
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	a := e.replicas["a"]
	var saved bytes.Buffer
	if _, err := a.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	propose(t, a, register(1))
	generation := a.View().Generation()
	outcome := make(chan error, 1)
	go func() {
		_, err := a.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()), false)
		outcome <- err
	}()
	eventually(t, "a has the restored state", func() bool { return a.View().Generation() != generation })
	e.network.isolate("a", true)
	if err := <-outcome; !errors.Is(err, cluster.ErrUnknownOutcome) {
		t.Errorf("the operator was told %v", err)
	}
	waitDone(t, a)
	if !errors.Is(a.Err(), cluster.ErrRestoreOpen) {
		t.Errorf("a stopped with %v", a.Err())
	}
	e.kill("a")
	propose(t, e.replicas["b"], register(2))
	e.network.isolate("a", false)
	a = e.start("a")
	last := propose(t, e.replicas["b"], register(3))
	if !reaches(a, last.Index, patience) {
		t.Fatal("a does not follow")
	}
	if view := a.View(); view.Generation() != generation || !hasNode(view, 1) || !hasNode(view, 2) || !hasNode(view, 3) {
		t.Errorf("generation %d after %d, nodes %v", view.Generation(), generation, nodeIDs(view))
	}
	e.transfer("a")
	propose(t, a, register(4))
}

// A process that dies right after a restore cannot know any more whether the others
// have it. What they have it gets back.
func TestRestoreThatReachedTheOthersStays(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]bool{"and nothing more": false, "and what a later leader wrote": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnsemble(t)
			e.form("a", "b", "c")
			e.transfer("a")
			a := e.replicas["a"]
			propose(t, a, register(1))
			var saved bytes.Buffer
			if _, err := a.SaveSnapshot(t.Context(), &saved); err != nil {
				t.Fatal(err)
			}
			propose(t, a, register(2))
			mark := a.RestoreMark()
			restored, err := a.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()), false)
			if err != nil {
				t.Fatal(err)
			}
			if written {
				e.transfer("b")
				last := propose(t, e.replicas["b"], register(3))
				reaches(a, last.Index, patience)
			}
			e.kill("a")
			file := filepath.Join(e.dirs["a"], "restoring.json")
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the restore is over and still marked: %v", err)
			}
			if err := os.WriteFile(file, mark, 0o600); err != nil {
				t.Fatal(err)
			}
			a = e.start("a")
			last := propose(t, e.replicas["b"], register(4))
			if !reaches(a, last.Index, patience) {
				t.Fatal("a does not follow")
			}
			view := a.View()
			if view.Generation() != restored.Generation || !hasNode(view, 1) || hasNode(view, 2) || hasNode(view, 3) != written {
				t.Errorf("generation %d, nodes %v", view.Generation(), nodeIDs(view))
			}
		})
	}
}

// Whoever saves a snapshot has minutes for it, and learns at once that there is no
// leader.
func TestSavingWithoutALeaderEndsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		logs.setFailure(errors.New("no space left on device"))
		replica, err := open(t, cluster.Options{}.WithLogs(logs.wrap))
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t, replica)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := replica.SaveSnapshot(ctx, io.Discard); !errors.Is(err, cluster.ErrNoLeader) {
			t.Errorf("saved without a leader: %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// heldClock holds the proposer up where it stamps a command, which is between the check
// that the replica leads and the hand-over to Raft, until a restore is behind its
// barrier. A restore that waits for the proposer never gets there.
type heldClock struct {
	armed    atomic.Bool
	stamping chan struct{} // closed when the proposer is held
	passed   chan struct{} // closed when the restore is behind its barrier
	answered chan struct{} // closed when the command was answered
}

func (c *heldClock) now() time.Time {
	if !c.armed.Load() {
		return time.Now()
	}
	switch stack := string(debug.Stack()); {
	case strings.Contains(stack, "(*proposer).stamp") && c.armed.CompareAndSwap(true, false):
		close(c.stamping)
		c.armed.Store(true) // for the restore
		select {
		case <-c.passed:
		case <-time.After(500 * time.Millisecond):
		}
		c.armed.Store(false)
	case strings.Contains(stack, "RestoreSnapshot"):
		close(c.passed)
		select {
		case <-c.answered:
		case <-time.After(patience):
		}
	}
	return time.Now()
}

// What was answered before a restore is the last word of its generation: a request that
// was answered then is known afterwards.
func TestNothingSlipsInBehindTheBarrierOfARestore(t *testing.T) {
	t.Parallel()
	clock := &heldClock{stamping: make(chan struct{}), passed: make(chan struct{}), answered: make(chan struct{})}
	replica := start(t, cluster.Options{DataDir: t.TempDir(), Now: clock.now})
	var saved bytes.Buffer
	if _, err := replica.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	command := func() *slimcppb.Command {
		return &slimcppb.Command{RequestId: "once", Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "s"}}}
	}
	clock.armed.Store(true)
	outcome := make(chan error, 1)
	go func() {
		defer close(clock.answered)
		result, err := replica.Propose(t.Context(), command())
		outcome <- errors.Join(err, result.Err)
	}()
	<-clock.stamping
	if _, err := replica.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()), false); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Logf("the command was not answered well, which it need not: %v", err)
		return
	}
	if again := proposeWithRetry(t, replica, command()); !again.Repeated {
		t.Error("the request was answered before the restore, and had another effect after it")
	}
}

// Who reads when the replica stops is told at once.
func TestReadEndsWhenTheReplicaStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		logs.setFailure(errors.New("no space left on device"))
		replica, err := open(t, cluster.Options{}.WithLogs(logs.wrap))
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() {
			_, err := replica.Read(context.Background())
			told <- err
		}()
		synctest.Wait()
		began := time.Now()
		stop(t, replica)
		if err := <-told; !errors.Is(err, cluster.ErrShutdown) || time.Since(began) > time.Second {
			t.Errorf("told %v after %s", err, time.Since(began))
		}
	})
}
