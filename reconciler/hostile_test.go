package reconciler_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// What a node answers may be malformed in every way that its messages can be. It
// costs neither the node nor anybody else their driver.
func TestMalformedAnswersHoldUpNobody(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Join("c", "n")
		w.Settle()
		half := world.Name("half")
		routes := []*controllerpb.Route{
			nil, {}, {Name: &dataplanepb.Name{}},
			{Name: &dataplanepb.Name{Name: half.Name}}, {Name: &dataplanepb.Name{StrName: half.StrName}},
		}
		var answers atomic.Int64
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			if call.NodeID != b.ID() {
				return nil
			}
			return func(answer *southbound.Answer) {
				answers.Add(1)
				if answer.Ack != nil {
					answer.Ack.RoutesStatus = append(answer.Ack.RoutesStatus, nil, &controllerpb.RouteAck{ErrorMsg: "no route"})
					answer.Ack.ConnectionsStatus = append(answer.Ack.ConnectionsStatus, nil, &controllerpb.ConnectionAck{})
					for _, route := range routes {
						answer.Ack.RoutesStatus = append(answer.Ack.RoutesStatus, &controllerpb.RouteAck{Route: route, ErrorMsg: "bad"})
					}
				}
				if call.ListConnections {
					answer.Connections = append(answer.Connections, nil, &controllerpb.ConnectionEntry{})
				}
				if call.ListRoutes {
					answer.Routes = append(answer.Routes, nil, &controllerpb.RouteEntry{}, &controllerpb.RouteEntry{Name: &dataplanepb.Name{}},
						&controllerpb.RouteEntry{Name: &dataplanepb.Name{Name: half.Name}})
				}
			}
		})
		a.Announce(world.Name("x"))
		b.Announce(world.Name("y"))
		b.CloseStream()
		w.Converge()
		if answers.Load() == 0 {
			t.Error("no answer was malformed")
		}
		w.Taps.Set(nil)
		a.Withdraw(world.Name("x"))
		w.Settle()
	})
}

// The last name goes while the command that routes it is at a node that does not
// answer: when the node answers, the route is taken away again.
func TestNameThatGoesWhileItsRouteIsBeingSet(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		x := world.Name("x")
		b.Stall(true)
		w.Taps.Record()
		a.Announce(x)
		pass(time.Second)
		sent := 0
		for _, command := range w.Taps.Commands(b.ID()) {
			sent += len(command.GetRoutesToSet())
		}
		if sent != 1 {
			t.Fatalf("%d routes are under way", sent)
		}
		a.Withdraw(x)
		pass(5 * time.Second)
		b.Stall(false)
		w.Converge()
		if routes := world.Routes(b); len(routes) > 0 {
			t.Errorf("the node keeps %v", routes)
		}
		w.Settle()
	})
}

// A withdrawal was lost on its way, so the state has a name that nobody serves.
func TestLostWithdrawalIsFoundByASweep(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		w.Settle()
		x := world.Name("x")
		session, _ := w.Record(a.ID()).CommandSession()
		w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
			Session: session.Name.Proto(), Sequence: session.Sequence + 1,
			Changes: []*slimcppb.NameChange{{Name: world.Key(x).Proto()}},
		}}})
		if _, known := w.View().NameRecord(world.Key(x)); !known {
			t.Fatal("the name is not in the state")
		}
		pass(11 * time.Minute) // each tenth sweep reads the routes
		if _, known := w.View().NameRecord(world.Key(x)); known {
			t.Error("the sweeps did not find that nobody serves the name")
		}
	})
}

// A removed group's nodes are told to drop what they hold, their streams are
// ended, and they are not let in again.
func TestRemovedGroupIsEvicted(t *testing.T) {
	secret := []byte(strings.Repeat("s", fsm.MinSecretBytes))
	proving := func(group, id string) func(*dataplane.NodeOptions) {
		return func(o *dataplane.NodeOptions) {
			o.Credentials = func() string {
				token, err := auth.SignToken(secret, group, id, time.Now())
				if err != nil {
					t.Error(err)
				}
				return token
			}
		}
	}
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		config := &slimcppb.FleetConfig{RegistrationAuth: fsm.SharedSecret, Graces: world.DefaultGraces()}
		for _, group := range []string{"a", "b"} {
			config.Secrets = append(config.Secrets, &slimcppb.GroupSecret{Group: group, Secret: secret})
		}
		w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{Config: config}}})
		w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{
			Segment: fsm.DefaultSegment, GroupA: "a", GroupB: "b",
		}}})
		a, b := w.Join("a", "n", proving("a", "n")), w.Join("b", "n", proving("b", "n"))
		a.Announce(world.Name("x"))
		b.Announce(world.Name("y"))
		w.Converge()
		w.Taps.Record()
		w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: "b"}}})
		w.Eventually("the node is gone", 10*time.Second, func() error {
			if _, known := w.View().Node(b.ID()); known || b.GaveUp() == nil {
				return errors.New("it is there")
			}
			return nil
		})
		for _, connection := range b.Connections() {
			if connection.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
				t.Errorf("the evicted node keeps %+v", connection)
			}
		}
		if _, linked := w.View().LinkBetween("a", "b"); linked {
			t.Error("its link is there yet")
		}
		w.Eventually("its names are gone", 10*time.Second, func() error {
			if routes := world.Routes(a); len(routes) > 0 {
				return errors.New("node a routes them")
			}
			return nil
		})
		if a.Phase() != dataplane.Registered {
			t.Errorf("a node of another group is %s", a.Phase())
		}
	})
}
