package reconciler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// arrivals is how often a message from a node to a name arrives at another node.
func arrivals(t *testing.T, w *world.World, from string, name *dataplanepb.Name, at string) int {
	t.Helper()
	delivery, err := w.Network.Deliver(from, name)
	if err != nil {
		t.Fatal(err)
	}
	return delivery.Arrived[at]
}

// Node b set routes over its incoming link, and then lost and found its stream:
// it can no longer delete them.
func ghosts(t *testing.T, w *world.World) (a, b *dataplane.Node) {
	a, b = w.Join("a", "n", world.NoExternal), w.Join("b", "n")
	a.Announce(world.Name("x"))
	w.Join("c", "n")
	w.Settle()
	b.CloseStream()
	w.Settle()
	if link := w.Link("a", "b"); link.SourceNode != a.ID() {
		t.Fatalf("link is from %s", link.SourceNode)
	}
	return a, b
}

func TestGhostOfANameThatIsGone(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := ghosts(t, w)
		before := w.Link("a", "b").ID
		a.Withdraw(world.Name("x"))
		pass(15 * time.Second)
		if left := w.Network.Leftovers(); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
		if now := w.Link("a", "b").ID; now == before {
			t.Error("the link was not made anew, which alone removes the route")
		}
		w.Settle()

		// Names that come and go must not cut the traffic again and again.
		a.Announce(world.Name("y"))
		w.Converge()
		b.CloseStream()
		w.Converge()
		before = w.Link("a", "b").ID
		a.Withdraw(world.Name("y"))
		pass(time.Minute)
		if now := w.Link("a", "b").ID; now != before {
			t.Error("the link was made anew twice within five minutes")
		}
		w.Settle()
	})
}

func TestGhostOfANameThatHasMoved(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _ := ghosts(t, w)
		x := world.Name("x")
		w.Network.Node("c/n").Announce(x)
		a.Withdraw(x)
		w.Eventually("the name is reached at its new place", 10*time.Second, func() error {
			if at := arrivals(t, w, "b/n", x, "c/n"); at != 1 {
				return fmt.Errorf("%d arrivals", at)
			}
			for route := range world.Routes(w.Network.Node("b/n")) {
				if strings.HasSuffix(route, w.Link("a", "b").ID) {
					return fmt.Errorf("route %s", route)
				}
			}
			return nil
		})
		w.Settle()
	})
}

// A replica fails, and the other end of the link loses its stream a moment later: it
// dials the link again, and the route goes without a new link.
func TestGhostWaitsForTheOtherEnd(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _ := ghosts(t, w)
		before := w.Link("a", "b").ID
		a.Withdraw(world.Name("x"))
		pass(5 * time.Second)
		a.CloseStream()
		w.Settle()
		if now := w.Link("a", "b").ID; now != before {
			t.Errorf("link %s became %s", before, now)
		}
	})
}

// Nor is there a new link, whatever became of the name, while the replica that had
// the other end's stream is away.
func TestGhostWaitsForTheReplicaOfTheOtherEnd(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _ := ghosts(t, w)
		before, x := w.Link("a", "b").ID, world.Name("x")
		w.Taps.Unreach(true)
		w.Network.Node("c/n").Announce(x)
		a.Withdraw(x)
		pass(time.Minute)
		a.CloseStream()
		pass(time.Second)
		w.Taps.Unreach(false)
		w.Settle()
		if now := w.Link("a", "b").ID; now != before {
			t.Errorf("link %s became %s", before, now)
		}
	})
}

// speechless keeps what a node says in its session from the log. The returned function
// ends that.
func speechless(t *testing.T, w *world.World, nodeID string) (end func()) {
	t.Helper()
	node, _ := w.View().Node(nodeID)
	session, ok := node.CommandSession()
	if !ok {
		t.Fatalf("%s has no session", nodeID)
	}
	name := session.Name.Proto()
	w.Replica().Refuse(func(command *slimcppb.Command) error {
		if proto.Equal(command.GetAnnounce().GetSession(), name) || proto.Equal(command.GetClaimLink().GetSession(), name) {
			return cluster.ErrNoLeader
		}
		return nil
	})
	return func() { w.Replica().Refuse(nil) }
}

// When a link ends the other end withdraws the names that it routed over it. If the
// log has that late, after the link was dialled again and its routes were set again,
// it says nothing of these: the node can delete them, and the link keeps its id.
func TestALateWithdrawalMakesNoGhost(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		source, other := oneLink(w)
		x, id := world.Name("x"), w.Link("a", "b").ID
		source.Announce(x)
		w.Settle()
		speak := speechless(t, w, other.ID())
		source.CloseStream()
		pass(5 * time.Second)
		if at := arrivals(t, w, other.ID(), x, source.ID()); at != 1 {
			t.Fatalf("%d arrivals after the link was dialled again", at)
		}
		speak()
		pass(5 * time.Second)
		source.Withdraw(x)
		w.Settle()
		if now := w.Link("a", "b").ID; now != id {
			t.Errorf("link %s became %s", id, now)
		}
	})
}

