package reconciler_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// slowLists makes the route lists of nodes come late.
func slowLists(w *world.World, delay time.Duration) {
	w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
		if !call.ListRoutes {
			return nil
		}
		return func(*southbound.Answer) { pass(delay) }
	})
}

func announced(w *world.World, node *dataplane.Node, name *dataplanepb.Name) bool {
	return slices.Contains(slices.Collect(w.View().NamesOf(node.ID())), world.Key(name))
}

// servedByBoth joins two nodes, whose groups are linked, that both serve one name.
func servedByBoth(w *world.World) (a, b *dataplane.Node, name *dataplanepb.Name) {
	a, b = w.Join("a", "n"), w.Join("b", "n")
	name = world.Name("x")
	a.Announce(name)
	b.Announce(name)
	w.Settle()
	return a, b, name
}

// When a link ends each end withdraws the names that it routed, also those that it
// serves itself. They stay: the node says so in its list, which takes its time if
// the node is dialling.
func TestSlowListKeepsAServedName(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b, x := servedByBoth(w)
		slowLists(w, 2500*time.Millisecond)
		w.Network.Break(w.Link("a", "b").ID)
		for range 100 {
			pass(100 * time.Millisecond)
			if !announced(w, a, x) || !announced(w, b, x) {
				t.Fatalf("a name that is served has gone: at a %v, at b %v", announced(w, a, x), announced(w, b, x))
			}
		}
		w.Taps.Set(nil)
		w.Settle()
	})
}

// A list that comes when the withdrawal stands already cannot be used for the name,
// and another one is read at once.
func TestServedNameComesBackWithALateList(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b, x := servedByBoth(w)
		slowLists(w, 9*time.Second)
		w.Network.Break(w.Link("a", "b").ID)
		pass(8 * time.Second)
		if announced(w, a, x) || announced(w, b, x) {
			t.Errorf("withdrawals without an answer stand after 8 s: at a %v, at b %v", !announced(w, a, x), !announced(w, b, x))
		}
		w.Taps.Set(nil)
		w.Eventually("the name is back", 3*time.Second, func() error {
			if !announced(w, a, x) || !announced(w, b, x) {
				return errors.New("it is not")
			}
			return nil
		})
		w.Settle()
	})
}

// Each name has its own time: that of one withdrawal is not up because that of
// another one is.
func TestEachDoubtHasItsOwnTime(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("b", "n")
		a := w.Join("a", "n")
		x, y := world.Name("x"), world.Name("y")
		a.Announce(x)
		a.Announce(y)
		w.Settle()
		a.CloseStream() // it says both again, so that a withdrawal is doubted
		w.Settle()
		slowLists(w, 30*time.Second)
		a.Withdraw(x)
		pass(3500 * time.Millisecond)
		if !announced(w, a, x) {
			t.Error("the first withdrawal stands already")
		}
		a.Withdraw(y)
		pass(3 * time.Second)
		if announced(w, a, x) {
			t.Error("the first withdrawal does not stand after 6.5 s")
		}
		if !announced(w, a, y) {
			t.Error("the second withdrawal stands after 3 s")
		}
		pass(4 * time.Second)
		if announced(w, a, y) {
			t.Error("the second withdrawal does not stand after 7 s")
		}
		w.Taps.Set(nil)
		w.Settle()
	})
}

// A name is announced anew after its doubted withdrawal was let stand. What was known
// of the withdrawal makes no storm of lists then.
func TestADoubtMakesNoStormOfLists(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _, x := servedByBoth(w)
		slowLists(w, 9*time.Second)
		w.Network.Break(w.Link("a", "b").ID)
		pass(7 * time.Second)
		if announced(w, a, x) {
			t.Fatal("the withdrawal does not stand after 7 s")
		}
		a.Withdraw(x)
		a.Announce(x)
		slowLists(w, 10*time.Millisecond)
		pass(20 * time.Second)
		w.Taps.Record()
		pass(10 * time.Second)
		if n := len(w.Taps.Pushes(a.ID())); n > 0 {
			t.Fatalf("%d requests in ten seconds in which nothing happened", n)
		}
		w.Taps.Set(nil)
		w.Settle()
	})
}

// Names that are served come back also if the log took their withdrawals late, and
// nobody was told that it had.
func TestServedNamesComeBackAfterALogThatStoodStill(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		servedByBoth(w)
		slowLists(w, 4500*time.Millisecond)
		w.Network.Break(w.Link("a", "b").ID)
		pass(4 * time.Second)
		w.Replica().Stall(true)
		pass(6 * time.Second)
		w.Replica().Forget(2)
		w.Replica().Stall(false)
		pass(time.Second)
		w.Replica().Forget(0)
		w.Taps.Set(nil)
		w.Settle()
	})
}

// While the log stands still, a withdrawal that no list has settled is not proposed
// again and again.
func TestADoubtIsSettledOnceWhileTheLogStandsStill(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _, x := servedByBoth(w)
		slowLists(w, time.Minute)
		a.Withdraw(x)
		pass(3 * time.Second)
		settled := map[*slimcppb.Audit]bool{}
		var mu sync.Mutex
		w.Replica().Refuse(func(command *slimcppb.Command) error {
			mu.Lock()
			defer mu.Unlock()
			if audit := command.GetObserved().GetAudit(); len(audit.GetAbsent()) > 0 {
				settled[audit] = true
			}
			return nil
		})
		w.Replica().Stall(true)
		pass(9 * time.Second) // less than a proposal may take
		mu.Lock()
		if len(settled) != 1 {
			t.Errorf("%d proposals wait for the log", len(settled))
		}
		mu.Unlock()
		w.Replica().Stall(false)
		w.Taps.Set(nil)
		w.Settle()
	})
}
