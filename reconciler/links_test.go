package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// noSweep leaves it to events alone to find what is wrong.
func noSweep(options world.Options) world.Options {
	options.Reconciler.ReconcilePeriod = -1
	return options
}

func applied(w *world.World, a, b string) func() error {
	return func() error {
		link, ok := w.View().LinkBetween(a, b)
		if !ok {
			return fmt.Errorf("there is no link %s~%s", a, b)
		}
		if link.Status != fsm.LinkApplied {
			return fmt.Errorf("link %s~%s is %s: %s", a, b, link.Status, link.StatusMessage)
		}
		return nil
	}
}

func TestFleetConverges(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		for _, group := range []string{"a", "b", "c"} {
			w.Join(group, "n1").Announce(world.Name("app-" + group))
			w.Join(group, "n2").Announce(world.Name("twin-" + group))
		}
		w.Settle()
	})
}

func TestListsAreReadAfterARegistration(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("b", "n")
		w.Converge()
		w.Taps.Record()
		start := time.Now()
		a := w.Join("a", "n")
		w.Converge()
		pass(time.Minute)
		var seconds []int
		for _, push := range w.Taps.Pushes(a.ID()) {
			if push.Command != nil && len(push.Command.GetConnectionsToCreate()) > 0 {
				t.Errorf("the link of the first command was dialled again: %v", push.Command)
			}
			if push.Connections {
				seconds = append(seconds, int(push.At.Sub(start).Seconds()))
			}
		}
		for _, want := range []int{0, 1, 5} {
			found := false
			for _, second := range seconds {
				found = found || second == want
			}
			if !found {
				t.Errorf("connections were listed %v s after the registration, not at %d s", seconds, want)
			}
		}
	})
}

func TestUnprovenEndpointsAreDialledOneAtATime(t *testing.T) {
	world.Run(t, world.Options{Topology: []*slimcppb.Segment{world.Segment("star", "hub~*")}}, func(t *testing.T, w *world.World) {
		hub := w.Join("hub", "n", world.NoExternal) // so it dials everybody
		w.Converge()
		w.Taps.Record()
		for _, group := range []string{"a", "b", "c", "d"} {
			w.Join(group, "n")
		}
		dead := w.AddNode("dead", "n")
		dead.RefuseConnections(true)
		w.Start(dead)
		w.Eventually("all but one group are linked", 10*time.Second, func() error {
			var errs []error
			for _, group := range []string{"a", "b", "c", "d"} {
				errs = append(errs, applied(w, "hub", group)())
			}
			return errors.Join(errs...)
		})
		dials := 0
		for _, command := range w.Taps.Commands(hub.ID()) {
			dials += len(command.GetConnectionsToCreate())
			if len(command.GetConnectionsToCreate()) > 1 {
				t.Errorf("a command dials %d endpoints that nobody has reached", len(command.GetConnectionsToCreate()))
			}
		}
		if dials < 4 {
			t.Errorf("%d dials were seen", dials)
		}
	})
}

func TestRoutesWaitForTheClaim(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal)
		a.Announce(world.Name("x"))
		w.Settle()
		w.Taps.Record()
		b := w.AddNode("b", "n")
		b.LoseClaims(true)
		a.LoseClaims(true)
		w.Start(b)
		pass(1900 * time.Millisecond)
		if link := w.Link("a", "b"); link.Status != fsm.LinkConnecting || link.SourceNode != a.ID() {
			t.Fatalf("link is %s from %s, expected a dialled one without a claim", link.Status, link.SourceNode)
		}
		if commands := w.Taps.Commands(b.ID()); len(commands) > 0 {
			t.Errorf("node b was sent %v before its link was claimed", commands)
		}
		pass(200 * time.Millisecond)
		if err := applied(w, "a", "b")(); err != nil {
			t.Errorf("2 s after the dial the source's list was not read: %v", err)
		}
		w.Settle()
	})
}

func TestUnclaimedLinkIsReplaced(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal)
		w.Settle()
		hidePeers := func(call *southbound.Call) func(*southbound.Answer) {
			return func(answer *southbound.Answer) {
				for _, entry := range answer.Connections {
					entry.PeerNodeId = nil
				}
			}
		}
		w.Taps.Set(hidePeers)
		a.LoseClaims(true)
		b := w.AddNode("b", "n")
		b.LoseClaims(true)
		w.Start(b)
		pass(time.Second)
		first := w.Link("a", "b").ID
		pass(28 * time.Second)
		if id := w.Link("a", "b").ID; id != first {
			t.Error("the link was replaced before 30 s had passed")
		}
		pass(2 * time.Second)
		if id := w.Link("a", "b").ID; id == first {
			t.Error("the link was not replaced 30 s after its dial")
		}
		w.Taps.Set(nil)
		b.LoseClaims(false)
		w.Settle()
	})
}

