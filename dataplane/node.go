package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// Errors of a Node.
var (
	// ErrStopped: the node's process does not run.
	ErrStopped = errors.New("node is stopped")
	// ErrRunning: the node's process runs already.
	ErrRunning = errors.New("node is running")
	// ErrStart: at process start the control plane accepted the connection but
	// not the stream. A real node's process exits.
	ErrStart = errors.New("failed to start")
	// ErrReconnect: the same at a reconnect.
	ErrReconnect = errors.New("failed to reconnect to control plane")
	// ErrHandshake: the stream ended, or stayed silent, before the answer to the
	// registration.
	ErrHandshake = errors.New("registration handshake failed")
	// ErrRejected: the control plane answered the registration with a refusal.
	ErrRejected = errors.New("registration rejected by control plane")
	// ErrPanicked: a route without one of the parts of its name killed the
	// control task.
	ErrPanicked = errors.New("control task panicked")
	// ErrStreamEnded: the stream ended before an answer.
	ErrStreamEnded = errors.New("control stream ended")
)

// NodeOptions describe one node.
type NodeOptions struct {
	ID    string
	Group string // empty: the node is in none

	Endpoint         string // "host:port" that nodes of the group can dial
	ExternalEndpoint string // the one for all others; empty: none; may equal Endpoint
	TLSRequired      bool   // links to this node use TLS
	AuthMethod       controllerpb.AuthMethod
	// LocalApplications: the applications live in the node's process (LOCAL)
	// instead of behind connections (EDGE).
	LocalApplications bool
	// Credentials returns the text of a registration's credentials; nil: none.
	Credentials func() string
	// OutboundCredentials are the endpoints, with scheme, that the node has
	// credentials for when a link asks for some.
	OutboundCredentials []string

	// Servers are the control planes. The node registers with each of them, sends
	// its notices to all and obeys all.
	Servers []Server
	TLS     *tls.Config // nil: plain TCP
	// Dialer replaces TCP to Servers, with TLS still on top of it.
	Dialer      func(ctx context.Context, address string) (net.Conn, error)
	DialOptions []grpc.DialOption
	// ReconnectForever makes the node try again where a real one gives up for good.
	ReconnectForever bool

	Logger hclog.Logger // nil: silent
}

// Server is the endpoint of one control plane: the addresses behind its name,
// "host:port" each, tried in order at every connect.
type Server []string

func (o NodeOptions) fullID() string {
	if o.Group == "" {
		return o.ID
	}
	return o.Group + "/" + o.ID
}

func (o NodeOptions) appType() controllerpb.ConnectionType {
	if o.LocalApplications {
		return local
	}
	return edge
}

// Node is a data-plane node of a Network. It outlives its process: Kill and
// Start are a crash and a restart, and its applications come back with it.
type Node struct {
	options  NodeOptions
	datapath *memoryDatapath
	logger   hclog.Logger

	dropAcks   atomic.Bool
	loseClaims atomic.Bool
	stall      gate
	// datapathHeld: the datapath does not answer its controller.
	datapathHeld gate

	lifecycle sync.Mutex // serialises Start, Kill and changes of the names
	names     []*dataplanepb.Name
	process   atomic.Pointer[controller] // nil: stopped
}

