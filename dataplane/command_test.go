package dataplane

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

func TestIncrements(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1", bob)
		nodeA, convA := cp.join(network, "a", "node-1")

		ack, claims := convA.command(increment("link-1", "node-1.b.example:1"))
		wantProto(t, ack, &controllerpb.ConfigurationCommandAck{
			OriginalMessageId: "command",
			ConnectionsStatus: []*controllerpb.ConnectionAck{{LinkId: "link-1", Success: true}},
		})
		linkID := "link-1"
		claim := &controllerpb.ConfigurationCommand{ConnectionsReceived: []*controllerpb.ConnectionEntry{{ConnectionType: remote, LinkId: &linkID, Direction: incoming}}}
		for _, got := range [][]*controllerpb.ConfigurationCommand{claims, convB.notices()} {
			if len(got) != 1 {
				t.Fatalf("claims %v, want one from each end", got)
			}
			wantProto(t, got[0], claim)
		}
		if ack, claims := convA.command(increment("link-1", "nowhere:1")); !ack.GetConnectionsStatus()[0].GetSuccess() || len(claims) != 0 {
			t.Errorf("a live link was dialled again: %v, %v", ack, claims)
		}

		ack, notices := convA.command(setRoute("link-1", bob))
		wantProto(t, ack, &controllerpb.ConfigurationCommandAck{
			OriginalMessageId: "command",
			RoutesStatus:      []*controllerpb.RouteAck{{Route: routes("link-1", bob)[0], Success: true}},
		})
		if len(notices) != 0 {
			t.Errorf("a route that was ordered was announced: %v", notices)
		}
		convB.command(setRoute("link-1", alice))
		if routesOver(nodeA, "link-1") != 1 || routesOver(nodeB, "link-1") != 1 {
			t.Error("routes are not in the tables")
		}
		ack, _ = convA.command(deleteRoute("link-1", bob))
		if !ack.GetRoutesStatus()[0].GetSuccess() || routesOver(nodeA, "link-1") != 0 {
			t.Errorf("delete: %v", ack)
		}
	})
}

func TestSectionsInOrder(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		command := increment("link-2", "node-1.b.example:1")
		command.ConnectionsToDelete = []string{"link-1"}
		command.RoutesToSet = routes("link-2", alice, bob)
		command.RoutesToDelete = routes("link-2", alice)
		ack, _ := conv.command(command)
		for _, status := range ack.GetConnectionsStatus() {
			if !status.GetSuccess() {
				t.Errorf("%v", status)
			}
		}
		for _, status := range ack.GetRoutesStatus() {
			if !status.GetSuccess() {
				t.Errorf("%v", status)
			}
		}
		if len(ack.GetConnectionsStatus()) != 2 || ack.GetConnectionsStatus()[0].GetLinkId() != "link-1" || len(ack.GetRoutesStatus()) != 3 {
			t.Errorf("acknowledgement is %v", ack)
		}
		if links := network.Links(); len(links) != 1 || links[0].ID != "link-2" || routesOver(node, "link-2") != 1 {
			t.Errorf("links %v, %d routes", links, routesOver(node, "link-2"))
		}
	})
}