func TestRedialAfterAReconnectKeepsTheID(t *testing.T) {
	for _, teardown := range []time.Duration{0, 300 * time.Millisecond} {
		t.Run(teardown.String(), func(t *testing.T) {
			world.Run(t, world.Options{Teardown: teardown}, func(t *testing.T, w *world.World) {
				a, b := w.Join("a", "n", world.NoExternal), w.Join("b", "n")
				a.Announce(world.Name("x"))
				b.Announce(world.Name("y"))
				w.Settle()
				id := w.Link("a", "b").ID
				a.CloseStream()
				start := time.Now()
				w.Converge()
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
				if now := w.Link("a", "b").ID; now != id {
					t.Errorf("link %s became %s", id, now)
				}
				w.Settle()
			})
		})
	}
}

// A node that comes back on another port is dialled there under the link's old id.
func TestLinkKeepsItsIDWhenItsEndMoves(t *testing.T) {
	for _, teardown := range []time.Duration{0, 300 * time.Millisecond} {
		t.Run(teardown.String(), func(t *testing.T) {
			world.Run(t, world.Options{Teardown: teardown}, func(t *testing.T, w *world.World) {
				a, b := w.Join("a", "n", world.NoExternal), w.Join("b", "n")
				a.Announce(world.Name("x"))
				b.Announce(world.Name("y"))
				w.Settle()
				id := w.Link("a", "b").ID
				for i := range 3 {
					b.Kill()
					pass(time.Second)
					if err := b.SetEndpoints(fmt.Sprintf("n.b.internal:%d", i+2), fmt.Sprintf("n.b.example:%d", i+2)); err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					w.Start(b)
					w.Converge()
					if took := time.Since(start); took > 10*time.Second {
						t.Errorf("it took %v", took)
					}
					if now := w.Link("a", "b").ID; now != id {
						t.Errorf("link %s became %s", id, now)
					}
					if links := slices.Collect(w.View().Links()); len(links) != 1 {
						t.Errorf("%d links are listed", len(links))
					}
				}
				w.Settle()
			})
		})
	}
}

func TestDisputedEndIsSettledByTheSource(t *testing.T) {
	claim := func(w *world.World, nodeID, linkID string) {
		session, _ := w.Record(nodeID).CommandSession()
		w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_ClaimLink{ClaimLink: &slimcppb.ClaimLink{
			Session: session.Name.Proto(), Sequence: session.Sequence + 1, LinkId: linkID, MessageId: "m",
		}}})
	}
	setUp := func(w *world.World) *fsm.Link {
		w.Join("a", "n", world.NoExternal)
		w.Join("b", "n1")
		w.Converge()
		w.Join("b", "n2")
		w.Settle()
		return w.Link("a", "b")
	}
	t.Run("the holder is right", func(t *testing.T) {
		world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
			link := setUp(w)
			claim(w, "b/n2", link.ID)
			pass(time.Second)
			if now := w.Link("a", "b"); now.ID != link.ID || now.DestNode != "b/n1" || now.DisputedBy != "" {
				t.Errorf("link ends at %s, disputed by %q", now.DestNode, now.DisputedBy)
			}
			w.Settle()
		})
	})
	t.Run("the claimant is right", func(t *testing.T) {
		world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
			link := setUp(w)
			w.Taps.Set(func(*southbound.Call) func(*southbound.Answer) {
				return func(answer *southbound.Answer) {
					for _, entry := range answer.Connections {
						if other := "n2"; entry.GetPeerNodeId() == "n1" {
							entry.PeerNodeId = &other
						}
					}
				}
			})
			claim(w, "b/n2", link.ID)
			pass(time.Second)
			if now := w.Link("a", "b"); now.ID != link.ID || now.DestNode != "b/n2" || now.DisputedBy != "" {
				t.Errorf("link ends at %s, disputed by %q", now.DestNode, now.DisputedBy)
			}
		})
	})
}

func TestFailedLinkIsDialledAgain(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal)
		b := w.AddNode("b", "n")
		b.RefuseConnections(true)
		w.Converge()
		w.Taps.Record()
		w.Start(b)
		w.Eventually("the link fails", 10*time.Second, func() error {
			if link, ok := w.View().LinkBetween("a", "b"); !ok || link.Status != fsm.LinkFailed {
				return errors.New("it has not")
			}
			return nil
		})
		if link := w.Link("a", "b"); !strings.Contains(link.StatusMessage, "Connection failed") {
			t.Errorf("status is %q, expected the node's own words", link.StatusMessage)
		}
		pass(10 * time.Second)
		count := 0
		for _, command := range w.Taps.Commands(a.ID()) {
			count += len(command.GetConnectionsToCreate())
		}
		if count < 2 || count > 5 {
			t.Errorf("%d dials in 10 s", count)
		}
		b.RefuseConnections(false)
		w.Settle()
	})
}

