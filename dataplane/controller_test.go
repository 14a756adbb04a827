package dataplane

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

var (
	alice = NewName("org", "ns", "alice", 1, 2)
	bob   = NewName("org", "ns", "bob", 3, 4)
)

func TestRegistrationSequence(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a", Endpoint: "in:1", ExternalEndpoint: "out:1", Credentials: func() string { return "token" }}, bob, alice)
		conv := cp.latest()
		sent := conv.take()
		if len(sent) != 1 {
			t.Fatalf("before the answer the node sent %d messages, want 1: %v", len(sent), sent)
		}
		group, external, app, appNode := "a", "out:1", appLinkID("a/node-1"), "app-of-node-1"
		wantProto(t, sent[0].GetRegisterNodeRequest(), &controllerpb.RegisterNodeRequest{
			NodeId:            "node-1",
			DomainName:        &group,
			Credentials:       "token",
			ConnectionDetails: []*controllerpb.ConnectionDetails{{Endpoint: "in:1", ExternalEndpoint: &external}},
			Connections: []*controllerpb.ConnectionEntry{
				{ConnectionType: remote, ConfigData: "{}", Direction: incoming},
				{Id: 1, ConnectionType: remote, ConfigData: "{}", Direction: incoming, LinkId: &app, PeerNodeId: &appNode},
			},
		})
		if node.Phase() != Joining {
			t.Errorf("phase is %s, want %s", node.Phase(), Joining)
		}
		conv.send(&controllerpb.ControlMessage{MessageId: "ack", Payload: &controllerpb.ControlMessage_Ack{Ack: &controllerpb.Ack{Success: true}}})
		conv.send(&controllerpb.ControlMessage{MessageId: "early", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: &controllerpb.ConfigurationCommand{}}})
		if early := conv.take(); len(early) != 0 {
			t.Errorf("the node reacted to what came before the answer: %v", early)
		}
		conv.accept()
		after := conv.take()
		if len(after) != 1 || len(after[0].GetConfigCommand().GetRoutesToSet()) != 2 {
			t.Fatalf("after the answer came %v, want one replay of two names", after)
		}
		if err := node.WaitRegistered(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestStateInTheAnswerIsAppliedUnderAnUnknownMessage(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
		conv := cp.latest()
		conv.take()
		conv.answer(&controllerpb.RegisterNodeResponse{
			Success:     true,
			Connections: []*controllerpb.Connection{stateLink("link-1", "node-1.b.example:1")},
			Routes:      routes("link-1", bob),
		})
		var ack *controllerpb.ConfigurationCommandAck
		for _, message := range conv.take() {
			if got := message.GetConfigCommandAck(); got != nil {
				ack = got
			}
		}
		if ack == nil || ack.GetOriginalMessageId() == "answer" || !ack.GetConnectionsStatus()[0].GetSuccess() || !ack.GetRoutesStatus()[0].GetSuccess() {
			t.Fatalf("acknowledgement is %v", ack)
		}
		if routesOver(node, "link-1") != 1 {
			t.Error("the route was not set")
		}
	})
}

func TestNodeGivesUp(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "no leader")
	cases := []struct {
		name    string
		prepare func(cp *stub)
		act     func(cp *stub)
		atStart error
		later   error
	}{
		{"error in place of headers", func(cp *stub) { cp.refuse = unavailable }, nil, ErrStart, ErrReconnect},
		{"connection reset", func(cp *stub) { cp.reset = true }, nil, ErrStart, ErrReconnect},
		{"error after the registration", nil, func(cp *stub) { cp.latest().end(unavailable) }, ErrHandshake, ErrHandshake},
		{"end after the registration", nil, func(cp *stub) { cp.latest().end(nil) }, ErrHandshake, ErrHandshake},
		{"refusal", nil, func(cp *stub) { cp.latest().answer(&controllerpb.RegisterNodeResponse{}) }, ErrRejected, ErrRejected},
		{"no answer in 10 s", nil, func(*stub) { pass(10 * time.Second) }, ErrHandshake, ErrHandshake},
	}
	for _, test := range cases {
		for _, reconnect := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/reconnect=%v", test.name, reconnect), func(t *testing.T) {
				inBubble(t, func(cp *stub, network *Network) {
					t := cp.t
					want := test.atStart
					prepare := func() {
						if test.prepare != nil {
							cp.set(test.prepare)
						}
					}
					var node *Node
					if reconnect {
						want = test.later
						var conv *conversation
						node, conv = cp.join(network, "a", "node-1")
						prepare()
						conv.end(nil)
					} else {
						prepare()
						node = cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
					}
					synctest.Wait()
					if test.act != nil {
						test.act(cp)
					}
					synctest.Wait()
					if err := node.GaveUp(); !errors.Is(err, want) {
						t.Fatalf("gave up with %v, want %v", err, want)
					}
					before := cp.opened()
					cp.set(func(cp *stub) { cp.refuse, cp.reset = nil, false })
					pass(time.Hour)
					if cp.opened() != before {
						t.Error("the node came back")
					}
				})
			})
		}
	}
}