// linkSecure makes node b dial a link that needs a full state.
func linkSecure(t *testing.T, w *world.World, links ...string) {
	t.Helper()
	w.SetTopology(world.Segment("default", links...))
	w.Join("secure", "n", func(o *dataplane.NodeOptions) { o.TLSRequired = true })
	w.Settle()
	w.SetTopology(world.Segment("default", append(links, "b~secure")...))
	w.Converge()
	if link := w.Link("b", "secure"); link.SourceNode != "b/n" || !link.NeedsCredentials() {
		t.Fatalf("link is %+v", link)
	}
}

func TestFullStateSetsNoRouteTwice(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, _ := ghosts(t, w)
		linkSecure(t, w, "a~b", "b~c", "a~c")
		if doubled := w.Network.Doubled(); len(doubled) > 0 {
			t.Errorf("set twice: %v", doubled)
		}
		a.Withdraw(world.Name("x"))
		w.Settle()
	})
}

// A node that loses one of two links forgets that it set a name over the other, too. A
// full state that named the route would set it a second time.
func TestFullStateSetsNoRouteTwiceAfterALostLink(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		x := world.Name("x")
		w.SetTopology(world.Segment("default", "a~b", "b~c"))
		a, c := w.Join("a", "n"), w.Join("c", "n")
		w.Join("b", "n")
		a.Announce(x)
		c.Announce(x)
		w.Settle()
		w.Network.Break(w.Link("b", "c").ID)
		w.Settle()
		linkSecure(t, w, "a~b", "b~c")
		if doubled := w.Network.Doubled(); len(doubled) > 0 {
			t.Errorf("set twice: %v", doubled)
		}
		a.Withdraw(x)
		w.Settle()
	})
}

// A new leader does not know what the nodes have forgotten, and may make them set
// a route a second time. It goes all the same when its name does.
func TestRouteThatWasSetTwiceIsRemoved(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		x := world.Name("x")
		w.SetTopology(world.Segment("default", "a~b", "b~c"))
		a, c := w.Join("a", "n"), w.Join("c", "n")
		w.Join("b", "n")
		a.Announce(x)
		c.Announce(x)
		w.Settle()
		// Node b routes the name over both its links. When it loses one, it forgets
		// that it set the route over the other.
		w.Network.Break(w.Link("b", "c").ID)
		w.Settle()
		w.Resign()
		w.Lead()
		w.Settle()
		linkSecure(t, w, "a~b", "b~c")
		if doubled := w.Network.Doubled(); len(doubled) != 1 {
			t.Fatalf("set twice: %v", doubled)
		}
		a.Withdraw(x)
		w.Settle()
	})
}

// Routes of the session before a leader change can be deleted: no link must be
// made anew for them.
func TestLeaderChangeMakesNoGhosts(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal)
		w.Join("b", "n")
		w.Settle()
		a.Announce(world.Name("x"))
		w.Settle()
		id := w.Link("a", "b").ID
		w.Resign()
		w.Lead()
		w.Settle()
		a.Withdraw(world.Name("x"))
		w.Settle()
		if now := w.Link("a", "b").ID; now != id {
			t.Error("the link was made anew")
		}
	})
}

// A node that withdraws a name forgets the routes that it holds for it.
func TestWithdrawalOfANameThatTheNodeAlsoRoutes(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		x := world.Name("x")
		a, b := w.Join("a", "n"), w.Join("b", "n")
		c := w.Join("c", "n")
		a.Announce(x)
		b.Announce(x)
		w.Settle()
		b.Withdraw(x)
		w.Settle()
		if at := arrivals(t, w, "b/n", x, "a/n"); at != 1 {
			t.Errorf("%d arrivals at the other announcer", at)
		}
		c.Announce(x)
		a.Withdraw(x)
		w.Settle()
		c.Withdraw(x)
		w.Settle()
	})
}

// refuse makes a node refuse routes of a name.
func refuse(w *world.World, nodeID string, name *dataplanepb.Name, text string) {
	w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
		if call.NodeID != nodeID || call.Command == nil {
			return nil
		}
		command := proto.CloneOf(call.Command)
		var refused []*controllerpb.RouteAck
		command.RoutesToSet = nil
		for _, route := range call.Command.GetRoutesToSet() {
			if world.Key(route.GetName()) == world.Key(name) {
				refused = append(refused, &controllerpb.RouteAck{Route: route, ErrorMsg: text})
			} else {
				command.RoutesToSet = append(command.RoutesToSet, route)
			}
		}
		call.Command = command
		return func(answer *southbound.Answer) {
			if answer.Ack != nil {
				answer.Ack.RoutesStatus = append(answer.Ack.RoutesStatus, refused...)
			}
		}
	})
}

