package world

import (
	"fmt"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// AddNode makes a node of a group, stopped. Its endpoints are ID.GROUP.internal:1
// and ID.GROUP.example:1 unless the changes say otherwise.
func (w *World) AddNode(group, id string, changes ...func(*dataplane.NodeOptions)) *dataplane.Node {
	w.t.Helper()
	options := dataplane.NodeOptions{
		ID: id, Group: group, Servers: []dataplane.Server{{"control-plane"}}, Dialer: w.Dial, Logger: w.logger.Named("dataplane"),
		Endpoint:         fmt.Sprintf("%s.%s.internal:1", id, group),
		ExternalEndpoint: fmt.Sprintf("%s.%s.example:1", id, group),
	}
	for _, change := range changes {
		change(&options)
	}
	node, err := w.Network.NewNode(options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes = append(w.nodes, node)
	return node
}

// Join adds a node and starts it.
func (w *World) Join(group, id string, changes ...func(*dataplane.NodeOptions)) *dataplane.Node {
	w.t.Helper()
	node := w.AddNode(group, id, changes...)
	w.Start(node)
	return node
}

// NoExternal leaves a node without an endpoint that other groups can dial.
func NoExternal(options *dataplane.NodeOptions) { options.ExternalEndpoint = "" }

// Start starts a node's process.
func (w *World) Start(node *dataplane.Node) {
	w.t.Helper()
	if err := node.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// Name is the name of one application; the same text gives the same instance.
func Name(text string) *dataplanepb.Name { return dataplane.InstanceName("org", "ns", text) }

// Key is the name as the state has it.
func Key(name *dataplanepb.Name) fsm.Name {
	key, err := fsm.ParseName(name)
	if err != nil {
		panic(err) // only a test's own typing error gets here
	}
	return key
}

// Link returns the live link of two groups.
func (w *World) Link(a, b string) *fsm.Link {
	w.t.Helper()
	link, ok := w.View().LinkBetween(a, b)
	if !ok {
		w.t.Fatalf("there is no link %s~%s", a, b)
	}
	return link
}

// Record returns a node's record in the state.
func (w *World) Record(id string) *fsm.Node {
	w.t.Helper()
	node, ok := w.View().Node(id)
	if !ok {
		w.t.Fatalf("the state has no node %s", id)
	}
	return node
}

// Push sends a node a command behind the reconciler's back and returns its
// answer.
func (w *World) Push(nodeID string, command *controllerpb.ConfigurationCommand) southbound.Answer {
	w.t.Helper()
	session, ok := w.Record(nodeID).CommandSession()
	if !ok {
		w.t.Fatalf("node %s has no session", nodeID)
	}
	answers := make(chan southbound.Answer, 1)
	call := southbound.Call{NodeID: nodeID, Session: session.Name, Term: w.View().LeaderTerm(), Command: command}
	w.Southbound().Call(call, func(answer southbound.Answer) { answers <- answer })
	return <-answers
}