func TestErrorTexts(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		_, conv := cp.join(network, "a", "node-1")
		create := func(config string) *controllerpb.ConfigurationCommand {
			return &controllerpb.ConfigurationCommand{ConnectionsToCreate: []*controllerpb.Connection{{LinkId: "x", ConfigData: config}}}
		}
		state := func(config string) *controllerpb.ConfigurationCommand {
			command := create(config)
			command.Reconcile = true
			return command
		}
		cases := []struct {
			command *controllerpb.ConfigurationCommand
			want    string
		}{
			{&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{"x"}}, "Connection with link_id x not found"},
			{&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{""}}, "link_id cannot be empty"},
			{create("no json"), "Failed to parse config: expected"},
			{create("{}"), "Failed to parse config: missing field `endpoint`"},
			{create(`{"endpoint":"http://node-1.b.example:1","backoff":2000}`), "Failed to parse config: invalid type: integer `2000`, expected internally tagged enum BackoffConfig"},
			{state("{}"), "Failed to parse config: missing field `endpoint`"},
			{state(`{"endpoint":"http://node-1.b.example:1","tls_required":false}`), "Failed to parse config: missing field `auth_method`"},
			{state(`{"endpoint":"http://x","tls_required":false,"auth_method":"basic"}`), "no local credentials configured for http://x"},
			{state(`{"endpoint":"http://x","tls_required":false,"auth_method":{"spire":{"trust_domain":"x"}}}`), "Failed to merge connection config to client config: TLS needs to be enabled to use Spire"},
			{setRoute("x", bob), "Connection with link_id x not found"},
			{&controllerpb.ConfigurationCommand{RoutesToSet: []*controllerpb.Route{{Name: bob}}}, "Connection with link_id <none> not found"},
			{&controllerpb.ConfigurationCommand{Reconcile: true, RoutesToSet: routes("x", bob)}, "connection not found"},
		}
		for _, test := range cases {
			ack, _ := conv.command(test.command)
			var got string
			for _, status := range ack.GetConnectionsStatus() {
				got += status.GetErrorMsg()
			}
			for _, status := range ack.GetRoutesStatus() {
				got += status.GetErrorMsg()
			}
			if !strings.HasPrefix(got, test.want) {
				t.Errorf("%v\nanswered %q, want %q", test.command, got, test.want)
			}
		}
		if len(network.Links()) != 0 {
			t.Errorf("links %v", network.Links())
		}
	})
}

// A configuration that does not say "remote" makes an application's connection:
// acknowledged, and no link.
func TestConfigOfTheWrongFormMakesAnEdgeConnection(t *testing.T) {
	for _, config := range []string{
		stateLink("link-1", "node-1.b.example:1").GetConfigData(),
		`{"endpoint":"http://node-1.b.example:1","link_id":"link-1"}`,
	} {
		inBubble(t, func(cp *stub, network *Network) {
			t := cp.t
			cp.join(network, "b", "node-1")
			_, conv := cp.join(network, "a", "node-1")
			ack, notices := conv.command(&controllerpb.ConfigurationCommand{ConnectionsToCreate: []*controllerpb.Connection{{LinkId: "link-1", ConfigData: config}}})
			if !ack.GetConnectionsStatus()[0].GetSuccess() || len(notices) != 0 || len(network.Links()) != 0 {
				t.Fatalf("ack %v, notices %v, links %v", ack, notices, network.Links())
			}
			last := conv.connections()[1]
			if last.GetConnectionType() != edge || last.GetLinkId() == "link-1" {
				t.Errorf("connection is %v", last)
			}
		})
	}
}

func TestBoundedDial(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		_, conv := cp.join(network, "a", "node-1")
		command := increment("dead", "nowhere.example:1")
		command.ConnectionsToCreate = append(command.ConnectionsToCreate, increment("good", "node-1.b.example:1").ConnectionsToCreate...)
		conv.send(&controllerpb.ControlMessage{MessageId: "command", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: command}})
		conv.send(&controllerpb.ControlMessage{MessageId: "list", Payload: &controllerpb.ControlMessage_ConnectionListRequest{}})
		pass(999 * time.Millisecond)
		if got := conv.take(); len(got) != 0 {
			t.Fatalf("the dialling node said %v", got)
		}
		pass(time.Millisecond)
		var ack *controllerpb.ConfigurationCommandAck
		listed := false
		for _, message := range conv.take() {
			listed = listed || message.GetConnectionListResponse() != nil
			if got := message.GetConfigCommandAck(); got != nil {
				ack = got
			}
		}
		if !listed {
			t.Error("the list request was not answered")
		}
		wantProto(t, ack, &controllerpb.ConfigurationCommandAck{OriginalMessageId: "command", ConnectionsStatus: []*controllerpb.ConnectionAck{
			{LinkId: "dead", ErrorMsg: "Connection failed: configuration error"},
			{LinkId: "good", Success: true},
		}})
	})
}

