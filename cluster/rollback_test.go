package cluster_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// image copies the data directory of a replica that does not run.
func (e *ensemble) image(name string) string {
	e.tb.Helper()
	image := filepath.Join(e.tb.TempDir(), "image")
	if err := os.CopyFS(image, os.DirFS(e.dirs[name])); err != nil {
		e.tb.Fatal(err)
	}
	return image
}

// setBoots makes an image one that was taken during a later start.
func setBoots(tb testing.TB, image string, boots uint64) {
	tb.Helper()
	path := filepath.Join(image, "identity.json")
	content, err := os.ReadFile(path)
	identity := map[string]any{}
	if err == nil {
		err = json.Unmarshal(content, &identity)
	}
	identity["boots"] = boots
	if err == nil {
		content, err = json.Marshal(identity)
	}
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// One of three is down, and one is put back to an older image of its disk: together
// they elect a leader that lacks what was acknowledged. The third one, which has it, does
// not give it up: it is fenced, says what would be lost, and keeps its log, from which
// the state can be recovered.
func TestAcknowledgedEntriesAreNotGivenUp(t *testing.T) {
	t.Parallel()
	for name, laterBoots := range map[string]uint64{"image of an earlier start": 0, "image of the same start": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnsemble(t)
			e.fencing = true
			e.form("a", "b", "c")
			e.transfer("a")
			e.kill("c")
			e.kill("b")
			image := e.image("b")
			if laterBoots > 0 {
				setBoots(t, image, laterBoots)
			}
			// Whoever is elected with it has a later term than a ever had, however often the
			// leader changes on a busy machine.
			bolt := openBolt(t, image)
			if err := errors.Join(bolt.SetUint64([]byte("CurrentTerm"), 1000), bolt.Close()); err != nil {
				t.Fatal(err)
			}
			waitReady(t, e.start("b"))
			for i := range 3 {
				proposeWithRetry(t, e.replicas["a"], register(i))
			}
			last := e.replicas["a"].View().Index()
			e.kill("a")
			e.kill("b")

			e.dirs["b"] = image
			e.start("b")
			e.start("c")
			proposeWithRetry(t, e.replicas["c"], register(9))
			a := e.start("a")
			eventually(t, "a is fenced", func() bool { return strings.Contains(a.Distrusted(), "acknowledged") })
			if got := a.LastLogIndex(); got < last {
				t.Errorf("its log ends at index %d, not %d", got, last)
			}
			eventually(t, "the status of the others says so", func() bool {
				for _, member := range e.replicas["c"].Status(t.Context()).Members {
					if member.ReplicaID == a.ReplicaID() {
						return !member.Healthy && strings.Contains(member.Problem, "acknowledged")
					}
				}
				return false
			})
			proposeWithRetry(t, e.replicas["c"], register(10)) // who has decided otherwise goes on

			e.kill("a")
			a = e.start("a")
			if a.Distrusted() == "" {
				t.Error("after a restart it is in service")
			}
			for _, name := range []string{"a", "b", "c"} {
				e.kill(name)
			}
			if _, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: e.dirs["a"], Advertise: "a:1"}); err != nil {
				t.Fatal(err)
			}
			a = e.start("a")
			waitReady(t, a)
			if view := a.View(); !hasNode(view, 0) || !hasNode(view, 1) || !hasNode(view, 2) || hasNode(view, 9) {
				t.Errorf("recovered nodes %v", nodeIDs(view))
			}
		})
	}
}

// A replica does not start without entries that were committed on it.
func TestALogThatEndsTooEarlyIsNotStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	replica := start(t, cluster.Options{DataDir: dir})
	propose(t, replica, register(1))
	stop(t, replica)
	older, err := os.ReadFile(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	replica = start(t, cluster.Options{DataDir: dir})
	for i := 2; i < 10; i++ {
		propose(t, replica, register(i))
	}
	stop(t, replica)
	if err := os.WriteFile(filepath.Join(dir, "raft.db"), older, 0o600); err != nil {
		t.Fatal(err)
	}
	if replica, err := open(t, cluster.Options{DataDir: dir}); err == nil {
		stop(t, replica)
		t.Fatal("it starts")
	} else if !strings.Contains(err.Error(), "were committed") {
		t.Error(err)
	}
}

// A version that does not know the file leaves none, and a file that cannot be read
// says nothing: neither keeps a replica from starting.
func TestCommittedIndexIsNotNeeded(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"short":   func(path string) error { return os.Truncate(path, 7) },
		"changed": func(path string) error { return os.WriteFile(path, []byte("0123456789abcdef"), 0o600) },
		"longer":  func(path string) error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			replica := start(t, cluster.Options{DataDir: dir})
			propose(t, replica, register(1))
			stop(t, replica)
			if err := damage(filepath.Join(dir, "committed")); err != nil {
				t.Fatal(err)
			}
			replica = start(t, cluster.Options{DataDir: dir})
			propose(t, replica, register(2))
		})
	}
}

// Whatever the library comes to: it does not cut off what is committed. The beginning of
// the log, which a snapshot has, may go.
func TestCommittedEntriesAreNotCutOff(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.fencing = true
	e.start("a", func(o *cluster.Options) { *o = o.WithTrailingLogs(2) })
	e.unite("a")
	a := e.replicas["a"]
	waitReady(t, a)
	for i := range 5 {
		propose(t, a, register(i))
	}
	if err := a.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first, err := a.FirstLogIndex(); err != nil || first == 1 {
		t.Errorf("after a snapshot the log begins at index %d, %v", first, err)
	}
	propose(t, a, register(6))
	committed := a.View().Index()
	if reason := a.Fenced(); reason != "" {
		t.Fatalf("fenced: %s", reason)
	}
	if err := a.CutLog(committed, a.LastLogIndex()); err == nil || a.Fenced() == "" {
		t.Errorf("a committed entry was cut off: %v, fenced %q", err, a.Fenced())
	}
	if !a.HasLogEntry(committed) {
		t.Error("the entry is gone")
	}
}
