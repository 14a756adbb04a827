package reconciler_test

import (
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/world"
)

// What a node withdrew just before it stopped is gone at once, also if the log was
// slow: nobody waits for the node's departure.
func TestWithdrawalOfANodeThatStopsCounts(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		x, y := world.Name("x"), world.Name("y")
		w.Settle()
		a.Announce(x)
		w.Settle()
		w.Replica().Stall(true)
		a.Announce(y) // on its way to the log
		pass(10 * time.Millisecond)
		a.Withdraw(x)
		pass(10 * time.Millisecond)
		a.Kill()
		pass(500 * time.Millisecond)
		w.Replica().Stall(false)
		pass(2 * time.Second)
		if announced(w, a, x) || !announced(w, a, y) {
			t.Errorf("x is announced: %v, y: %v; the node said that only y is", announced(w, a, x), announced(w, a, y))
		}
		w.Settle()
	})
}
