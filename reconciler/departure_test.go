package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/test/world"
)

func departed(w *world.World, id string) bool {
	node, ok := w.View().Node(id)
	return !ok || node.State != fsm.NodePresent
}

func TestSiblingTakesOverAnOutgoingLink(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		first := w.Join("a", "n1", world.NoExternal)
		w.Join("b", "n").Announce(world.Name("y"))
		w.Converge()
		second := w.Join("a", "n2", world.NoExternal)
		second.Announce(world.Name("x"))
		w.Settle()
		id := w.Link("a", "b").ID
		first.Kill()
		pass(900 * time.Millisecond)
		if departed(w, first.ID()) {
			t.Error("the node departed before the failover grace had passed")
		}
		pass(time.Second)
		if link := w.Link("a", "b"); link.ID != id || link.SourceNode != second.ID() {
			t.Errorf("link %s is from %s, expected %s from %s", link.ID, link.SourceNode, id, second.ID())
		}
		w.Settle()
	})
}

func TestSiblingTakesOverAnIncomingLink(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("a", "n", world.NoExternal).Announce(world.Name("x"))
		first := w.Join("b", "n1")
		w.Converge()
		second := w.Join("b", "n2")
		second.Announce(world.Name("y"))
		w.Settle()
		id := w.Link("a", "b").ID
		first.Kill()
		pass(3 * time.Second)
		if link := w.Link("a", "b"); link.ID == id || link.DestNode != second.ID() {
			t.Errorf("link %s ends at %s, expected a new one to %s", link.ID, link.DestNode, second.ID())
		}
		w.Settle()
	})
}

func TestReturnWithinTheGrace(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		name := world.Name("x")
		a.Announce(name)
		w.Join("b", "n")
		w.Settle()
		id, record := w.Link("a", "b").ID, first(w, name)
		a.Kill()
		pass(9 * time.Second)
		w.Start(a)
		w.Settle()
		if now := w.Link("a", "b").ID; now != id {
			t.Errorf("link %s became %s", id, now)
		}
		if now := first(w, name); now != record {
			t.Errorf("the name was first announced at %v, now at %v", record, now)
		}
	})
}

// first is where in the log the oldest announcer of a name announced it.
func first(w *world.World, name *dataplanepb.Name) fsm.Position {
	record, ok := w.View().NameRecord(world.Key(name))
	if !ok {
		return fsm.Position{}
	}
	return record.Announcers[0].First
}

func TestLastNodeOfAGroupDeparts(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		a.Announce(world.Name("x"))
		w.Join("b", "n")
		w.Settle()
		a.Kill()
		pass(9900 * time.Millisecond)
		if departed(w, a.ID()) {
			t.Error("the node departed before the departure grace had passed")
		}
		pass(200 * time.Millisecond)
		if !departed(w, a.ID()) {
			t.Error("the node did not depart after the grace")
		}
		if _, linked := w.View().LinkBetween("a", "b"); linked {
			t.Error("its link is there yet")
		}
		w.Settle()
	})
}

// A node that is away twice has each time the whole grace.
func TestEveryAbsenceHasAGraceOfItsOwn(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		w.Settle()
		a.Kill()
		pass(2 * time.Second)
		w.Start(a)
		pass(6 * time.Second)
		a.Kill()
		pass(9 * time.Second)
		if departed(w, a.ID()) {
			t.Error("the node departed in the grace of its second absence")
		}
		w.Start(a)
		w.Settle()
	})
}

func TestNobodyDepartsRightAfterALeaderChange(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n1")
		w.Converge()
		w.Join("b", "n2")
		w.Settle()
		a.Kill()
		pass(5 * time.Second)
		w.Resign()
		w.Lead()
		pass(19 * time.Second)
		if departed(w, a.ID()) {
			t.Error("the node departed although its timer started anew 10 s after the leader change")
		}
		pass(2 * time.Second)
		if !departed(w, a.ID()) {
			t.Error("the node never departed")
		}
		w.Settle()
	})
}

func TestRestartKeepsEveryLink(t *testing.T) {
	for _, how := range []string{"restart", "crash"} {
		t.Run(how, func(t *testing.T) {
			world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
				for _, group := range []string{"a", "b", "c"} {
					w.Join(group, "n1").Announce(world.Name("app-" + group))
					w.Join(group, "n2")
				}
				w.Settle()
				before := linkIDs(w)
				if how == "restart" {
					w.Restart()
				} else {
					w.Crash()
				}
				w.Settle()
				if after := linkIDs(w); after != before {
					t.Errorf("links were %s and are %s", before, after)
				}
			})
		})
	}
}

func linkIDs(w *world.World) string {
	ids := ""
	for link := range w.View().Links() {
		ids += fmt.Sprintf("%s (%s) ", link.ID, link.SourceNode)
	}
	return ids
}

func TestDeregisteredNodeLeavesAtOnce(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		a.Announce(world.Name("x"))
		w.Join("b", "n")
		w.Settle()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Deregister(ctx); err != nil {
			t.Error(err)
		}
		pass(100 * time.Millisecond)
		if _, known := w.View().Node(a.ID()); known {
			t.Error("the state has the node yet")
		}
		w.Settle()
		w.Start(a)
		w.Settle()
	})
}

// A departure that the log does not take is not forgotten.
func TestDepartureSurvivesAStalledLog(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		a.Announce(world.Name("x"))
		w.Join("c", "n")
		w.Settle()
		a.Kill()
		pass(5 * time.Second)
		w.Replica().Stall(true)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Deregister(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deregister: %v", err)
		}
		pass(time.Minute)
		w.Replica().Stall(false)
		w.Settle()
	})
}

func TestTwoProcessesWithOneID(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal)
		a.Announce(world.Name("x"))
		w.Join("b", "n").Announce(world.Name("y"))
		w.Settle()
		// The second process lives in a network of its own, where it reaches nobody.
		twin, err := dataplane.NewNetwork(dataplane.NetworkOptions{}).NewNode(dataplane.NodeOptions{
			ID: "n", Group: "a", Servers: []dataplane.Server{{"control-plane"}}, Dialer: w.Dial, Endpoint: "twin:1",
		})
		if err != nil {
			t.Fatal(err)
		}
		w.Start(twin)
		pass(30 * time.Second)
		if sessions := len(w.Record("a/n").Sessions); sessions != 2 {
			t.Errorf("the node has %d sessions", sessions)
		}
		if a.Phase() != dataplane.Registered || twin.Phase() != dataplane.Registered {
			t.Errorf("the first is %s, the second %s", a.Phase(), twin.Phase())
		}
		twin.Kill()
		w.Settle()
	})
}

func TestLeadershipLostWithWorkUnderWay(t *testing.T) {
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 12 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			world.Run(t, world.Options{Teardown: 20 * time.Millisecond}, func(t *testing.T, w *world.World) {
				for _, group := range []string{"a", "b", "c", "d"} {
					w.Join(group, "n1").Announce(world.Name("app-" + group))
					w.Join(group, "n2")
				}
				pass(delay)
				w.Resign()
				pass(delay)
				w.Lead()
				pass(delay)
				w.Network.Node("a/n1").Withdraw(world.Name("app-a"))
				w.Resign()
				// A real node that is cut off while it registers is lost.
				if b := w.Network.Node("b/n1"); b.Phase() == dataplane.Registered {
					b.CloseStream()
				}
				w.Lead()
				w.Settle()
			})
		})
	}
}