func TestUnboundedDialWedgesTheNode(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		target, _ := cp.join(network, "b", "node-1")
		target.RefuseConnections(true)
		_, conv := cp.join(network, "a", "node-1")
		conv.send(&controllerpb.ControlMessage{MessageId: "command", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: &controllerpb.ConfigurationCommand{
			Reconcile: true, ConnectionsToCreate: []*controllerpb.Connection{stateLink("link-1", "node-1.b.example:1")},
		}}})
		pass(time.Hour)
		if got := conv.take(); len(got) != 0 {
			t.Fatalf("the wedged node said %v", got)
		}
		conv.end(nil)
		if cp.opened() != 2 {
			t.Fatal("the wedged node noticed the end of its stream")
		}
		target.RefuseConnections(false)
		pass(time.Second)
		if cp.opened() != 3 {
			t.Errorf("%d streams, want the node back", cp.opened())
		}
	})
}

func TestWhoCanBeDialled(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		cp.start(network, NodeOptions{ID: "tls", Group: "b", Endpoint: "tls:1", ExternalEndpoint: "tls:1", TLSRequired: true})
		cp.latest().accept()
		_, conv := cp.join(network, "a", "node-1")
		for endpoint, want := range map[string]bool{
			"node-1.b.example:1":  true,
			"node-1.b.internal:1": false, // another group's inside
			"tls:1":               false, // without TLS
		} {
			conv.send(&controllerpb.ControlMessage{MessageId: "command", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: increment(endpoint, endpoint)}})
			pass(time.Second)
			synctest.Wait()
			for _, message := range conv.take() {
				if ack := message.GetConfigCommandAck(); ack != nil && ack.GetConnectionsStatus()[0].GetSuccess() != want {
					t.Errorf("%s: %v, want success %v", endpoint, ack, want)
				}
			}
		}
	})
}

func TestFullState(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		cp.join(network, "c", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-b", "node-1.b.example:1"))
		conv.command(setRoute("link-b", alice, bob))

		carol := NewName("org", "ns", "carol", 5, 6)
		ack, notices := conv.command(&controllerpb.ConfigurationCommand{
			Reconcile: true,
			ConnectionsToCreate: []*controllerpb.Connection{
				{LinkId: "link-b", ConfigData: "{}"}, // kept
				stateLink("link-c", "node-1.c.example:1"),
				{ConfigData: "nobody looks at it"},
			},
			RoutesToSet: append(routes("link-b", alice, alice), routes("link-c", carol)...),
			// Ignored in a full state:
			ConnectionsToDelete: []string{"link-b"}, RoutesToDelete: routes("link-b", alice),
		})
		wantProto(t, ack, &controllerpb.ConfigurationCommandAck{
			OriginalMessageId: "command",
			ConnectionsStatus: []*controllerpb.ConnectionAck{{LinkId: "link-b", Success: true}, {LinkId: "link-c", Success: true}},
			RoutesStatus: []*controllerpb.RouteAck{
				{Route: &controllerpb.Route{Name: bob}, Success: true}, // removed
				{Route: routes("link-b", alice)[0], Success: true},
				{Route: routes("link-c", carol)[0], Success: true},
			},
		})
		if len(notices) != 1 {
			t.Errorf("notices %v, want the claim of link-c", notices)
		}
		if routesOver(node, "link-b") != 1 || routesOver(node, "link-c") != 1 {
			t.Errorf("table is %v", node.Table())
		}

		ack, notices = conv.command(&controllerpb.ConfigurationCommand{Reconcile: true})
		if len(ack.GetConnectionsStatus()) != 2 || len(network.Links()) != 0 || len(notices) != 2 {
			t.Errorf("an empty state: ack %v, links %v, notices %v", ack, network.Links(), notices)
		}
	})
}