func TestRefusedNodeKeepsItsStreamAndAnnounces(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
		conv := cp.latest()
		conv.answer(&controllerpb.RegisterNodeResponse{})
		conv.take()
		node.Announce(bob)
		if got := conv.notices(); len(got) != 1 || len(got[0].GetRoutesToSet()) != 1 {
			t.Errorf("announced %v", got)
		}
		conv.send(&controllerpb.ControlMessage{MessageId: "list", Payload: &controllerpb.ControlMessage_ConnectionListRequest{}})
		if got := conv.take(); len(got) != 0 {
			t.Errorf("the node answered %v", got)
		}
		if conv.hasEnded() {
			t.Error("the node ended its stream")
		}
	})
}

func TestNodeComesBack(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.set(func(cp *stub) { cp.down = true })
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
		pass(time.Hour)
		if node.Phase() != Connecting || node.GaveUp() != nil {
			t.Fatalf("a refused connection left the node %s, %v", node.Phase(), node.GaveUp())
		}
		cp.set(func(cp *stub) { cp.down = false })
		pass(time.Second)
		for i, end := range []error{nil, status.Error(codes.PermissionDenied, "go away"), status.Error(codes.Unavailable, "stopping")} {
			conv := cp.latest()
			conv.accept()
			before, start := cp.opened(), time.Now()
			conv.end(end)
			if cp.opened() != before+1 || time.Since(start) > 0 {
				t.Errorf("end %d: %d streams more after %v, want one at once", i, cp.opened()-before, time.Since(start))
			}
		}
	})
}

func TestReconnectForeverPolicy(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.set(func(cp *stub) { cp.refuse = status.Error(codes.Unavailable, "no") })
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a", ReconnectForever: true})
		pass(time.Minute)
		if node.GaveUp() != nil {
			t.Fatal(node.GaveUp())
		}
		cp.set(func(cp *stub) { cp.refuse = nil })
		pass(2 * time.Second)
		cp.latest().accept()
		if node.Phase() != Registered {
			t.Errorf("phase is %s", node.Phase())
		}
	})
}

func TestHeldBackHeadersParkTheNode(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.set(func(cp *stub) { cp.mute = true })
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
		pass(time.Hour)
		conv := cp.latest()
		if got := conv.take(); len(got) != 0 || node.GaveUp() != nil {
			t.Fatalf("the node sent %v before the headers, gave up: %v", got, node.GaveUp())
		}
		conv.accept()
		if node.Phase() != Registered {
			t.Errorf("phase is %s", node.Phase())
		}
	})
}

func TestNodeIsLostWhenTheConnectionEndsBeforeTheHeaders(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.set(func(cp *stub) { cp.mute = true })
		node := cp.start(network, NodeOptions{ID: "node-1", Group: "a"})
		cp.latest()
		cp.server.Stop()
		synctest.Wait()
		if !errors.Is(node.GaveUp(), ErrStart) {
			t.Errorf("gave up: %v", node.GaveUp())
		}
	})
}

