package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

func TestRecoveryFromALostQuorum(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	propose(t, e.replicas["a"], register(1))
	clusterID := e.replicas["a"].ClusterID()
	for _, name := range []string{"a", "b", "c"} {
		e.kill(name)
	}
	options := cluster.RecoverOptions{DataDir: e.dirs["b"], Advertise: "b:1", DryRun: true}
	before := contentOf(t, e.dirs["b"])
	found, err := cluster.Recover(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, contentOf(t, e.dirs["b"])) {
		t.Error("a dry run has changed the data directory")
	}
	if len(found.Members) != 3 || found.ClusterID != clusterID || found.Backup != "" {
		t.Errorf("a dry run found %+v", found)
	}
	options.DryRun = false
	done, err := cluster.Recover(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range before {
		copied, err := os.ReadFile(strings.Replace(path, e.dirs["b"], done.Backup, 1))
		if content != "a directory" && (err != nil || string(copied) != content) {
			t.Errorf("%s was not copied as it was: %v", path, err)
		}
	}
	b := e.start("b")
	waitReady(t, b)
	if view := b.View(); !hasNode(view, 1) || view.Generation() != 2 || b.ClusterID() != clusterID {
		t.Errorf("nodes %v, generation %d, cluster %s", nodeIDs(view), view.Generation(), b.ClusterID())
	}
	propose(t, b, register(2))
	if members := b.Members(); len(members) != 1 {
		t.Errorf("members %v", members)
	}

	// A former member is told that it is none any more, and a new one joins.
	a := e.start("a")
	waitDone(t, a)
	if !errors.Is(a.Err(), cluster.ErrRemoved) {
		t.Errorf("a former member stopped with %v", a.Err())
	}
	e.start("d")
	if err := e.replicas["d"].Join(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new member has the state", func() bool { return hasNode(e.replicas["d"].View(), 2) })

	// The copy is what was there before.
	e.kill("d")
	copied, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: done.Backup, Advertise: "b:1", DryRun: true})
	if err != nil || len(copied.Members) != 3 {
		t.Errorf("the copy holds %+v, %v", copied, err)
	}
}

// A removed replica must not come back as a second cluster with the id of the one
// that goes on.
func TestRemovedReplicaIsNotRecovered(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	c := e.replicas["c"]
	if err := e.replicas["a"].Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	waitDone(t, c)
	e.kill("c")
	before := contentOf(t, e.dirs["c"])
	_, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: e.dirs["c"], Advertise: "c:1"})
	if !errors.Is(err, cluster.ErrRemoved) || !strings.Contains(err.Error(), "join anew") {
		t.Errorf("recovery of a removed replica: %v", err)
	}
	if !maps.Equal(before, contentOf(t, e.dirs["c"])) {
		t.Error("the data directory was changed")
	}
}

// A directory without an identity gets none by a look at it.
func TestRecoveryDrawsNoIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	replica := start(t, cluster.Options{DataDir: dir})
	stop(t, replica)
	if err := os.Remove(filepath.Join(dir, "identity.json")); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "raft.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, empty} {
		before := contentOf(t, dir)
		_, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: dir, Advertise: "a:1", DryRun: true})
		if !errors.Is(err, cluster.ErrDataDir) {
			t.Errorf("recovery without an identity: %v", err)
		}
		if !maps.Equal(before, contentOf(t, dir)) {
			t.Error("the data directory was changed")
		}
	}
}

// What follows the first entry that cannot be read is cut off, and said before.
func TestRecoveryCutsWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	for i := range 10 {
		propose(t, e.replicas["a"], register(i))
	}
	eventually(t, "b has it", func() bool { return hasNode(e.replicas["b"].View(), 9) })
	for _, name := range []string{"a", "b", "c"} {
		e.kill(name)
	}
	path := filepath.Join(e.dirs["b"], "raft.db")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(content, []byte("n8"), []byte("n6")), 0o600); err != nil {
		t.Fatal(err)
	}
	options := cluster.RecoverOptions{DataDir: e.dirs["b"], Advertise: "b:1", DryRun: true}
	plan, err := cluster.Recover(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Cut < 2 || plan.Cut > 10 || !strings.Contains(plan.CutReason, fmt.Sprintf("entry %d ", plan.LastIndex+1)) ||
		strings.Count(plan.CutReason, "damaged") != 1 {
		t.Errorf("the plan is %+v", plan)
	}
	options.DryRun = false
	if _, err := cluster.Recover(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	b := e.start("b")
	waitReady(t, b)
	if view := b.View(); !hasNode(view, 7) || hasNode(view, 8) || hasNode(view, 9) {
		t.Errorf("nodes %v", nodeIDs(view))
	}
	propose(t, b, register(8))
}

// A state that is wrong, or that may become another one, is nothing to go on from.
func TestRecoveryRefusesAStateInDoubt(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b")
	for _, name := range []string{"a", "b"} {
		e.kill(name)
	}
	for _, file := range []string{"distrusted", "restoring.json"} {
		path := filepath.Join(e.dirs["a"], file)
		if err := os.WriteFile(path, []byte(`{}`), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: e.dirs["a"], Advertise: "a:1"})
		if !errors.Is(err, cluster.ErrDataDir) || !strings.Contains(err.Error(), file) {
			t.Errorf("with %s: %v", file, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cluster.Recover(t.Context(), cluster.RecoverOptions{DataDir: e.dirs["a"], Advertise: "a:1"}); err != nil {
		t.Errorf("without: %v", err)
	}
}