// Unlike an increment, a full state does not set again what it set before.
func TestFullStateSetsARouteOnce(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		for range 3 {
			conv.command(&controllerpb.ConfigurationCommand{
				Reconcile:           true,
				ConnectionsToCreate: []*controllerpb.Connection{stateLink("link-1", "node-1.b.example:1")},
				RoutesToSet:         routes("link-1", bob),
			})
		}
		conv.command(deleteRoute("link-1", bob))
		if routesOver(node, "link-1") != 0 {
			t.Error("one delete was not enough")
		}
	})
}

// E6: in a full state {} keeps a live link and reports a dead one at once.
func TestFullStateReportsADeadLinkThatIsToBeKept(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		_, conv := cp.join(network, "a", "node-1")
		ack, _ := conv.command(&controllerpb.ConfigurationCommand{
			Reconcile: true, ConnectionsToCreate: []*controllerpb.Connection{{LinkId: "link-1", ConfigData: "{}"}},
		})
		if got := ack.GetConnectionsStatus()[0]; got.GetSuccess() || !strings.HasPrefix(got.GetErrorMsg(), "Failed to parse config") {
			t.Errorf("got %v", got)
		}
	})
}

// An accepting end that loses its stream goes on routing and cannot be made to
// stop, neither by an increment nor by a full state.
func TestGhostRouteAfterReconnect(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1")
		_, convA := cp.join(network, "a", "node-1", alice)
		convA.command(increment("link-1", "node-1.b.example:1"))
		convB.command(setRoute("link-1", alice))
		convB.end(nil)
		convB = cp.latest()
		convB.accept()
		report := convB.take()[0].GetRegisterNodeRequest().GetConnections()
		if len(report) != 2 || report[1].GetLinkId() != "link-1" || report[1].GetDirection() != incoming {
			t.Errorf("the registration reports %v", report)
		}
		if ack, _ := convB.command(&controllerpb.ConfigurationCommand{Reconcile: true}); len(ack.GetRoutesStatus()) != 0 {
			t.Errorf("full state: %v", ack)
		}
		ack, _ := convB.command(deleteRoute("link-1", alice))
		if got := ack.GetRoutesStatus()[0].GetErrorMsg(); !strings.HasPrefix(got, "Failed to unsubscribe: ack rejected by datapath: subscription id not found: ") {
			t.Errorf("delete answered %q", got)
		}
		convB.command(setRoute("link-1", alice))
		if ack, _ := convB.command(deleteRoute("link-1", alice)); !ack.GetRoutesStatus()[0].GetSuccess() {
			t.Errorf("second delete: %v", ack)
		}
		if routesOver(nodeB, "link-1") != 1 {
			t.Error("the ghost is gone")
		}
		convA.command(&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{"link-1"}})
		if routesOver(nodeB, "link-1") != 0 {
			t.Error("the ghost outlived its link")
		}
	})
}

// E4, E5: losing one link makes a node forget its names on every link.
func TestLostLinkMakesTheNodeForgetTheNameEverywhere(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		cp.join(network, "c", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		conv.command(increment("link-2", "node-1.c.example:1"))
		conv.command(setRoute("link-1", bob))
		conv.command(setRoute("link-2", bob))
		_, notices := conv.command(&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{"link-2"}})
		if len(notices) != 1 || FormatName(notices[0].GetRoutesToDelete()[0].GetName()) != FormatName(bob) || notices[0].GetRoutesToDelete()[0].LinkId != nil {
			t.Fatalf("notices %v", notices)
		}
		ack, _ := conv.command(deleteRoute("link-1", bob))
		if ack.GetRoutesStatus()[0].GetSuccess() {
			t.Error("the forgotten route was deleted")
		}
		keep := []*controllerpb.Connection{{LinkId: "link-1", ConfigData: "{}"}}
		if ack, _ := conv.command(&controllerpb.ConfigurationCommand{Reconcile: true, ConnectionsToCreate: keep}); len(ack.GetRoutesStatus()) != 0 {
			t.Errorf("a full state without it: %v", ack)
		}
		conv.command(&controllerpb.ConfigurationCommand{Reconcile: true, ConnectionsToCreate: keep, RoutesToSet: routes("link-1", bob)})
		if ack, _ := conv.command(deleteRoute("link-1", bob)); !ack.GetRoutesStatus()[0].GetSuccess() {
			t.Errorf("delete after a full state with it: %v", ack)
		}
		if routesOver(node, "link-1") != 1 {
			t.Error("the ghost is gone")
		}
	})
}

