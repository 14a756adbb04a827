package dataplane

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// controller is one life of a node's controller, from process start to its end.
// It has a channel for each control plane that the node is configured with; what
// it was told to set is one for all of them.
type controller struct {
	node     *Node
	datapath Datapath
	ctx      context.Context // the process
	cancel   context.CancelFunc
	done     chan struct{} // closed when run has returned
	channels []*channel

	mu      sync.Mutex    // guards the following; never held while the datapath is called
	changed chan struct{} // closed and replaced at each change of a channel's phase
	leaving bool
	queue   []*controllerpb.ControlMessage
	tracked map[nameKey][]subscription
	lastID  uint64 // last subscription id drawn
}

// route is one thing that the controller was told to set: a name, compared with
// its strings, over a connection.
type route struct {
	name       identity
	connection uint64
}

// subscription is what the controller remembers of a route that it set.
type subscription struct {
	name       *dataplanepb.Name
	connection uint64
	id         uint64
}

func (s subscription) route() route { return route{identityOf(s.name), s.connection} }

func newController(n *Node, datapath Datapath) *controller {
	ctx, cancel := context.WithCancel(context.Background())
	c := &controller{
		node:     n,
		datapath: datapath,
		ctx:      ctx,
		cancel:   cancel,
		done:     make(chan struct{}),
		changed:  make(chan struct{}),
		tracked:  make(map[nameKey][]subscription),
	}
	for _, server := range n.options.Servers {
		c.channels = append(c.channels, newChannel(c, server))
	}
	return c
}

// run serves every channel until the process ends. Nodes connect to their control
// planes one after another: one that cannot be reached keeps those after it
// waiting.
func (c *controller) run() {
	defer close(c.done)
	var running sync.WaitGroup
	defer running.Wait()
	for _, ch := range c.channels {
		running.Go(ch.run)
		select {
		case <-ch.connected:
		case <-ch.failedStart:
			c.stop() // the process of a real node exits
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// dropOutgoing ends every link that a control plane made the node open and
// forgets which routes were set. Routes over incoming links stay and can never
// be deleted again.
func (c *controller) dropOutgoing() {
	for _, connection := range c.datapath.Connections() {
		if connection.Type == remote && connection.Direction == outgoing {
			// A connection that is gone already is what was wanted.
			_ = c.datapath.Disconnect(connection.ID)
		}
	}
	c.forgetRoutes()
}

// registration builds the RegisterNodeRequest. Every connection is called
// remote in it, whatever it is, the one to the node's own controller included.
func (c *controller) registration() *controllerpb.ControlMessage {
	options := c.node.options
	details := &controllerpb.ConnectionDetails{
		Endpoint:    options.Endpoint,
		TlsRequired: options.TLSRequired,
		AuthMethod:  options.AuthMethod,
	}
	if options.ExternalEndpoint != "" {
		details.ExternalEndpoint = &options.ExternalEndpoint
	}
	request := &controllerpb.RegisterNodeRequest{
		NodeId:            options.ID,
		ConnectionDetails: []*controllerpb.ConnectionDetails{details},
	}
	if options.Group != "" {
		request.DomainName = &options.Group
	}
	if options.Credentials != nil {
		request.Credentials = options.Credentials()
	}
	for _, connection := range c.datapath.Connections() {
		entry := connection.entry()
		entry.ConnectionType = remote
		request.Connections = append(request.Connections, entry)
	}
	return &controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload:   &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: request},
	}
}

// adopt applies the state in a RegisterNodeResponse as a full one. Its
// acknowledgement names a message that the control plane never sent.
func (c *controller) adopt(s *session, response *controllerpb.RegisterNodeResponse) error {
	if len(response.GetConnections()) == 0 && len(response.GetRoutes()) == 0 {
		return nil
	}
	return c.obey(s, uuid.NewString(), &controllerpb.ConfigurationCommand{
		ConnectionsToCreate: response.GetConnections(),
		RoutesToSet:         response.GetRoutes(),
		Reconcile:           true,
	})
}

// replay announces all names of the node's applications in one message.
func (c *controller) replay(s *session) {
	command := &controllerpb.ConfigurationCommand{}
	for _, entry := range c.datapath.Table() {
		for _, connection := range entry.Connections {
			if connection.Type == local || connection.Type == edge {
				command.RoutesToSet = append(command.RoutesToSet, &controllerpb.Route{Name: entry.Name})
				break
			}
		}
	}
	if len(command.RoutesToSet) > 0 {
		s.send(commandMessage(command))
	}
}

// stop ends the process.
func (c *controller) stop() {
	c.cutStreams()
	c.cancel()
}

// cutStreams breaks the connection under every session.
func (c *controller) cutStreams() {
	for _, ch := range c.channels {
		ch.cut()
	}
}

// status is where the node stands with the control plane that it is furthest
// from, and why it gave up on one, if it has.
func (c *controller) status() (phase Phase, changed <-chan struct{}, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if phase = Registered; len(c.channels) == 0 {
		phase = Connecting
	}
	for _, ch := range c.channels {
		if failure == nil {
			failure = ch.failure
		}
		if distance[ch.phase] > distance[phase] {
			phase = ch.phase
		}
	}
	return phase, c.changed, failure
}

// distance orders the phases of a channel.
var distance = map[Phase]int{Registered: 0, Joining: 1, Connecting: 2, Lost: 3}

// deregister says goodbye on every stream and waits for the answers.
func (c *controller) deregister(ctx context.Context) error {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	var failures []error
	for _, ch := range c.channels {
		failures = append(failures, ch.sayGoodbye())
	}
	for i, ch := range c.channels {
		if failures[i] == nil {
			failures[i] = ch.awaitGoodbye(ctx)
		}
	}
	return errors.Join(failures...)
}

func (c *controller) isLeaving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving
}

// sleep waits; false means that the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
