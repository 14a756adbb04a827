package reconciler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/world"
)

// listed reports whether both lists of a node were asked for since Record.
func listed(w *world.World, nodeID string) error {
	var connections, routes bool
	for _, push := range w.Taps.Pushes(nodeID) {
		if push.Command == nil {
			connections, routes = connections || push.Connections, routes || !push.Connections
		}
	}
	if !connections || !routes {
		return fmt.Errorf("lists of %s: connections %v, routes %v", nodeID, connections, routes)
	}
	return nil
}

func TestANewLeaderReadsAllLists(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("a", "n1").Announce(world.Name("x"))
		w.Join("a", "n2")
		w.Join("b", "n").Announce(world.Name("y"))
		w.Settle()
		w.Resign()
		w.Taps.Record()
		w.Lead()
		w.Eventually("the lists are read", time.Minute, func() error {
			return errors.Join(listed(w, "a/n1"), listed(w, "a/n2"), listed(w, "b/n"))
		})
		w.Settle()
	})
}

// A node drops some of what it has to say when that is much at once (protocol N8).
func TestListsAreReadBehindABurst(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		const names = 510 // a burst has more than 500 messages
		a := w.Join("a", "n")
		for i := range names {
			a.Announce(world.Name(fmt.Sprint(i)))
		}
		w.Settle()
		w.Taps.Record()
		for i := range names {
			a.Withdraw(world.Name(fmt.Sprint(i)))
		}
		w.Eventually("the lists are read", time.Minute, func() error { return listed(w, a.ID()) })
		w.Settle()
	})
}

func TestTombstonesAreListedForTheirRetention(t *testing.T) {
	graces := world.DefaultGraces()
	graces.TombstoneMs = 60_000
	world.Run(t, world.Options{Graces: graces}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		a.Announce(world.Name("x"))
		w.Settle()
		a.Withdraw(world.Name("x"))
		count := func() (n int) {
			for range w.View().Tombstones() {
				n++
			}
			return n
		}
		pass(55 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d tombstones before the retention is over", n)
		}
		w.Settle()
		if n := count(); n != 0 {
			t.Errorf("%d tombstones for good", n)
		}
	})
}