// Losing its stream costs a node its outgoing links. What it routed over them it
// withdraws, behind the next registration, its own names included.
func TestReconnectDropsOutgoingLinks(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		_, convB := cp.join(network, "b", "node-1", bob)
		nodeA, convA := cp.join(network, "a", "node-1", alice)
		convA.command(increment("link-1", "node-1.b.example:1"))
		convA.command(setRoute("link-1", bob, alice))
		convB.command(setRoute("link-1", alice))
		convA.end(nil)
		if len(network.Links()) != 0 {
			t.Fatalf("links %v survived", network.Links())
		}
		if got := convB.notices(); len(got) != 1 || FormatName(got[0].GetRoutesToDelete()[0].GetName()) != FormatName(alice) {
			t.Errorf("the other end said %v", got)
		}
		again := cp.latest()
		sent := again.take()
		if len(sent) != 3 || sent[0].GetRegisterNodeRequest() == nil {
			t.Fatalf("reconnect brought %v, want the registration and two withdrawals", sent)
		}
		for _, message := range sent[1:] {
			if len(message.GetConfigCommand().GetRoutesToDelete()) != 1 {
				t.Errorf("behind the registration came %v", message)
			}
		}
		if got := len(sent[0].GetRegisterNodeRequest().GetConnections()); got != 2 {
			t.Errorf("reports %d connections, want its own and its application's", got)
		}
		again.accept()
		if replay := again.take(); len(replay) != 1 || len(replay[0].GetConfigCommand().GetRoutesToSet()) != 1 {
			t.Errorf("replay is %v", replay)
		}
		if routesOver(nodeA, "link-1") != 0 {
			t.Error("routes survived their link")
		}
	})
}

func TestNoticesWaitInABoundedQueue(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node, conv := cp.join(network, "a", "node-1")
		cp.set(func(cp *stub) { cp.down = true })
		conv.end(nil)
		for i := range uint64(1200) {
			node.Announce(NewName("org", "ns", "app", 0, i))
		}
		cp.set(func(cp *stub) { cp.down = false })
		pass(time.Second)
		again := cp.latest()
		sent := again.take()
		if len(sent) != 1001 {
			t.Fatalf("the node sent %d messages, want the registration and 1000 notices", len(sent))
		}
		first := sent[1].GetConfigCommand().GetRoutesToSet()[0].GetName()
		if got := keyOf(first).low; got != 200 {
			t.Errorf("the oldest notice kept is number %d, want 200", got)
		}
		again.accept()
		if replay := again.take(); len(replay) != 1 || len(replay[0].GetConfigCommand().GetRoutesToSet()) != 1200 {
			t.Errorf("replay is wrong: %d messages", len(replay))
		}
	})
}

func TestListsComeInChunks(t *testing.T) {
	for _, count := range []int{0, 1, 100, 101, 1001} {
		inBubble(t, func(cp *stub, network *Network) {
			t := cp.t
			var names []*dataplanepb.Name
			for i := range count {
				names = append(names, NewName("org", "ns", "app", 0, uint64(i)))
			}
			_, conv := cp.join(network, "a", "node-1", names...)
			conv.send(&controllerpb.ControlMessage{MessageId: "list", Payload: &controllerpb.ControlMessage_RouteListRequest{RouteListRequest: &controllerpb.RouteListRequest{}}})
			chunks := conv.take()
			if want := max(1, (count+99)/100); len(chunks) != want {
				t.Fatalf("%d names came in %d messages, want %d", count, len(chunks), want)
			}
			total, ids := 0, make(map[string]bool)
			for i, message := range chunks {
				response := message.GetRouteListResponse()
				total += len(response.GetEntries())
				ids[message.GetMessageId()] = true
				if response.GetOriginalMessageId() != "list" || response.GetDone() != (i == len(chunks)-1) {
					t.Errorf("message %d of %d: request %q, done %v", i+1, len(chunks), response.GetOriginalMessageId(), response.GetDone())
				}
			}
			if total != count || len(ids) != len(chunks) {
				t.Errorf("%d entries in all, want %d; %d message ids", total, count, len(ids))
			}
		})
	}
}

