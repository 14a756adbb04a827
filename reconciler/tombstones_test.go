package reconciler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/world"
)

func tombstones(w *world.World) (count int) {
	for range w.View().Tombstones() {
		count++
	}
	return count
}

// A node that keeps its stream open and obeys nothing holds up no tombstones. When it
// obeys again it drops the routes of the names that went meanwhile.
func TestTombstonesDoNotWaitForANodeThatDoesNotAnswer(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Join("c", "n")
		x := world.Name("x")
		a.Announce(x)
		w.Settle()
		b.Stall(true)
		a.Withdraw(x)
		for round := range 3 {
			for i := range 100 {
				name := world.Name(fmt.Sprintf("job-%d-%d", round, i))
				a.Announce(name)
				pass(10 * time.Millisecond)
				a.Withdraw(name)
				pass(10 * time.Millisecond)
			}
			pass(75 * time.Second)
			if n := tombstones(w); n > 0 {
				t.Errorf("%d tombstones 75 s after %d names came and went", n, (round+1)*100)
			}
		}
		if len(world.Routes(b)) == 0 {
			t.Error("the node that does not answer has dropped the route already")
		}
		b.Stall(false)
		w.Settle()
	})
}

// However many names are withdrawn at once, their tombstones go at once.
func TestManyTombstonesGoAtOnce(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		const names = 1100
		for i := range names {
			a.Announce(world.Name(fmt.Sprint(i)))
		}
		w.Settle()
		for i := range names {
			a.Withdraw(world.Name(fmt.Sprint(i)))
		}
		pass(55 * time.Second)
		if n := tombstones(w); n != names {
			t.Errorf("%d tombstones before the retention is over", n)
		}
		w.Eventually("tombstones go", 20*time.Second, func() error {
			if n := tombstones(w); n == names {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		pass(time.Second)
		if n := tombstones(w); n > 0 {
			t.Errorf("%d tombstones a second after the first ones went", n)
		}
	})
}