// A route that came just before the node heard of its link's loss waits only until
// the link is dialled again: when a replica dies its nodes are back at once, and
// the other ends would keep their messages for a second.
func TestRouteWaitsNoLongerThanItsLinkIsDown(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		source, other := a, b
		if w.Link("a", "b").SourceNode == b.ID() {
			source, other = b, a
		}
		x := world.Name("x")
		refuse(w, other.ID(), x, "connection with link id not found")
		source.Announce(x)
		pass(50 * time.Millisecond)
		w.Taps.Set(nil)
		if route, err := routeAt(w, other.ID(), x); err != nil || route.Status == fsm.RouteApplied {
			t.Fatalf("refused was a route that is %+v, %v", route, err)
		}
		source.CloseStream()
		pass(500 * time.Millisecond)
		if route, err := routeAt(w, other.ID(), x); err != nil || route.Status != fsm.RouteApplied {
			t.Errorf("half a second after its source came back the route is %+v, %v", route, err)
		}
		w.Settle()
	})
}

func routeAt(w *world.World, nodeID string, name *dataplanepb.Name) (fsm.Route, error) {
	for route := range w.View().Routes(fsm.RouteFilter{Source: nodeID}) {
		if route.Name == world.Key(name) {
			return route, nil
		}
	}
	return fsm.Route{}, errors.New("no such route")
}

func TestRefusedRoute(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		bad, good := world.Name("bad"), world.Name("good")
		refuse(w, b.ID(), bad, "datapath says no")
		w.Taps.Record()
		a.Announce(bad)
		a.Announce(good)
		w.Eventually("the refusal is shown", 5*time.Second, func() error {
			route, err := routeAt(w, b.ID(), bad)
			if err == nil && (route.Status != fsm.RouteFailed || route.Message != "datapath says no") {
				return fmt.Errorf("route is %d (%s)", route.Status, route.Message)
			}
			return err
		})
		w.Eventually("the other route is applied", 5*time.Second, func() error {
			route, err := routeAt(w, b.ID(), good)
			if err == nil && route.Status != fsm.RouteApplied {
				return fmt.Errorf("route is %d (%s)", route.Status, route.Message)
			}
			return err
		})
		pass(time.Second)
		w.Taps.Set(nil)
		w.Settle()
	})
}

func TestRefusedRouteIsGivenUpUntilTheNextEvent(t *testing.T) {
	options := noSweep(world.Options{})
	options.Reconciler.MaxRequeues = 3
	world.Run(t, options, func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		bad := world.Name("bad")
		refuse(w, b.ID(), bad, "datapath says no")
		w.Taps.Record()
		start := time.Now()
		a.Announce(bad)
		pass(time.Hour)
		var tries []string
		for _, push := range w.Taps.Pushes(b.ID()) {
			if push.Command != nil {
				tries = append(tries, push.At.Sub(start).Round(100*time.Millisecond).String())
			}
		}
		if got := strings.Join(tries, " "); got != "0s 200ms 600ms 1.4s" {
			t.Errorf("the route was tried at %s", got)
		}
		w.Taps.Set(nil)
		b.CloseStream()
		w.Settle()
	})
}

func TestBackOffAfterRequestsThatFail(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			if call.NodeID != b.ID() {
				return nil
			}
			return func(answer *southbound.Answer) { *answer = southbound.Answer{Err: southbound.ErrQueueFull} }
		})
		w.Taps.Record()
		a.Announce(world.Name("x"))
		pass(2 * time.Hour)
		var gaps []string
		var last time.Time
		count := 0
		for _, push := range w.Taps.Pushes(b.ID()) {
			if !push.Connections && push.Command == nil {
				continue // the second of a pair
			}
			if count++; count > 1 {
				gaps = append(gaps, push.At.Sub(last).Round(10*time.Millisecond).String())
			}
			last = push.At
		}
		want := "200ms 400ms 800ms 1.6s 3.2s 6.4s 12.8s" + strings.Repeat(" 30s", 8)
		if got := strings.Join(gaps, " "); got != want {
			t.Errorf("waits are\n%s, expected\n%s", got, want)
		}
		w.Taps.Set(nil)
		b.CloseStream()
		w.Settle()
	})
}

func TestCommandsAreBounded(t *testing.T) {
	longName := func(i int) *dataplanepb.Name {
		return dataplane.InstanceName(strings.Repeat("o", 1024), strings.Repeat("n", 1024), fmt.Sprintf("%01024d", i))
	}
	shortName := func(i int) *dataplanepb.Name { return world.Name(fmt.Sprint(i)) }
	for _, test := range []struct {
		what    string
		name    func(int) *dataplanepb.Name
		names   int
		atLeast int // commands
	}{
		{"by their routes", shortName, 1500, 2},
		{"by their size", longName, 1010, 2},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
				a := w.AddNode("a", "n", world.NoExternal) // so it dials
				for i := range test.names {
					a.Announce(test.name(i))
				}
				w.Start(a)
				w.Converge()
				w.Taps.Record()
				b := w.Join("b", "n")
				w.Converge()
				commands := 0
				for _, command := range w.Taps.Commands(b.ID()) {
					routes, size := len(command.GetRoutesToSet()), proto.Size(command)
					if routes > southbound.MaxCommandRoutes || size > southbound.MaxCommandBytes {
						t.Errorf("a command has %d routes and %d bytes", routes, size)
					}
					if routes > 0 {
						commands++
					}
				}
				if commands < test.atLeast {
					t.Errorf("the routes were set in %d commands", commands)
				}
				a.Kill()
				w.Converge()
			})
		})
	}
}
