package southbound

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// DefaultCallTimeout is how long a node may take to answer (protocol C9).
	DefaultCallTimeout = 90 * time.Second
	// MaxMessageBytes is what nodes accept in one message; a larger one breaks
	// the stream. Their limit is 4 MiB, frame included.
	MaxMessageBytes = 4<<20 - 1024

	// SilentAfter is how long a node may say nothing about a request, counted from
	// when the request was handed to its stream, until it counts as silent (protocol
	// C9).
	SilentAfter = 10 * time.Second

	maxAnswerEntries = 2_000_000
	maxAnswerBytes   = 256 << 20
)

// Call is one request to a node. Exactly one of Command, ListConnections and
// ListRoutes is set.
type Call struct {
	NodeID  string
	Session fsm.SessionName
	// Term is the leadership that asks (protocol C14).
	Term uint64

	Command         *controllerpb.ConfigurationCommand
	ListConnections bool
	ListRoutes      bool

	// Timeout is DefaultCallTimeout if it is 0.
	Timeout time.Duration
	// Late, if set, is called once, from another goroutine, when the node
	// answers after the call ended with ErrTimeout: the node is not wedged any
	// more.
	Late func()
	// Silent, if set, is called, from another goroutine, whenever the node has said
	// nothing about the request for SilentAfter. Time in which this process did not
	// run, or did not take what the node said, does not count.
	Silent func()
	// Brief leaves out of a list what is of no use for a comparison: connections to
	// peers, names reached over nothing else, and configurations. A node may list all
	// names of the fleet as its peers', and that many times over.
	Brief bool
}

// Answer is what a node answered. Unless Err is nil the other fields are empty:
// there are no partial answers.
type Answer struct {
	Err error
	// MessageID is that of the request.
	MessageID   string
	Ack         *controllerpb.ConfigurationCommandAck
	Connections []*controllerpb.ConnectionEntry
	Routes      []*controllerpb.RouteEntry
}

// Call sends a request to a node and returns at once. done is called exactly
// once, from another goroutine, with the answer or one of ErrNoSession (which may
// be an ErrSessionDenied), ErrStaleTerm, ErrQueueFull, ErrTooLarge, ErrTimeout, ErrStreamEnded and
// ErrAnswerTooLarge. Calls of one session reach the node in their order.
func (s *Service) Call(call Call, done func(Answer)) {
	message := call.message()
	if err := s.call(call, message, done); err != nil {
		s.stats.callsFailed.Add(1)
		go done(Answer{Err: err, MessageID: message.GetMessageId()})
	}
}

// call sends, or returns why it did not. The fence and the hand-over are under
// one lock, so that no call of an older leader follows one of a newer.
func (s *Service) call(call Call, message *controllerpb.ControlMessage, done func(Answer)) error {
	if proto.Size(message) > MaxMessageBytes {
		return ErrTooLarge
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fence(call.Term); err != nil {
		return err
	}
	st, ok := s.sessions[call.Session]
	if !ok || st.registration.nodeID != call.NodeID {
		if s.denies(call.Session) {
			return ErrSessionDenied
		}
		return ErrNoSession
	}
	timeout := call.Timeout
	if timeout == 0 {
		timeout = DefaultCallTimeout
	}
	return st.request(message, request{timeout: timeout, done: done, late: call.Late, silent: call.Silent, brief: call.Brief})
}

// fence refuses what an older leader decided (protocol C14). s.mu is held.
func (s *Service) fence(term uint64) error {
	s.leaderTerm = max(s.leaderTerm, s.store.View().LeaderTerm())
	if term < s.leaderTerm {
		return ErrStaleTerm
	}
	s.leaderTerm = term
	return nil
}

func (c *Call) message() *controllerpb.ControlMessage {
	message := &controllerpb.ControlMessage{MessageId: uuid.NewString()}
	switch {
	case c.ListConnections:
		message.Payload = &controllerpb.ControlMessage_ConnectionListRequest{ConnectionListRequest: &controllerpb.ConnectionListRequest{}}
	case c.ListRoutes:
		message.Payload = &controllerpb.ControlMessage_RouteListRequest{RouteListRequest: &controllerpb.RouteListRequest{}}
	default:
		message.Payload = &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: c.Command}
	}
	return message
}

// End ends the stream of a session, for instance of a node that was evicted
// (protocol D5). With notify the node is sent an empty full state first and has
// 5 s to confirm it. done is called once, from another goroutine, when the
// stream has ended or is not here, or with ErrStaleTerm if nothing was done. The
// session is not registered again.
func (s *Service) End(term uint64, session fsm.SessionName, notify bool, done func(error)) {
	s.mu.Lock()
	err := s.fence(term)
	st, ok := s.sessions[session]
	s.mu.Unlock()
	if err != nil || !ok {
		go done(err)
		return
	}
	go func() {
		st.evict(notify)
		done(nil)
	}()
}
