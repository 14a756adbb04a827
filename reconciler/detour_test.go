package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/test/world"
)

// delivered says what does not arrive, or not once, of what every group sends to
// every name.
func delivered(w *world.World) func() error {
	return func() error {
		var errs []error
		for _, defect := range w.Network.Matrix().Complete(func(string, string) bool { return true }) {
			errs = append(errs, errors.New(defect.String()))
		}
		return errors.Join(errs...)
	}
}

// exhausted reports an error until names are led around two groups whose link
// nobody can make.
func exhausted(w *world.World, a, b string) func() error {
	return func() error {
		if link, ok := w.View().LinkBetween(a, b); !ok || !link.Exhausted || !w.View().Blocked(a, b) {
			return fmt.Errorf("link %s~%s is %+v", a, b, link)
		}
		return nil
	}
}

// forwardsTo returns the groups that a node's own table takes a name to.
func forwardsTo(w *world.World, nodeID, text string) []string {
	var groups []string
	group := w.Record(nodeID).Group
	for route := range world.Routes(w.Network.Node(nodeID)) {
		for link := range w.View().LinksOf(nodeID) {
			if route == world.Key(world.Name(text)).String()+" over "+link.ID {
				groups = append(groups, link.PeerGroup(group))
			}
		}
	}
	slices.Sort(groups)
	return groups
}

func expectForwards(t *testing.T, w *world.World, nodeID, text, want string) {
	t.Helper()
	if got := forwardsTo(w, nodeID, text); !slices.Equal(got, []string{want}) {
		t.Errorf("%s forwards %s to %q, not to %s", nodeID, text, got, want)
	}
}

// meshWithADeadPair joins three groups, of which a and b cannot reach each other:
// a has no endpoint, and b's refuses. Both are linked with c.
func meshWithADeadPair(w *world.World) {
	w.Join("c", "n").Announce(world.Name("z"))
	b := w.Join("b", "n")
	b.Announce(world.Name("y"))
	w.Settle()
	b.RefuseConnections(true)
	w.Join("a", "n", world.NoExternal).Announce(world.Name("x"))
}

// TestNamesAreLedAroundADeadLink: one dead link must not cut off what another
// path reaches.
func TestNamesAreLedAroundADeadLink(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		meshWithADeadPair(w)
		w.Eventually("messages go around the dead link", time.Minute, delivered(w))
		if err := exhausted(w, "a", "b")(); err != nil {
			t.Error(err)
		}
		expectForwards(t, w, "a/n", "y", "c")
		expectForwards(t, w, "b/n", "x", "c")
		pass(10 * time.Minute)
		if err := delivered(w)(); err != nil {
			t.Errorf("while the link is tried again: %v", err)
		}
		// What comes new is led around it too: no node waits in a dial.
		w.Network.Node("b/n").Announce(world.Name("new"))
		w.Eventually("a new name goes around the dead link", 10*time.Second, delivered(w))

		w.Network.Node("b/n").RefuseConnections(false)
		w.Eventually("the link stands", 2*time.Minute, applied(w, "a", "b"))
		if w.View().Blocked("a", "b") || w.Link("a", "b").Exhausted {
			t.Error("names are led around a link that stands")
		}
		w.Settle()
		expectForwards(t, w, "a/n", "y", "b")
		expectForwards(t, w, "b/n", "x", "a")
	})
}

// TestADetourOutlivesTheLeader: what was found out about a link is in the state,
// so a new leader and a restart do not cut names off anew.
func TestADetourOutlivesTheLeader(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		meshWithADeadPair(w)
		w.Eventually("messages go around the dead link", time.Minute, delivered(w))
		w.Restart()
		pass(30 * time.Second)
		if err := errors.Join(delivered(w)(), exhausted(w, "a", "b")()); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		w.Network.Node("b/n").RefuseConnections(false)
		w.Settle()
	})
}

// TestEveryWayIsTriedBeforeADetour: while another node of the group may reach the
// endpoint, names are not led around the pair.
func TestEveryWayIsTriedBeforeADetour(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("c", "n")
		dead, live := w.Join("b", "n1"), w.Join("b", "n2", world.NoExternal)
		live.Announce(world.Name("y"))
		w.Settle()
		dead.RefuseConnections(true)
		w.Join("a", "n").Announce(world.Name("x"))
		w.Settle() // b dials a
		if link := w.Link("a", "b"); link.SourceGroup != "b" || link.Exhausted {
			t.Errorf("the link is %+v", link)
		}
		dead.RefuseConnections(false)
	})
}

// TestNamesAreLedAroundGroupsThatCannotDialEachOther: between two groups without
// external endpoints there is no link at all.
func TestNamesAreLedAroundGroupsThatCannotDialEachOther(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("a", "n", world.NoExternal).Announce(world.Name("x"))
		b := w.Join("b", "n", world.NoExternal)
		b.Announce(world.Name("y"))
		w.Join("c", "n").Announce(world.Name("z"))
		w.Settle()
		expectForwards(t, w, "a/n", "y", "c")
		expectForwards(t, w, "b/n", "x", "c")

		b.Kill()
		if err := b.SetEndpoints("n.b.internal:1", "n.b.example:1"); err != nil {
			t.Fatal(err)
		}
		w.Start(b)
		w.Settle()
		expectForwards(t, w, "a/n", "y", "b")
		expectForwards(t, w, "b/n", "x", "a")
	})
}

// TestADeadLinkWithoutADetourIsDialledWithTheNodesOwnSettings: there is nothing
// to lose then.
func TestADeadLinkWithoutADetourIsDialledWithTheNodesOwnSettings(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		b := w.Join("b", "n")
		b.Announce(world.Name("y"))
		b.RefuseConnections(true)
		w.Join("a", "n", world.NoExternal)
		w.Eventually("the last way is tried", time.Minute, func() error {
			if link, ok := w.View().LinkBetween("a", "b"); !ok || !link.FullState || link.Status == fsm.LinkApplied {
				return fmt.Errorf("link is %+v", link)
			}
			return nil
		})
		if err := exhausted(w, "a", "b")(); err != nil {
			t.Error(err)
		}
		b.RefuseConnections(false)
		w.Settle()
	})
}