// NewNode adds a stopped node to the network.
func (w *Network) NewNode(options NodeOptions) (*Node, error) {
	if options.ID == "" {
		return nil, errors.New("a node needs an id")
	}
	if slices.ContainsFunc(options.Servers, func(s Server) bool { return len(s) == 0 }) {
		return nil, fmt.Errorf("node %s: a control plane without an address: want at least one, \"host:port\"", options.fullID())
	}
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	node := &Node{
		options:  options,
		datapath: w.newDatapath(options),
		logger:   options.Logger.With("node", options.fullID()),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[options.fullID()] != nil {
		return nil, fmt.Errorf("there is a node %s already", options.fullID())
	}
	w.nodes[options.fullID()] = node
	w.datapaths[options.fullID()] = node.datapath
	return node, nil
}

// ID is the node's full id, GROUP/ID.
func (n *Node) ID() string { return n.options.fullID() }

// Group is the node's group.
func (n *Node) Group() string { return n.options.Group }

// Start starts the node's process. It returns at once; the node connects and
// registers by itself.
func (n *Node) Start() error {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	if n.process.Load() != nil {
		return fmt.Errorf("node %s: %w", n.ID(), ErrRunning)
	}
	c := newController(n, n.datapath)
	if err := n.datapath.Start(c); err != nil {
		c.cancel()
		return err
	}
	for _, name := range n.names {
		n.datapath.AttachName(name)
	}
	// The process just started: what its applications did before it had a
	// controller reached nobody, and the replay reports it.
	c.clearQueue()
	n.process.Store(c)
	go c.run()
	return nil
}

// Kill ends the node's process as SIGKILL does: its connections end, nothing is
// said. It returns when nothing of the process is left.
func (n *Node) Kill() {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	if c := n.process.Swap(nil); c != nil {
		c.stop()
		n.datapath.Stop()
		<-c.done
	}
}

// Announce adds an application with that name to the node.
func (n *Node) Announce(name *dataplanepb.Name) {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	n.names = append(n.names, name)
	n.datapath.AttachName(name)
}

// Withdraw ends one application with that name and reports whether there was one.
func (n *Node) Withdraw(name *dataplanepb.Name) bool {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	at := slices.IndexFunc(n.names, func(other *dataplanepb.Name) bool { return keyOf(other) == keyOf(name) })
	if at < 0 {
		return false
	}
	n.names = slices.Delete(n.names, at, at+1)
	n.datapath.DetachName(name)
	return true
}

// Names returns the names of the node's applications.
func (n *Node) Names() []*dataplanepb.Name {
	n.lifecycle.Lock()
	defer n.lifecycle.Unlock()
	return slices.Clone(n.names)
}

// Deregister says goodbye on each of the node's streams, obeys what still comes
// until the answer, and ends the process, also without one.
func (n *Node) Deregister(ctx context.Context) error {
	c := n.process.Load()
	if c == nil {
		return fmt.Errorf("node %s: %w", n.ID(), ErrStopped)
	}
	err := c.deregister(ctx)
	n.Kill()
	if err != nil {
		return fmt.Errorf("node %s: deregister: %w", n.ID(), err)
	}
	return nil
}

// Phase is where a node stands with its control plane; with several, with the one
// that it is furthest from.
type Phase string

// The phases of a node.
const (
	Stopped    Phase = "stopped"    // no process
	Connecting Phase = "connecting" // the network connection, or the stream, is not up
	Joining    Phase = "joining"    // the answer to the registration is awaited
	Registered Phase = "registered"
	Lost       Phase = "lost" // gave up for good; see GaveUp
)

// Phase returns the node's phase.
func (n *Node) Phase() Phase {
	if c := n.process.Load(); c != nil {
		phase, _, _ := c.status()
		return phase
	}
	return Stopped
}

// GaveUp returns why the node will never talk to one of its control planes again,
// ErrStart to ErrPanicked, or nil.
func (n *Node) GaveUp() error {
	if c := n.process.Load(); c != nil {
		_, _, failure := c.status()
		return failure
	}
	return nil
}

// Panicked reports whether a malformed route killed the node's control task.
func (n *Node) Panicked() bool {
	return errors.Is(n.GaveUp(), ErrPanicked)
}

// WaitRegistered waits until the node is registered with every control plane. It fails at once when the
// node gives up or is stopped.
func (n *Node) WaitRegistered(ctx context.Context) error {
	c := n.process.Load()
	if c == nil {
		return fmt.Errorf("node %s: %w", n.ID(), ErrStopped)
	}
	for {
		phase, changed, failure := c.status()
		switch phase {
		case Registered:
			return nil
		case Lost:
			return fmt.Errorf("node %s: %w", n.ID(), failure)
		}
		select {
		case <-changed:
		case <-c.done:
			return fmt.Errorf("node %s: %w", n.ID(), ErrStopped)
		case <-ctx.Done():
			return fmt.Errorf("node %s is %s: %w", n.ID(), phase, ctx.Err())
		}
	}
}

// Connections returns the node's connection table.
func (n *Node) Connections() []Connection { return n.datapath.Connections() }

// Table returns the node's forwarding table.
func (n *Node) Table() []TableEntry { return n.datapath.Table() }

// CloseStream cuts the node's control streams, as a broken network does. A
// registered node reconnects at once.
func (n *Node) CloseStream() {
	if c := n.process.Load(); c != nil {
		c.cutStreams()
	}
}

// Stall makes the node stop, or go on, reading and answering; its traffic and
// its announcements go on.
func (n *Node) Stall(on bool) { n.stall.set(on) }

// DropAcks makes the node obey commands without acknowledging them.
func (n *Node) DropAcks(on bool) { n.dropAcks.Store(on) }

// LoseClaims makes the node keep quiet about negotiated links.
func (n *Node) LoseClaims(on bool) { n.loseClaims.Store(on) }

// RefuseConnections makes the node's endpoints refuse new links.
func (n *Node) RefuseConnections(on bool) { n.datapath.setRefusing(on) }

// gate is a switch that goroutines can wait for.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil: open; closed when it opens again
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.opened == nil:
		g.opened = make(chan struct{})
	case !shut && g.opened != nil:
		close(g.opened)
		g.opened = nil
	}
}

func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened == nil
}

// pass blocks while the gate is shut. It returns early, with the context's
// error, when that ends.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		opened := g.opened
		g.mu.Unlock()
		if opened == nil {
			return ctx.Err()
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