func TestLostLinkIsFound(t *testing.T) {
	t.Run("by a route that cannot be set", func(t *testing.T) {
		world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
			w.Join("a", "n")
			b := w.Join("b", "n")
			w.Settle()
			id := w.Link("a", "b").ID
			w.Network.Break(id) // without routes nobody says a word
			b.Announce(world.Name("y"))
			start := time.Now()
			w.Converge()
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			if now := w.Link("a", "b").ID; now != id {
				t.Errorf("link %s became %s", id, now)
			}
			w.Settle()
		})
	})
	t.Run("by withdrawals of names that the node never announced", func(t *testing.T) {
		world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
			w.Join("a", "n").Announce(world.Name("x"))
			w.Join("b", "n").Announce(world.Name("y"))
			w.Settle()
			w.Network.Break(w.Link("a", "b").ID)
			start := time.Now()
			w.Converge()
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			w.Settle()
		})
	})
	t.Run("by a sweep", func(t *testing.T) {
		world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
			w.Join("a", "n")
			w.Join("b", "n")
			w.Settle()
			w.Network.Break(w.Link("a", "b").ID)
			pass(3 * time.Minute)
			if len(w.Network.Links()) != 1 {
				t.Error("three sweeps did not find it")
			}
		})
	})
	t.Run("by nothing if sweeps are disabled", func(t *testing.T) {
		world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
			w.Join("a", "n")
			w.Join("b", "n")
			w.Settle()
			w.Network.Break(w.Link("a", "b").ID)
			w.Taps.Record()
			pass(time.Hour)
			if pushes := len(w.Taps.Pushes("a/n")) + len(w.Taps.Pushes("b/n")); pushes > 0 {
				t.Errorf("%d requests were sent", pushes)
			}
		})
	})
}

func TestEndsThatDisagree(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("a", "n").Announce(world.Name("x"))
		b := w.Join("b", "n")
		w.Settle()
		old := w.Link("a", "b").ID
		// Node b insists that it has no such connection, and lists it.
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			if call.NodeID != b.ID() || len(call.Command.GetRoutesToSet()) == 0 {
				return nil
			}
			routes := call.Command.GetRoutesToSet()
			call.Command = &controllerpb.ConfigurationCommand{}
			return func(answer *southbound.Answer) {
				answer.Ack = &controllerpb.ConfigurationCommandAck{}
				for _, route := range routes {
					answer.Ack.RoutesStatus = append(answer.Ack.RoutesStatus, &controllerpb.RouteAck{
						Route: route, ErrorMsg: fmt.Sprintf("Connection with link_id %s not found", route.GetLinkId()),
					})
				}
			}
		})
		w.Network.Node("a/n").Announce(world.Name("z"))
		w.Eventually("the link is replaced", time.Minute, func() error {
			if w.Link("a", "b").ID == old {
				return errors.New("it is not")
			}
			return nil
		})
		former, ok := w.View().Link(old)
		if !ok || !strings.Contains(former.StatusMessage, "ends disagree") {
			t.Errorf("the old link says %+v", former)
		}
		w.Taps.Set(nil)
		w.Settle()
	})
}

func TestTopologyChangeRemovesLinksAtTheNodes(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		for _, group := range []string{"a", "b", "c"} {
			w.Join(group, "n").Announce(world.Name("app-" + group))
		}
		w.Settle()
		kept := w.Link("a", "b").ID
		w.SetTopology(world.Segment("default", "a~b"))
		start := time.Now()
		w.Converge()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if links := w.Network.Links(); len(links) != 1 || links[0].ID != kept {
			t.Errorf("connections left are %v", links)
		}
		w.SetTopology()
		w.Converge()
		if links := w.Network.Links(); len(links) != 0 {
			t.Errorf("connections left are %v", links)
		}
		w.SetTopology(world.Segment("default", "*~*"))
		w.Settle()
	})
}

