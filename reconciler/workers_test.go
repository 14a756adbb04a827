package reconciler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/world"
)

// A worker never waits for a node, so even one of them serves a fleet in which
// some nodes do not answer.
func TestNumbersOfWorkers(t *testing.T) {
	for _, workers := range []int{1, 16} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			options := world.Options{}
			options.Reconciler.Workers = workers
			world.Run(t, options, func(t *testing.T, w *world.World) {
				stalled := w.Join("a", "n")
				w.Join("b", "n")
				w.Settle()
				stalled.Stall(true)
				for _, group := range []string{"c", "d", "e"} {
					w.Join(group, "n").Announce(world.Name("app-" + group))
				}
				w.Eventually("the others are linked", 10*time.Second, func() error {
					for _, pair := range []string{"bc", "bd", "be", "cd", "ce", "de"} {
						if err := applied(w, pair[:1], pair[1:])(); err != nil {
							return err
						}
					}
					return nil
				})
				stalled.Stall(false)
				w.Settle()
			})
		})
	}
}
