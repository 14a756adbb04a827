package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A replica whose disk was put back under a living cluster is not sent again what it has
// lost, and does not count: it may have lost votes, too. The leader knows it by what it
// has confirmed in the same term, a later leader by what the state has of that.
func TestAReplicaThatHasLostEntriesIsFenced(t *testing.T) {
	t.Parallel()
	t.Run("in the leader's term", func(t *testing.T) {
		t.Parallel()
		e, image := formWithImage(t, "b")
		for attempt := 0; ; attempt++ { // a busy machine may lose the leader, and what it knows with it
			lost := e.loseEntries("b", image, attempt, false)
			b := e.start("b")
			over := false
			eventually(t, "b is fenced, or the term is over", func() bool {
				leading, term := e.replicas["a"].Leadership()
				over = !leading || term != lost.term
				return b.Fenced() != "" || over
			})
			if b.Fenced() != "" {
				e.checkFenced("b", lost)
				return
			}
			if attempt == 10 {
				t.Fatal("no leader stays")
			}
		}
	})
	t.Run("under a later leader", func(t *testing.T) {
		t.Parallel()
		e, image := formWithImage(t, "b")
		lost := e.loseEntries("b", image, 0, true)
		e.transfer("c")
		b := e.start("b")
		eventually(t, "b is fenced", func() bool { return b.Fenced() != "" })
		e.checkFenced("b", lost)
	})
}

// checkFenced checks what becomes of a replica that is fenced since it has lost entries.
func (e *ensemble) checkFenced(name string, lost lostEntries) {
	e.tb.Helper()
	fenced := e.replicas[name]
	if reason := fenced.Fenced(); !strings.Contains(reason, "has confirmed entries") {
		e.tb.Errorf("it is fenced: %s", reason)
	}
	if got := fenced.LastLogIndex(); got >= lost.last {
		e.tb.Errorf("its log reaches to index %d again", got)
	}
	proposeWithRetry(e.tb, e.replicas["a"], register(99))
	eventually(e.tb, "an alarm and the status say so", func() bool {
		alarmed := false
		for _, replica := range e.replicas {
			alarmed = alarmed || strings.Contains(replica.Alarm(), lost.id+" has confirmed entries")
		}
		for _, member := range e.replicas["a"].Status(e.tb.Context()).Members {
			if member.ReplicaID == lost.id {
				return alarmed && strings.Contains(member.Problem, "has confirmed entries")
			}
		}
		return false
	})
	e.kill(name)
	if e.start(name).Fenced() == "" {
		e.tb.Error("after a restart it takes part again")
	}
}

// It does not vote either: together with it, one that was away could be elected.
func TestAReplicaThatHasLostEntriesDoesNotVote(t *testing.T) {
	t.Parallel()
	e, image := formWithImage(t, "b")
	e.loseEntries("b", image, 0, true)
	e.kill("a")
	c := e.replicas["c"]
	eventually(t, "c hears no leader", func() bool { known, _ := c.LeaderKnown(); return !known })
	term := c.Raft().CurrentTerm()
	b := e.start("b")
	eventually(t, "b is fenced", func() bool { return b.Fenced() != "" })
	if leads(c) || c.Raft().CurrentTerm() != term {
		t.Errorf("term %d, before it was %d", c.Raft().CurrentTerm(), term)
	}
	e.start("a")
	proposeWithRetry(t, c, register(99))
	if !hasNode(c.View(), 2) {
		t.Errorf("nodes %v", nodeIDs(c.View()))
	}
}

// formWithImage forms a cluster of three, and returns an image of the disk of one of
// them, which has gone on since.
func formWithImage(t *testing.T, name string) (*ensemble, string) {
	e := newEnsemble(t)
	e.fencing = true
	e.form("a", "b", "c")
	e.transfer("a")
	e.kill(name)
	image := e.image(name)
	waitReady(t, e.start(name))
	return e, image
}

// lostEntries are those of a replica that was put back: the last one that it had
// confirmed, and to the leader of which term.
type lostEntries struct {
	id         string
	last, term uint64
}

// loseEntries has a replica confirm entries, ends it, and puts it back to an older image
// of its disk, of the same start as far as others can tell. With inState all of them
// know by the state what it has confirmed.
func (e *ensemble) loseEntries(name, image string, attempt int, inState bool) lostEntries {
	e.tb.Helper()
	e.transfer("a")
	replica := e.replicas[name]
	lost := lostEntries{id: replica.ReplicaID()}
	_, lost.term = e.replicas["a"].Leadership()
	for i := range 3 {
		lost.last = proposeWithRetry(e.tb, e.replicas["a"], register(10*attempt+i)).Index
	}
	e.waitApplied(lost.last)
	// It gets the next one when the leader has its answer to the others.
	e.waitApplied(proposeWithRetry(e.tb, e.replicas["a"], register(10*attempt+3)).Index)
	eventually(e.tb, "the state has what it has confirmed", func() bool {
		if leading, _ := replica.Leadership(); leading { // it would confirm nothing
			e.transfer("a")
		}
		for _, replica := range e.replicas {
			if record, ok := replica.View().Replica(lost.id); inState && (!ok || record.Confirmed < lost.last) {
				return false
			}
		}
		return true
	})
	e.kill(name)
	e.dirs[name] = filepath.Join(e.tb.TempDir(), "image")
	if err := os.CopyFS(e.dirs[name], os.DirFS(image)); err != nil {
		e.tb.Fatal(err)
	}
	setBoots(e.tb, e.dirs[name], uint64(100*(attempt+1)))
	return lost
}

// waitApplied waits until all replicas have applied an entry.
func (e *ensemble) waitApplied(index uint64) {
	e.tb.Helper()
	eventually(e.tb, "all have applied what was written", func() bool {
		for _, replica := range e.replicas {
			if replica.View().Index() < index {
				return false
			}
		}
		return true
	})
}
