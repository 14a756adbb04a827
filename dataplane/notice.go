package dataplane

import (
	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// The controller observes its datapath.
var _ Observer = (*controller)(nil)

// LinkNegotiated implements Observer. Both ends of a link claim it, and both
// call it incoming.
func (c *controller) LinkNegotiated(linkID string) {
	if c.node.loseClaims.Load() {
		return
	}
	c.notify(&controllerpb.ConfigurationCommand{ConnectionsReceived: []*controllerpb.ConnectionEntry{{
		ConnectionType: remote,
		LinkId:         &linkID,
		Direction:      incoming,
	}}})
}

// NameAttached implements Observer.
func (c *controller) NameAttached(name *dataplanepb.Name) {
	c.notify(&controllerpb.ConfigurationCommand{RoutesToSet: []*controllerpb.Route{{Name: name}}})
}

// NameDetached implements Observer.
func (c *controller) NameDetached(name *dataplanepb.Name) {
	c.notify(&controllerpb.ConfigurationCommand{RoutesToDelete: []*controllerpb.Route{{Name: name}}})
}

// ConnectionLost implements Observer. There is no word for a lost link: nodes
// withdraw each name that went over it, also one that they announce themselves,
// and forget that they had set it over any other connection.
func (c *controller) ConnectionLost(names []*dataplanepb.Name) {
	for _, name := range names {
		c.mu.Lock()
		delete(c.tracked, keyOf(name))
		c.mu.Unlock()
		c.NameDetached(name)
	}
}

// notify sends a notice to every control plane, without waiting. What no stream
// takes now is queued until the next registration; beyond the bound the oldest is
// lost.
func (c *controller) notify(command *controllerpb.ConfigurationCommand) {
	message := commandMessage(command)
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := false
	for _, ch := range c.channels {
		if ch.session != nil && ch.session.offer(message) {
			taken = true
		}
	}
	if taken {
		return
	}
	if len(c.queue) == queueSize {
		c.queue = c.queue[1:]
	}
	c.queue = append(c.queue, message)
}

func (c *controller) clearQueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = nil
}

func commandMessage(command *controllerpb.ConfigurationCommand) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload:   &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: command},
	}
}
