package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// fillDisk makes every write to an open file of this process fail, for want of space,
// until the returned function is called.
func fillDisk(t *testing.T, path string) (clean func()) {
	t.Helper()
	const open = "/proc/self/fd"
	entries, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(open, entry.Name()))
		if err != nil || target != path {
			continue
		}
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		full, err := syscall.Open("/dev/full", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := syscall.Dup(number)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Dup3(full, number, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := syscall.Dup3(kept, number, syscall.O_CLOEXEC); err != nil {
				t.Error(err)
			}
			_ = syscall.Close(kept)
			_ = syscall.Close(full)
		}
	}
	t.Fatalf("%s is not open", path)
	return nil
}

// A replica whose disk is full is in touch and cannot write: a voter that it has to
// stand in for must not be taken.
func TestReplicaWithAFullDiskIsNotHealthy(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	clean := fillDisk(t, filepath.Join(e.dirs["b"], "raft.db"))
	propose(t, e.replicas["a"], register(0))
	id := e.replicas["b"].ReplicaID()
	eventually(t, "the leader sees it", func() bool {
		status := e.replicas["a"].Status(t.Context())
		b := memberOf(t, status, id)
		return status.FailureTolerance == 0 && !b.Healthy && strings.Contains(b.Problem, "no space left")
	})
	if err := e.replicas["a"].Demote(t.Context(), "c"); !errors.Is(err, cluster.ErrMembership) {
		t.Errorf("a voter was demoted though another one cannot write: %v", err)
	}
	propose(t, e.replicas["a"], register(1))
	clean()
	propose(t, e.replicas["a"], register(2))
	eventually(t, "it is well again", func() bool {
		status := e.replicas["a"].Status(t.Context())
		return status.FailureTolerance == 1 && memberOf(t, status, id).Healthy
	})
	eventually(t, "it has what was written meanwhile", func() bool { return hasNode(e.replicas["b"].View(), 2) })
}