func TestListsTellTrueTypes(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		_, convA := cp.join(network, "a", "node-1", alice)
		cp.join(network, "a", "node-2")
		convA.command(increment("link-1", "node-1.b.example:1"))
		want := map[controllerpb.ConnectionType]string{local: "", edge: "app-of-node-1", peer: "node-2", remote: "node-1"}
		for _, entry := range convA.connections() {
			if id, expected := want[entry.GetConnectionType()]; !expected || entry.GetPeerNodeId() != id {
				t.Errorf("unexpected entry %v", entry)
			}
			delete(want, entry.GetConnectionType())
		}
		if len(want) != 0 {
			t.Errorf("not listed: %v", want)
		}
	})
}

func TestKillAndStart(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		nodeB, convB := cp.join(network, "b", "node-1", bob)
		_, convA := cp.join(network, "a", "node-1")
		convA.command(increment("link-1", "node-1.b.example:1"))
		convA.command(setRoute("link-1", bob))
		nodeB.Kill()
		if !convB.hasEnded() {
			t.Error("the killed node's stream is open")
		}
		if got := convA.notices(); len(got) != 1 || len(got[0].GetRoutesToDelete()) != 1 {
			t.Errorf("the other end said %v", got)
		}
		if nodeB.Phase() != Stopped {
			t.Errorf("phase is %s", nodeB.Phase())
		}
		if err := nodeB.Start(); err != nil {
			t.Fatal(err)
		}
		again := cp.latest()
		again.accept()
		sent := again.take()
		if len(sent) != 2 || len(sent[1].GetConfigCommand().GetRoutesToSet()) != 1 {
			t.Errorf("the restarted node sent %v, want registration and replay", sent)
		}
		if err := nodeB.Start(); !errors.Is(err, ErrRunning) {
			t.Errorf("second start: %v", err)
		}
	})
}

func TestDeregister(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node, conv := cp.join(network, "a", "node-1")
		result := make(chan error, 1)
		go func() { result <- node.Deregister(context.Background()) }()
		sent := conv.take()
		if len(sent) != 1 || sent[0].GetDeregisterNodeRequest().GetNode().GetId() != "node-1" {
			t.Fatalf("the node sent %v", sent)
		}
		conv.command(&controllerpb.ConfigurationCommand{Reconcile: true})
		conv.send(&controllerpb.ControlMessage{MessageId: "bye", Payload: &controllerpb.ControlMessage_DeregisterNodeResponse{
			DeregisterNodeResponse: &controllerpb.DeregisterNodeResponse{Success: true},
		}})
		conv.end(nil)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if cp.opened() != 1 || node.Phase() != Stopped {
			t.Errorf("the node is %s after %d streams", node.Phase(), cp.opened())
		}
	})
}

func TestDeregisterWithoutAnswer(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node, conv := cp.join(network, "a", "node-1")
		result := make(chan error, 1)
		go func() { result <- node.Deregister(context.Background()) }()
		conv.take()
		conv.end(nil)
		if err := <-result; !errors.Is(err, ErrStreamEnded) {
			t.Fatalf("got %v", err)
		}
		if err := node.Deregister(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("a stopped node: %v", err)
		}
	})
}

func TestCloseStreamReconnects(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node, conv := cp.join(network, "a", "node-1")
		node.CloseStream()
		if !conv.hasEnded() || cp.opened() != 2 {
			t.Fatalf("ended %v, streams %d", conv.hasEnded(), cp.opened())
		}
	})
}

func TestStallAndDroppedAcks(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		node, conv := cp.join(network, "a", "node-1")
		node.Stall(true)
		conv.send(&controllerpb.ControlMessage{MessageId: "command", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: increment("link-1", "node-1.b.example:1")}})
		node.Announce(alice)
		if got := conv.take(); len(got) != 1 || len(got[0].GetConfigCommand().GetRoutesToSet()) != 1 {
			t.Errorf("a stalled node said %v, want its announcement only", got)
		}
		node.DropAcks(true)
		node.Stall(false)
		if got := conv.take(); len(got) != 1 || len(got[0].GetConfigCommand().GetConnectionsReceived()) != 1 {
			t.Errorf("after the stall came %v, want the claim without acknowledgement", got)
		}
		if len(network.Links()) != 1 {
			t.Error("the command was not carried out")
		}
	})
}
