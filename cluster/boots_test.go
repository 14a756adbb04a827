package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// An older image of a data directory that is put back has forgotten votes and entries:
// it is told from the replica by the number of its start, at the same address too.
func TestAnOlderImageOfADataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string][]string{
		"by those who heard of the later start":           nil,
		"by the state, when those have been started anew": {"a", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnsemble(t)
			e.form("a", "b", "c")
			e.kill("c")
			image := filepath.Join(t.TempDir(), "image")
			if err := os.CopyFS(image, os.DirFS(e.dirs["c"])); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				waitReady(t, e.start("c"))
				id := e.replicas["c"].ReplicaID()
				eventually(t, "its start is in the state of all", func() bool {
					for _, replica := range e.replicas {
						record, ok := replica.View().Replica(id)
						if !ok || record.BootID != e.replicas["c"].BootID() || record.Boots == 0 {
							return false
						}
					}
					return true
				})
				e.kill("c")
			}
			for _, name := range restarted {
				e.kill(name)
				e.start(name)
			}
			e.waitVotersOf([]string{"a", "b"}, "a", "b", "c")
			e.dirs["c"] = image
			back := e.start("c")
			waitDone(t, back)
			if err := back.Err(); !errors.Is(err, cluster.ErrDuplicate) || !strings.Contains(err.Error(), "older image") {
				t.Errorf("the image stopped with %v", err)
			}
			propose(t, e.replicas["a"], register(1))
		})
	}
}

// A replica that is started again and again is known by its newest start.
func TestARestartedReplicaIsNoCopy(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	for range 3 {
		e.kill("c")
		waitReady(t, e.start("c"))
		propose(t, e.replicas["c"], register(1))
	}
	for name, replica := range e.replicas {
		if err := replica.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
