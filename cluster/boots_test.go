package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// waitRecorded waits until all know of a replica's present start.
func (e *ensemble) waitRecorded(name string) {
	e.tb.Helper()
	id := e.replicas[name].ReplicaID()
	eventually(e.tb, "the start of "+name+" is in the state of all", func() bool {
		for _, replica := range e.replicas {
			record, ok := replica.View().Replica(id)
			if !ok || record.BootID != e.replicas[name].BootID() || record.Boots == 0 {
				return false
			}
		}
		return true
	})
}

// earlierImage copies the data directory of a replica and starts it twice since then. It
// does not run afterwards.
func (e *ensemble) earlierImage(name string) string {
	e.tb.Helper()
	e.kill(name)
	image := e.image(name)
	for range 2 {
		waitReady(e.tb, e.start(name))
		e.waitRecorded(name)
		e.kill(name)
	}
	return image
}

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
			image := e.earlierImage("c")
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

// It is refused before it can vote: with one that was away it could elect a leader
// that lacks what it has confirmed.
func TestAnOlderImageOfADataDirectoryDoesNotVote(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	image := e.earlierImage("c")
	e.transfer("a")
	e.kill("a")
	e.dirs["c"] = image
	back := e.start("c")
	waitDone(t, back)
	if err := back.Err(); !errors.Is(err, cluster.ErrDuplicate) {
		t.Errorf("the image stopped with %v", err)
	}
	if leading, _ := e.replicas["b"].Leadership(); leading {
		t.Error("it has voted")
	}
}

// A copy that comes before the replica itself to one that has not heard of the
// replica's present start yet does not take its place.
func TestACopyThatComesFirstIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	e.kill("c")
	image := e.image("c")
	// b hears neither the replica nor, by the log, of its start; the copy reaches b only.
	e.network.set(map[[2]string]bool{{"c", "b"}: true, {"a", "b"}: true, {"copy", "a"}: true, {"copy", "c"}: true})
	original := e.start("c")
	waitReady(t, original)
	e.dirs["copy"] = image
	copied := e.start("copy")
	waitDone(t, copied)
	if err := copied.Err(); !errors.Is(err, cluster.ErrDuplicate) {
		t.Errorf("the copy stopped with %v", err)
	}
	e.network.set(nil)
	e.waitVotersOf([]string{"a", "b", "c"}, "a", "b", "c")
	propose(t, original, register(1))
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
