package reconciler_test

import (
	"testing"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// A name that is newer than the backup from which the state is restored is served
// throughout: its routes stay until the node that announces it was asked, however
// long that takes.
func TestNamesNewerThanABackupSurviveItsRestore(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		a.Announce(world.Name("old"))
		w.Settle()
		saved := w.Save()
		x := world.Name("new")
		a.Announce(x)
		w.Settle()
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			if call.NodeID != a.ID() || !call.ListRoutes {
				return nil
			}
			return func(*southbound.Answer) { pass(12 * time.Second) }
		})
		w.Restore(saved)
		for i := range 300 {
			pass(100 * time.Millisecond)
			if arrivals(t, w, b.ID(), x, a.ID()) != 1 {
				t.Fatalf("%d ms after the restore a message does not arrive", 100*(i+1))
			}
		}
		w.Taps.Set(nil)
		w.Settle()
		b.Announce(world.Name("later"))
		a.Withdraw(x)
		w.Settle()
	})
}

// A name that only the backup has, and routes that nobody wants any more, go in a
// bounded time after a restore, also if a node does not answer.
func TestDeletionsDoNotWaitForeverAfterARestore(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		c := w.Join("c", "n")
		x := world.Name("x")
		w.Settle()
		saved := w.Save()
		a.Announce(x)
		w.Settle()
		answer := make(chan struct{})
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			switch restored := w.View().Generation() > 1; {
			case restored && call.NodeID == c.ID():
				return func(*southbound.Answer) { <-answer }
			case !restored && len(call.Command.GetRoutesToDelete()) > 0:
				call.Command = &controllerpb.ConfigurationCommand{} // the nodes keep the route
				return func(answer *southbound.Answer) { *answer = southbound.Answer{Err: southbound.ErrQueueFull} }
			}
			return nil
		})
		a.Withdraw(x)
		pass(time.Second)
		w.Taps.Record()
		w.Restore(saved)
		pass(2 * time.Minute)
		deleted := 0
		for _, command := range w.Taps.Commands(b.ID()) {
			deleted += len(command.GetRoutesToDelete())
		}
		if deleted == 0 {
			t.Error("the route was not deleted in two minutes")
		}
		w.Taps.Set(nil)
		close(answer)
		w.Settle()
	})
}
