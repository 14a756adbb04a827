package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/test/world"
)

func TestStalledNodeHoldsUpNobody(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		stalled := w.Join("a", "n1", world.NoExternal)
		w.Settle()
		stalled.Stall(true)
		// Nothing but a dial tells that a node is stalled.
		for _, group := range []string{"b", "c", "d", "e"} {
			w.Join(group, "n").Announce(world.Name("app-" + group))
		}
		pass(time.Second)
		sibling := w.Join("a", "n2", world.NoExternal)
		w.Eventually("the others are linked", 5*time.Second, func() error {
			return errors.Join(applied(w, "b", "c")(), applied(w, "c", "d")(), applied(w, "d", "e")())
		})
		w.Eventually("the sibling makes the links that the stalled node has not made", 20*time.Second, func() error {
			for _, group := range []string{"b", "c", "d", "e"} {
				if link := w.Link("a", group); link.SourceNode != sibling.ID() {
					return fmt.Errorf("link a~%s is from %s", group, link.SourceNode)
				}
				if err := applied(w, "a", group)(); err != nil {
					return err
				}
			}
			return nil
		})
		if !w.Record(stalled.ID()).Silent {
			t.Error("the stalled node is not taken for silent")
		}
		stalled.Stall(false)
		w.Settle()
	})
}

// After 90 s without an answer the only thing sent is one pair of list requests.
func TestOverdueNodeIsAskedForItsListsOnce(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		b := w.Join("b", "n")
		w.Settle()
		b.Stall(true)
		a.Announce(world.Name("x"))
		pass(time.Second) // what was sent is out
		w.Taps.Record()
		start := time.Now()
		pass(88 * time.Second)
		if pushes := w.Taps.Pushes(b.ID()); len(pushes) != 0 {
			t.Errorf("%d requests before 90 s", len(pushes))
		}
		a.Announce(world.Name("y"))
		pass(time.Hour)
		pushes := w.Taps.Pushes(b.ID())
		for _, push := range pushes {
			if push.Command != nil {
				t.Errorf("a command after %v", push.At.Sub(start))
			}
		}
		if len(pushes) != 2 {
			t.Errorf("%d requests in an hour, expected a pair", len(pushes))
		}
		b.Stall(false)
		w.Settle()
	})
}

func TestStalledNodeThatDies(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n1")
		w.Join("b", "n").Announce(world.Name("y"))
		w.Converge()
		w.Join("a", "n2").Announce(world.Name("x"))
		w.Settle()
		a.Stall(true)
		w.Network.Node("b/n").Announce(world.Name("z"))
		pass(2 * time.Minute)
		a.Kill()
		w.Settle()
	})
}

// The stream of a stalled gateway is lost, which it does not notice: its link
// lives on while a sibling dials one with the same id.
func TestTwoConnectionsWithOneID(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		old := w.Join("a", "n1", world.NoExternal)
		w.Join("b", "n").Announce(world.Name("y"))
		w.Settle()
		w.Join("a", "n2", world.NoExternal).Announce(world.Name("x"))
		w.Settle()
		old.Stall(true)
		w.Network.Node("b/n").Announce(world.Name("z")) // it stalls over this route
		pass(time.Second)
		old.CloseStream()
		w.Eventually("the sibling has dialled", time.Minute, func() error {
			if links := w.Network.Links(); len(links) != 2 {
				return fmt.Errorf("connections are %v", links)
			}
			return nil
		})
		pass(time.Minute)
		old.Stall(false)
		w.Settle()
	})
}

func TestAnOperatorsListRequest(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		a.Announce(world.Name("x"))
		w.Settle()
		connections, err := w.Reconciler().ListConnections(t.Context(), b.ID())
		if err != nil || len(connections) != len(b.Connections()) {
			t.Errorf("connections are %v, %v", connections, err)
		}
		routes, err := w.Reconciler().ListRoutes(t.Context(), b.ID())
		if err != nil || len(routes) != len(b.Table()) {
			t.Errorf("routes are %v, %v", routes, err)
		}

		b.Stall(true)
		a.Announce(world.Name("y"))
		pass(3 * time.Second)
		start := time.Now()
		_, err = w.Reconciler().ListConnections(t.Context(), b.ID())
		var busy *reconciler.BusyError
		if !errors.As(err, &busy) || busy.Error() != "node b/n is busy: command sent 13 s ago" {
			t.Errorf("a stalled node: %v", err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("the answer took %v", took)
		}
		answer := make(chan error, 1)
		go func() {
			_, err := w.Reconciler().ListRoutes(context.Background(), b.ID())
			answer <- err
		}()
		pass(time.Second)
		b.Stall(false)
		if err := <-answer; err != nil {
			t.Errorf("a node that answers again: %v", err)
		}

		b.Kill()
		pass(time.Second)
		if _, err := w.Reconciler().ListConnections(t.Context(), b.ID()); !errors.Is(err, reconciler.ErrNotConnected) {
			t.Errorf("a node that is gone: %v", err)
		}
		w.Resign()
		if _, err := w.Reconciler().ListConnections(t.Context(), a.ID()); !errors.Is(err, reconciler.ErrNotLeading) {
			t.Errorf("without a leader: %v", err)
		}
		if a.Phase() != dataplane.Registered {
			t.Errorf("node a is %s", a.Phase())
		}
		w.Lead()
	})
}

// Requests of operators go out next after what is in flight, however much there
// is to do.
func TestAnOperatorsRequestIsNotStarved(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a, b := w.AddNode("a", "n"), w.Join("b", "n")
		for i := range 1500 { // more than one command
			a.Announce(world.Name(fmt.Sprint(i)))
		}
		w.Settle()
		b.Stall(true)
		w.Start(a)
		pass(5 * time.Second)
		w.Taps.Record()
		answer := make(chan error, 1)
		go func() {
			_, err := w.Reconciler().ListConnections(context.Background(), b.ID())
			answer <- err
		}()
		pass(time.Second)
		b.Stall(false)
		if err := <-answer; err != nil {
			t.Error(err)
		}
		if pushes := w.Taps.Pushes(b.ID()); len(pushes) == 0 || !pushes[0].Connections {
			t.Errorf("of %d requests the operator's was not the first", len(pushes))
		}
		w.Settle()
	})
}