func TestRouteSetTwiceLeavesTwoRecords(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		conv.command(setRoute("link-1", bob))
		conv.command(setRoute("link-1", bob))
		if ack, _ := conv.command(deleteRoute("link-1", bob)); !ack.GetRoutesStatus()[0].GetSuccess() || routesOver(node, "link-1") != 1 {
			t.Errorf("ack %v, %d routes left, want one", ack, routesOver(node, "link-1"))
		}
	})
}

// E9: the accepting end cannot end a link; it only forgets the link's routes.
func TestDeletingALinkAtTheAcceptingEnd(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1")
		_, convA := cp.join(network, "a", "node-1")
		convA.command(increment("link-1", "node-1.b.example:1"))
		convB.command(setRoute("link-1", alice))
		ack, notices := convB.command(&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{"link-1"}})
		if !ack.GetConnectionsStatus()[0].GetSuccess() || len(notices) != 0 || len(network.Links()) != 1 {
			t.Fatalf("ack %v, notices %v, links %v", ack, notices, network.Links())
		}
		if ack, _ := convB.command(deleteRoute("link-1", alice)); ack.GetRoutesStatus()[0].GetSuccess() || routesOver(nodeB, "link-1") != 1 {
			t.Errorf("the untracked route was deleted: %v", ack)
		}
	})
}

// E8: with two connections of one link id, routes go to the older one.
func TestTwoConnectionsWithOneLinkID(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1")
		old, convOld := cp.join(network, "a", "node-1")
		_, convNew := cp.join(network, "a", "node-2")
		convOld.command(increment("link-1", "node-1.b.example:1"))
		convNew.command(increment("link-1", "node-1.b.example:1"))
		convB.command(setRoute("link-1", alice))
		convB.take()
		old.Kill()
		if got := convB.notices(); len(got) != 1 || len(got[0].GetRoutesToDelete()) != 1 {
			t.Errorf("notices %v", got)
		}
		if routesOver(nodeB, "link-1") != 0 || len(network.Links()) != 1 {
			t.Errorf("%d routes, links %v", routesOver(nodeB, "link-1"), network.Links())
		}
	})
}

func TestRouteWithoutPartsOfANamePanicsTheNode(t *testing.T) {
	for _, name := range []*dataplanepb.Name{nil, {Name: bob.GetName()}, {StrName: bob.GetStrName()}} {
		for _, reconcile := range []bool{false, true} {
			inBubble(t, func(cp *stub, network *Network) {
				t := cp.t
				cp.join(network, "b", "node-1")
				node, conv := cp.join(network, "a", "node-1")
				conv.command(increment("link-1", "node-1.b.example:1"))
				conv.send(&controllerpb.ControlMessage{MessageId: "bad", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: &controllerpb.ConfigurationCommand{
					Reconcile: reconcile, ConnectionsToCreate: []*controllerpb.Connection{{LinkId: "link-1", ConfigData: increment("link-1", "x").ConnectionsToCreate[0].ConfigData}},
					RoutesToSet: routes("link-1", name),
				}}})
				if got := conv.take(); len(got) != 0 || !node.Panicked() || conv.hasEnded() {
					t.Errorf("%v, reconcile %v: said %v, panicked %v, stream ended %v", name, reconcile, got, node.Panicked(), conv.hasEnded())
				}
			})
		}
	}
}

