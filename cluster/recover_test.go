package cluster_test

import (
	"errors"
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
	found, err := cluster.Recover(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Members) != 3 || found.ClusterID != clusterID || found.Backup != "" {
		t.Errorf("a dry run found %+v", found)
	}
	options.DryRun = false
	done, err := cluster.Recover(t.Context(), options)
	if err != nil {
		t.Fatal(err)
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
