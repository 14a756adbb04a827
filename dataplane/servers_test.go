package dataplane

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// twoServers starts a node with two control planes, both in the stub's hands.
func twoServers(cp *stub, network *Network) (node *Node, first, second *conversation) {
	cp.t.Helper()
	node, err := network.NewNode(NodeOptions{
		ID: "node-1", Group: "a", Servers: []Server{{"first:1"}, {"second:1"}}, Dialer: cp.dial,
	})
	if err != nil {
		cp.t.Fatal(err)
	}
	node.Announce(alice)
	if err := node.Start(); err != nil {
		cp.t.Fatal(err)
	}
	cp.latest()
	cp.mu.Lock()
	streams := cp.streams
	cp.mu.Unlock()
	if len(streams) != 2 {
		cp.t.Fatalf("the node opened %d streams, want 2", len(streams))
	}
	return node, streams[0], streams[1]
}

func TestNodeRegistersWithEveryServer(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		cp.set(func(cp *stub) { cp.streams = nil })
		node, first, second := twoServers(cp, network)
		first.accept()
		if node.Phase() != Joining {
			t.Errorf("registered with one of two, the node is %s", node.Phase())
		}
		second.accept()
		if node.Phase() != Registered {
			t.Errorf("registered with both, the node is %s", node.Phase())
		}
		for _, conv := range []*conversation{first, second} {
			sent := conv.take()
			if len(sent) != 2 || sent[0].GetRegisterNodeRequest().GetNodeId() != "node-1" || len(sent[1].GetConfigCommand().GetRoutesToSet()) != 1 {
				t.Errorf("a server got %v, want registration and replay", sent)
			}
		}

		node.Announce(bob)
		for _, conv := range []*conversation{first, second} {
			if notices := conv.notices(); len(notices) != 1 || len(notices[0].GetRoutesToSet()) != 1 {
				t.Errorf("a server heard %v of an announcement", notices)
			}
		}

		// What one told the node to do is the other's too.
		first.command(increment("link-1", "node-1.b.example:1"))
		if claims := second.notices(); len(claims) != 1 || len(claims[0].GetConnectionsReceived()) != 1 {
			t.Errorf("the other server heard %v of the link", claims)
		}
		second.command(setRoute("link-1", bob))
		ack, _ := first.command(&controllerpb.ConfigurationCommand{Reconcile: true, ConnectionsToCreate: []*controllerpb.Connection{
			stateLink("link-1", "node-1.b.example:1"),
		}})
		if len(ack.GetRoutesStatus()) != 1 || routesOver(node, "link-1") != 0 {
			t.Errorf("a full state left the other server's route: %v", ack)
		}
	})
}

// E2 for each of the streams: the end of any of them costs the outgoing links,
// and what happens meanwhile goes to those that are left.
func TestOneOfTwoServersGoesAway(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		cp.join(network, "b", "node-1")
		cp.set(func(cp *stub) { cp.streams = nil })
		node, first, second := twoServers(cp, network)
		first.accept()
		second.accept()
		first.command(increment("link-1", "node-1.b.example:1"))
		second.take()

		cp.set(func(cp *stub) { cp.down = true })
		first.end(nil)
		if len(network.Links()) != 0 {
			t.Error("an outgoing link survived the end of a stream")
		}
		second.take()
		node.Announce(bob)
		if notices := second.notices(); len(notices) != 1 {
			t.Errorf("the server that is left heard %v", notices)
		}
		cp.set(func(cp *stub) { cp.down = false })
		pass(3 * time.Second)
		again := cp.latest()
		// The announcement was taken: nothing waits behind the registration.
		if sent := again.take(); len(sent) != 1 || sent[0].GetRegisterNodeRequest() == nil {
			t.Errorf("the node came back with %v", sent)
		}
		again.accept()
		if node.Phase() != Registered || cp.opened() != 3 {
			t.Errorf("the node is %s after %d streams", node.Phase(), cp.opened())
		}
	})
}

// A server that cannot be reached at the start keeps those after it waiting.
func TestServersAreConnectedOneAfterAnother(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		var reachable atomic.Bool
		node, err := network.NewNode(NodeOptions{
			ID: "node-1", Group: "a", Servers: []Server{{"first:1"}, {"second:1"}},
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				if address == "first:1" && !reachable.Load() {
					return nil, net.ErrClosed
				}
				return cp.dial(ctx, address)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if cp.opened() != 0 {
			t.Fatal("the second server was reached before the first")
		}
		reachable.Store(true)
		pass(3 * time.Second)
		if cp.latest(); cp.opened() != 2 {
			t.Errorf("%d streams, want one to each server", cp.opened())
		}
	})
}

func TestNodeGivesOneServerUpAndSaysGoodbyeToAll(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		node, first, second := twoServers(cp, network)
		first.answer(&controllerpb.RegisterNodeResponse{})
		second.accept()
		if node.Phase() != Lost || !errors.Is(node.GaveUp(), ErrRejected) {
			t.Errorf("refused by one, the node is %s: %v", node.Phase(), node.GaveUp())
		}
		second.take()
		result := make(chan error, 1)
		go func() { result <- node.Deregister(context.Background()) }()
		sent := second.take()
		if len(sent) != 1 || sent[0].GetDeregisterNodeRequest() == nil {
			t.Fatalf("the other server heard %v", sent)
		}
		second.send(&controllerpb.ControlMessage{MessageId: "bye", Payload: &controllerpb.ControlMessage_DeregisterNodeResponse{
			DeregisterNodeResponse: &controllerpb.DeregisterNodeResponse{Success: true},
		}})
		if err := <-result; !errors.Is(err, ErrStreamEnded) {
			t.Errorf("one of the goodbyes was not possible: %v", err)
		}
	})
}
