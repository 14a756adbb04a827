package southbound

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that answer a Call.
var (
	// ErrNoSession: the session is not, or not yet, on this replica. Nothing was
	// sent.
	ErrNoSession = errors.New("no such session on this replica")
	// ErrSessionDenied: the session's replica does not hold its stream any more
	// (protocol S4). It is an ErrNoSession.
	ErrSessionDenied = fmt.Errorf("%w: its replica does not hold the stream", ErrNoSession)
	// ErrUnreachable: the replica that holds the stream cannot be reached, or could
	// not before it answered. What was sent may have had its effect; the node is
	// not to blame.
	ErrUnreachable = errors.New("replica that holds the stream cannot be reached")
	// ErrStreamEnded: the stream ended before the answer was complete. What was
	// sent may have had its effect.
	ErrStreamEnded = errors.New("stream ended")
	// ErrTimeout: no complete answer in time. The node may be dialling; it will
	// answer later, or its stream will end.
	ErrTimeout = errors.New("node did not answer in time")
	// ErrQueueFull: the node does not read its stream. Nothing was sent.
	ErrQueueFull = errors.New("queue of the stream is full")
	// ErrStaleTerm: a newer leader has called already (protocol C14). Nothing
	// was sent.
	ErrStaleTerm = errors.New("call of an older leadership")
	// ErrTooLarge: the message is larger than nodes accept. Nothing was sent.
	ErrTooLarge = errors.New("message is too large")
	// ErrAnswerTooLarge: the node's list exceeds the bounds of an answer.
	ErrAnswerTooLarge = errors.New("answer is too large")
)

// Why this replica ends a stream.
var (
	errBadRegistration = errors.New("registration refused")
	errDenied          = errors.New("credentials were not accepted")
	errUndecided       = errors.New("no leader has decided about the registration, register again")
	errNotRegistered   = errors.New("no registration in time")
	errNotConfirmed    = errors.New("registration was not accepted")
	errEvicted         = errors.New("node was evicted")
	errDeregistered    = errors.New("node deregistered")
	errDraining        = errors.New("replica is shutting down")
	errOrphaned        = errors.New("replica has no leader, but others have one")
	errDistrusted      = errors.New("replica is out of service")
)

// statusCodes is the one table from errors to what ends an RPC. The first match
// counts.
var statusCodes = []struct {
	err  error
	code codes.Code
}{
	{errDeregistered, codes.OK},
	{io.EOF, codes.OK},
	{errBadRegistration, codes.InvalidArgument},
	{errDenied, codes.PermissionDenied},
	{errUndecided, codes.Unavailable},
	{errNotConfirmed, codes.PermissionDenied},
	{errNotRegistered, codes.DeadlineExceeded},
	{errEvicted, codes.Aborted},
	{errDraining, codes.Unavailable},
	{errOrphaned, codes.Unavailable},
	{errDistrusted, codes.Unavailable},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// statusOf returns the error that ends an RPC; nil ends it with OK.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	for _, row := range statusCodes {
		if !errors.Is(err, row.err) {
			continue
		}
		switch row.code {
		case codes.OK:
			return nil
		case codes.PermissionDenied: // a stranger does not learn why
			return status.Error(row.code, row.err.Error())
		}
		return status.Error(row.code, err.Error())
	}
	if received, ok := status.FromError(err); ok {
		return received.Err()
	}
	return status.Error(codes.Unknown, err.Error())
}
