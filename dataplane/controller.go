package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// registrationTimeout bounds the wait for a RegisterNodeResponse.
const registrationTimeout = 10 * time.Second

// controller is one life of a node's controller, from process start to its end.
type controller struct {
	node     *Node
	datapath Datapath
	ctx      context.Context // the process
	cancel   context.CancelFunc
	done     chan struct{} // closed when run has returned

	// deregistered is closed by a DeregisterNodeResponse.
	deregistered chan struct{}
	leave        sync.Once

	mu      sync.Mutex // guards the following; never held while the datapath is called
	phase   Phase
	failure error
	changed chan struct{} // closed and replaced at each change of phase
	leaving bool
	session *session // nil: no stream
	queue   []*controllerpb.ControlMessage
	tracked map[nameKey]map[route]subscription
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
	name *dataplanepb.Name
	id   uint64
}

func newController(n *Node, datapath Datapath) *controller {
	ctx, cancel := context.WithCancel(context.Background())
	return &controller{
		node:         n,
		datapath:     datapath,
		ctx:          ctx,
		cancel:       cancel,
		done:         make(chan struct{}),
		deregistered: make(chan struct{}),
		phase:        Connecting,
		changed:      make(chan struct{}),
		tracked:      make(map[nameKey]map[route]subscription),
	}
}

// run connects, registers and obeys until the process ends or the node gives up.
func (c *controller) run() {
	defer close(c.done)
	defer c.closeSession()
	for first := true; c.ctx.Err() == nil; first = false {
		err := c.live(first)
		switch {
		case c.ctx.Err() != nil, c.hasLeft():
			return
		case err == nil:
			continue // real nodes reconnect at once, without any back-off
		case !c.node.options.ReconnectForever || errors.Is(err, ErrPanicked):
			c.setPhase(Lost, err)
			c.node.logger.Warn("gave up on the control plane", "error", err)
			c.linger()
			return
		}
		c.closeSession()
		if pause, _ := (Backoff{}).wait(2); !sleep(c.ctx, pause) {
			return
		}
	}
}

// live is one stream from dialling to its end. It returns nil if the stream
// ended after the registration, and otherwise what makes a real node give up.
func (c *controller) live(first bool) error {
	c.setPhase(Connecting, nil)
	c.dropOutgoing()
	kind := ErrReconnect
	if first {
		kind = ErrStart
	}
	s, err := c.connect()
	if err != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	c.setPhase(Joining, nil)
	response, err := c.register(s)
	if err != nil {
		return err
	}
	c.node.logger.Debug("registered")
	c.setPhase(Registered, nil)
	if err := c.adopt(s, response); err != nil {
		return err
	}
	c.replay(s)
	if err := c.serve(s); err != nil {
		return err
	}
	c.closeSession()
	return nil
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
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.tracked)
}

// register sends the registration and what was queued, and waits for the answer.
// Everything else that comes before it is skipped, without an acknowledgement.
func (c *controller) register(s *session) (*controllerpb.RegisterNodeResponse, error) {
	c.openSession(s, c.registration())
	timeout := time.NewTimer(registrationTimeout)
	defer timeout.Stop()
	for {
		select {
		case got := <-s.incoming:
			if got.err != nil {
				return nil, fmt.Errorf("%w: stream error waiting for registration response: %w", ErrHandshake, got.err)
			}
			response := got.message.GetRegisterNodeResponse()
			if response == nil {
				continue
			}
			if !response.GetSuccess() {
				return nil, ErrRejected
			}
			return response, nil
		case <-timeout.C:
			return nil, fmt.Errorf("%w: timed out", ErrHandshake)
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
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

// serve handles one message at a time until the stream ends. While it handles
// one it neither reads nor notices the end of the stream.
func (c *controller) serve(s *session) error {
	for {
		if c.node.stall.pass(c.ctx) != nil {
			return nil
		}
		select {
		case got := <-s.incoming:
			if got.err != nil {
				c.node.logger.Debug("control stream ended", "error", got.err)
				return nil
			}
			if c.node.stall.pass(c.ctx) != nil {
				return nil
			}
			if err := c.handle(s, got.message); err != nil {
				return err
			}
		case <-c.ctx.Done():
			return nil
		}
	}
}

func (c *controller) handle(s *session, message *controllerpb.ControlMessage) error {
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommand:
		return c.obey(s, message.GetMessageId(), payload.ConfigCommand)
	case *controllerpb.ControlMessage_ConnectionListRequest:
		c.listConnections(s, message.GetMessageId())
	case *controllerpb.ControlMessage_RouteListRequest:
		c.listRoutes(s, message.GetMessageId())
	case *controllerpb.ControlMessage_DeregisterNodeResponse:
		if payload.DeregisterNodeResponse.GetSuccess() && c.isLeaving() {
			c.leave.Do(func() { close(c.deregistered) })
		}
	}
	return nil // everything else means nothing to a node
}

// linger is what is left of a node that gave up: it keeps an open stream, goes
// on announcing on it and answers nothing. A dead control task does not even
// see the stream's end.
func (c *controller) linger() {
	s := c.currentSession()
	for s != nil && !c.node.Panicked() {
		select {
		case got := <-s.incoming:
			if got.err != nil {
				c.closeSession()
				s = nil
			}
		case <-c.ctx.Done():
			return
		}
	}
	<-c.ctx.Done()
}

// stop ends the process.
func (c *controller) stop() {
	c.cutStream()
	c.cancel()
}

func (c *controller) setPhase(phase Phase, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase, c.failure = phase, failure
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *controller) status() (phase Phase, changed <-chan struct{}, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase, c.changed, c.failure
}

// deregister sends the goodbye and waits for its answer.
func (c *controller) deregister(ctx context.Context) error {
	c.mu.Lock()
	s := c.session
	if s == nil || c.phase != Registered {
		c.mu.Unlock()
		return ErrStreamEnded
	}
	c.leaving = true
	c.mu.Unlock()
	s.send(&controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{DeregisterNodeRequest: &controllerpb.DeregisterNodeRequest{
			Node: &controllerpb.Node{Id: c.node.options.ID},
		}},
	})
	select {
	case <-c.deregistered:
		return nil
	case <-c.done:
		select {
		case <-c.deregistered: // the answer was the stream's last word
			return nil
		default:
			return ErrStreamEnded
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *controller) isLeaving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving
}

// hasLeft reports that the stream of a leaving node ended: it does not reconnect.
func (c *controller) hasLeft() bool {
	if !c.isLeaving() {
		return false
	}
	c.closeSession()
	return true
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
