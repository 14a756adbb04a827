package southbound

import (
	"errors"
	"fmt"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// callErrors is the one table between the errors of calls and the wire. The first
// match counts.
var callErrors = []struct {
	err  error
	code slimcppb.CallError
}{
	{ErrSessionDenied, slimcppb.CallError_CALL_ERROR_DENIED},
	{ErrNoSession, slimcppb.CallError_CALL_ERROR_NO_SESSION},
	{ErrStreamEnded, slimcppb.CallError_CALL_ERROR_STREAM_ENDED},
	{ErrTimeout, slimcppb.CallError_CALL_ERROR_TIMEOUT},
	{ErrQueueFull, slimcppb.CallError_CALL_ERROR_QUEUE_FULL},
	{ErrStaleTerm, slimcppb.CallError_CALL_ERROR_STALE_TERM},
	{ErrTooLarge, slimcppb.CallError_CALL_ERROR_TOO_LARGE},
	{ErrAnswerTooLarge, slimcppb.CallError_CALL_ERROR_ANSWER_TOO_LARGE},
	{ErrUnreachable, slimcppb.CallError_CALL_ERROR_UNREACHABLE},
}

// callErrorToProto returns the code of an error. One that is not in the table
// stands for a stream whose state is not known.
func callErrorToProto(err error) slimcppb.CallError {
	if err == nil {
		return slimcppb.CallError_CALL_ERROR_NONE
	}
	for _, row := range callErrors {
		if errors.Is(err, row.err) {
			return row.code
		}
	}
	return slimcppb.CallError_CALL_ERROR_STREAM_ENDED
}

func callErrorFromProto(code slimcppb.CallError) error {
	if code == slimcppb.CallError_CALL_ERROR_NONE {
		return nil
	}
	for _, row := range callErrors {
		if code == row.code {
			return row.err
		}
	}
	return fmt.Errorf("%w: unknown error %d of another replica", ErrStreamEnded, code)
}

// kind returns the form of a call on the wire.
func (c *Call) kind() slimcppb.CallKind {
	switch {
	case c.ListConnections:
		return slimcppb.CallKind_CALL_KIND_LIST_CONNECTIONS
	case c.ListRoutes:
		return slimcppb.CallKind_CALL_KIND_LIST_ROUTES
	}
	return slimcppb.CallKind_CALL_KIND_COMMAND
}

func (c *Call) relayed() *slimcppb.RelayCall {
	return &slimcppb.RelayCall{
		Kind: c.kind(), Term: c.Term, NodeId: c.NodeID, Session: c.Session.Proto(),
		TimeoutMs: c.Timeout.Milliseconds(), Command: c.Command, TellSilence: c.Silent != nil, Brief: c.Brief,
	}
}

// callFromProto returns what a leader wants sent to a node.
func callFromProto(message *slimcppb.RelayCall) Call {
	call := Call{
		NodeID: message.GetNodeId(), Session: sessionFromProto(message.GetSession()), Term: message.GetTerm(),
		Timeout: time.Duration(message.GetTimeoutMs()) * time.Millisecond, Brief: message.GetBrief(),
	}
	switch message.GetKind() {
	case slimcppb.CallKind_CALL_KIND_LIST_CONNECTIONS:
		call.ListConnections = true
	case slimcppb.CallKind_CALL_KIND_LIST_ROUTES:
		call.ListRoutes = true
	default:
		if call.Command = message.GetCommand(); call.Command == nil {
			call.Command = &controllerpb.ConfigurationCommand{}
		}
	}
	return call
}

func (a Answer) relayed(id uint64) *slimcppb.RelayAnswer {
	return &slimcppb.RelayAnswer{
		CallId: id, Error: callErrorToProto(a.Err), MessageId: a.MessageID,
		Ack: a.Ack, Connections: a.Connections, Routes: a.Routes,
	}
}

func answerFromProto(message *slimcppb.RelayAnswer) Answer {
	answer := Answer{Err: callErrorFromProto(message.GetError()), MessageID: message.GetMessageId()}
	if answer.Err == nil {
		answer.Ack = message.GetAck()
		answer.Connections, answer.Routes = message.GetConnections(), message.GetRoutes()
	}
	return answer
}

func (f *First) relayedPush() *slimcppb.FirstPush {
	if f == nil {
		return nil
	}
	push := &slimcppb.FirstPush{MessageId: f.MessageID, Index: f.Index, Command: f.Command != nil}
	for _, link := range f.Links {
		push.Links = append(push.Links, &slimcppb.PushedLink{
			LinkId: link.ID, SourceRevision: link.SourceRevision, Endpoint: link.Endpoint,
		})
	}
	return push
}

// firstFromProto returns what the driver needs of another replica's first push:
// not the command itself.
func firstFromProto(push *slimcppb.FirstPush, nodeID string) *First {
	if push == nil {
		return nil
	}
	first := &First{MessageID: push.GetMessageId(), Index: push.GetIndex()}
	for _, link := range push.GetLinks() {
		first.Links = append(first.Links, &fsm.Link{
			ID: link.GetLinkId(), SourceNode: nodeID, SourceRevision: link.GetSourceRevision(), Endpoint: link.GetEndpoint(),
		})
	}
	if push.GetCommand() {
		first.Command = &controllerpb.ConfigurationCommand{}
	}
	return first
}

func sessionFromProto(message *slimcppb.SessionName) fsm.SessionName {
	return fsm.SessionName{ReplicaID: message.GetReplicaId(), BootID: message.GetBootId(), Counter: message.GetCounter()}
}