func TestUnknownConnections(t *testing.T) {
	foreign := &fsm.Link{ID: "5f3c2b1a-8d4e-4f60-9a7b-1c2d3e4f5a6b", Endpoint: "n.b.example:1"}
	dial := &controllerpb.ConfigurationCommand{
		ConnectionsToCreate: []*controllerpb.Connection{southbound.Connection(foreign, southbound.ClientConfig(foreign, nil))},
	}
	for _, detection := range []bool{true, false} {
		t.Run(fmt.Sprintf("orphan detection %v", detection), func(t *testing.T) {
			options := world.Options{}
			options.Reconciler.OrphanDetection = detection
			world.Run(t, options, func(t *testing.T, w *world.World) {
				w.Join("a", "n")
				w.Join("b", "n")
				w.Settle()
				if answer := w.Push("a/n", dial); answer.Err != nil || !answer.Ack.GetConnectionsStatus()[0].GetSuccess() {
					t.Fatalf("dial: %+v", answer)
				}
				pass(3 * time.Minute)
				kept := false
				for _, link := range w.Network.Links() {
					kept = kept || link.ID == foreign.ID
				}
				if kept == detection {
					t.Errorf("the connection was kept: %v", kept)
				}
			})
		})
	}
}

func TestLinkOfThisClusterThatNobodyWantsIsRemoved(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		w.Join("a", "n")
		w.Join("b", "n")
		w.Settle()
		leftover := *w.Link("a", "b")
		leftover.ID = leftover.ID[:len(leftover.ID)-4] + "0000"
		leftover.Endpoint = "n.b.example:1"
		w.Push("a/n", &controllerpb.ConfigurationCommand{
			ConnectionsToCreate: []*controllerpb.Connection{southbound.Connection(&leftover, southbound.ClientConfig(&leftover, nil))},
		})
		w.Settle()
	})
}

func TestLinkWithCredentialsLeavesTheOthersAlone(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a := w.Join("a", "n", world.NoExternal, func(o *dataplane.NodeOptions) {
			o.OutboundCredentials = []string{"https://n.secure.example:1"}
		})
		a.Announce(world.Name("x"))
		w.Join("plain", "n").Announce(world.Name("y"))
		w.Settle()
		before := w.Link("a", "plain")
		secure := w.Join("secure", "n", func(o *dataplane.NodeOptions) {
			o.TLSRequired, o.AuthMethod = true, controllerpb.AuthMethod_AUTH_METHOD_BASIC
		})
		secure.Announce(world.Name("z"))
		w.Settle()
		if after := w.Link("a", "plain"); after.ID != before.ID || after.SourceRevision != before.SourceRevision {
			t.Error("the plain link was made again")
		}
		id := w.Link("a", "secure").ID
		a.CloseStream()
		w.Settle()
		if now := w.Link("a", "secure").ID; now != id {
			t.Errorf("link %s became %s", id, now)
		}
	})
}

func TestLinkWithoutCredentialsForItFailsWithTheNodesWords(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		w.Join("a", "n", world.NoExternal)
		w.Join("secure", "n", func(o *dataplane.NodeOptions) {
			o.TLSRequired, o.AuthMethod = true, controllerpb.AuthMethod_AUTH_METHOD_BASIC
		})
		w.Join("plain", "n")
		w.Eventually("the other link stands", 10*time.Second, applied(w, "a", "plain"))
		w.Eventually("the link fails", 10*time.Second, func() error {
			if link := w.Link("a", "secure"); link.Status != fsm.LinkFailed || !strings.Contains(link.StatusMessage, "no local credentials") {
				return fmt.Errorf("link is %s: %s", link.Status, link.StatusMessage)
			}
			return nil
		})
	})
}

// A topology that asks for more links than an entry makes at once: the leader has the log
// go on until all are there.
func TestLinksThatAnEntryLeavesOverAreMade(t *testing.T) {
	const groups = 18
	world.Run(t, noSweep(world.Options{Topology: []*slimcppb.Segment{world.Segment("none", "x~y")}}), func(t *testing.T, w *world.World) {
		for i := range groups {
			w.Join(fmt.Sprintf("g%02d", i), "n")
		}
		w.Converge()
		var left atomic.Bool
		w.Replica().Refuse(func(command *slimcppb.Command) error {
			if command.GetMakeLinks() != nil {
				left.Store(true)
			}
			return nil
		})
		w.SetTopology(world.Segment("all", "*~*"))
		w.Settle()
		if !left.Load() {
			t.Error("one entry made all links")
		}
		links := 0
		for link := range w.View().Links() {
			if link.Status == fsm.LinkApplied {
				links++
			}
		}
		if want := groups * (groups - 1) / 2; links != want || w.View().UnlinkedGroups() > 0 {
			t.Errorf("%d links stand and %d groups are left over, not %d and 0", links, w.View().UnlinkedGroups(), want)
		}
	})
}
