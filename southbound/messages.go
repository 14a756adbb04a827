package southbound

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// handle takes one message of a registered node. It may block while too much of
// what the node said waits to be proposed.
func (st *stream) handle(message *controllerpb.ControlMessage) {
	switch payload := message.GetPayload().(type) {
	case *controllerpb.ControlMessage_ConfigCommand:
		st.burst.begin()
		st.learn(message.GetMessageId(), payload.ConfigCommand)
		st.burst.end()
	case *controllerpb.ControlMessage_ConfigCommandAck,
		*controllerpb.ControlMessage_ConnectionListResponse,
		*controllerpb.ControlMessage_RouteListResponse:
		st.deliver(message)
	case *controllerpb.ControlMessage_DeregisterNodeRequest:
		st.deregisterOnce.Do(func() {
			answered := make(chan struct{})
			st.beginFarewell(answered)
			st.service.running.Go(func() { st.deregister(message.GetMessageId(), answered) })
		})
	default:
		st.service.stats.ignored.Add(1)
		st.log.Debug("ignored a message", "payload", payloadName(message))
	}
}

// learn takes what a node says of itself: names first, then withdrawals, then
// connections that arrived. Until the node has answered our first message a
// withdrawal may be about a link that it lost long ago and does not count, and
// an announcement may be the repetition of all its names (protocol N7).
func (st *stream) learn(messageID string, command *controllerpb.ConfigurationCommand) {
	early, ending := st.hearing()
	if ending {
		return // a node that is leaving announces nothing any more
	}
	for _, route := range command.GetRoutesToSet() {
		if route.LinkId == nil { // with one it is not an announcement
			st.learnName(route, func(name fsm.Name) bool { return st.pending.announce(name, early) })
		}
	}
	for _, route := range command.GetRoutesToDelete() {
		if early {
			st.service.stats.earlyWithdrawals.Add(1)
			continue
		}
		st.learnName(route, st.pending.withdraw)
	}
	for _, entry := range command.GetConnectionsReceived() {
		if id := entry.GetLinkId(); id != "" {
			st.learnClaim(id, messageID, early)
		}
	}
}

func (st *stream) learnName(route *controllerpb.Route, add func(fsm.Name) bool) {
	name, err := fsm.ParseName(route.GetName())
	if err != nil {
		st.malformed("name", err)
		return
	}
	st.put(func() bool { return add(name) })
}

// learnClaim takes a notice that a connection with a link id stands. Both ends
// send it; that of the source says nothing (protocol L2).
func (st *stream) learnClaim(linkID, messageID string, early bool) {
	view := st.service.store.View()
	if !isOurs(view, linkID) || (early && !st.isListed(linkID)) {
		return
	}
	if link, known := view.Link(linkID); known && link.DestGroup != st.registration.command.GetGroup() {
		return
	}
	if err := checkMessageID(messageID); err != nil {
		st.malformed("claim", err)
		return
	}
	st.put(func() bool { return st.pending.addClaim(linkID, messageID) })
}

// put adds to what waits to be proposed. While there is no room the stream is
// not read: the node's own queue then fills.
func (st *stream) put(add func() bool) {
	for !add() {
		st.service.stats.backpressure.Add(1)
		if st.pending.waitRoom(st.ctx) != nil {
			return
		}
	}
}

// malformed skips and counts a bad entry. Only the first one of a stream is
// logged: a node that sends one sends many.
func (st *stream) malformed(kind string, reason error) {
	st.service.stats.countMalformed(kind)
	st.malformedOnce.Do(func() {
		st.log.Warn("skipped malformed input of a node; more of this stream is only counted", "kind", kind, "reason", reason)
	})
}

// receiveFailed says in the log if a node's message broke its stream.
func (st *stream) receiveFailed(err error) {
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.Internal:
		st.malformed("message", errors.New(status.Convert(err).Message()))
	}
}