func TestLostClaim(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1")
		nodeB.LoseClaims(true)
		_, convA := cp.join(network, "a", "node-1")
		if _, claims := convA.command(increment("link-1", "node-1.b.example:1")); len(claims) != 1 {
			t.Errorf("the dialling end claimed %v", claims)
		}
		if got := convB.notices(); len(got) != 0 {
			t.Errorf("the accepting end said %v", got)
		}
	})
}

// A connection that is being torn down still counts: dialling its link id again
// is acknowledged, and then it is gone.
func TestDiallingALinkThatIsDying(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		network.teardown = time.Second
		cp.join(network, "b", "node-1")
		_, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		conv.command(&controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{"link-1"}})
		if ack, claims := conv.command(increment("link-1", "node-1.b.example:1")); !ack.GetConnectionsStatus()[0].GetSuccess() || len(claims) != 0 {
			t.Errorf("ack %v, claims %v", ack, claims)
		}
		pass(time.Second)
		synctest.Wait()
		if len(network.Links()) != 0 {
			t.Errorf("links %v", network.Links())
		}
	})
}

// A node that forgets keeps its links and says nothing; the full state brings the
// routes back.
func TestForgottenRoutesComeBackWithAFullState(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		conv.command(setRoute("link-1", alice, bob))
		node.Forget()
		if said := conv.take(); len(said) != 0 || routesOver(node, "link-1") != 0 || len(network.Links()) != 1 {
			t.Fatalf("said %v, %d routes and %d links are left", said, routesOver(node, "link-1"), len(network.Links()))
		}
		conv.command(&controllerpb.ConfigurationCommand{
			Reconcile: true, RoutesToSet: routes("link-1", alice, bob),
			ConnectionsToCreate: []*controllerpb.Connection{stateLink("link-1", "node-1.b.example:1")},
		})
		if got := routesOver(node, "link-1"); got != 2 || len(network.Doubled()) != 0 {
			t.Errorf("%d routes, doubled %v", got, network.Doubled())
		}
	})
}

// Increments wait 30 s for each subscription, a full state for all at once.
func TestSubscriptionsTimeOut(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		conv.command(increment("link-1", "node-1.b.example:1"))
		node.HoldSubscriptions(true)
		state := &controllerpb.ConfigurationCommand{
			Reconcile: true, RoutesToSet: routes("link-1", alice, bob),
			ConnectionsToCreate: []*controllerpb.Connection{stateLink("link-1", "node-1.b.example:1")},
		}
		for _, c := range []struct {
			command *controllerpb.ConfigurationCommand
			takes   time.Duration
		}{{setRoute("link-1", alice, bob), 60 * time.Second}, {state, 30 * time.Second}} {
			conv.send(&controllerpb.ControlMessage{MessageId: "held", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: c.command}})
			pass(c.takes - time.Second)
			if said := conv.take(); len(said) != 0 {
				t.Fatalf("answered before its time: %v", said)
			}
			pass(2 * time.Second)
			said := conv.take()
			if len(said) != 1 || len(said[0].GetConfigCommandAck().GetRoutesStatus()) != 2 {
				t.Fatalf("answered with %v", said)
			}
			for _, status := range said[0].GetConfigCommandAck().GetRoutesStatus() {
				if status.GetSuccess() || status.GetErrorMsg() != "Failed to subscribe: subscription ack timed out" {
					t.Errorf("got %v", status)
				}
			}
		}
		node.HoldSubscriptions(false)
		if ack, _ := conv.command(state); len(ack.GetRoutesStatus()) != 2 || routesOver(node, "link-1") != 2 {
			t.Errorf("when the datapath answers again: %v", ack)
		}
	})
}
