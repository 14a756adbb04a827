package northbound

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// maxShown is up to which length a caller's value stands whole in texts and logs,
	// in bytes: that of the longest group or segment.
	maxShown = 253
	// shownPart is what is shown of a longer one.
	shownPart = 64
	// maxStatusBytes bounds the message of a status. It travels as a header, and one
	// that a client cannot take ends the connection with all its calls.
	maxStatusBytes = 4 << 10
)

// shown is a caller's value as texts and logs show it.
func shown(value string) string {
	if len(value) <= maxShown {
		return value
	}
	return fmt.Sprintf("%s... (%d bytes)", beginning(value, shownPart), len(value))
}

// beginning is what fits into a number of bytes, without half a character at its
// end.
func beginning(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

// statusText is an error's text as it goes into a status.
func statusText(text string) string {
	const cut = " ..."
	if len(text) <= maxStatusBytes {
		return text
	}
	return beginning(text, maxStatusBytes-len(cut)) + cut
}

// Errors of this package. The caller sees their text.
var (
	errArgument     = errors.New("wrong argument")
	errNodeNotFound = errors.New("not found")
	errNotConnected = errors.New("is not connected")
	errNoAnswer     = errors.New("did not answer")
	errUnconfirmed  = errors.New("no leader confirmed the read")
	errNotProposed  = errors.New("the change was not accepted for the log")
	errUnchanged    = errors.New("the state is as asked already")
	errChangeFailed = errors.New("the cluster was not changed")
	errManySaves    = errors.New("too many snapshots are being saved")
	errNeedsForce   = errors.New("the change has to be forced")
	errStalled      = errors.New("the transfer of the snapshot stands still")
)

// refusal is an error with a text of its own.
type refusal struct {
	text  string
	cause error
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.cause }

// argumentError says what is wrong with an argument, and what is accepted.
func argumentError(text string, args ...any) error {
	return &refusal{text: fmt.Sprintf(text, args...), cause: errArgument}
}

// unansweredError is an error of a NodeLister. Whatever kept the node from
// answering, the caller may try again.
type unansweredError struct{ cause error }

func (e *unansweredError) Error() string        { return e.cause.Error() }
func (e *unansweredError) Is(target error) bool { return target == errNoAnswer }
func (e *unansweredError) Unwrap() error        { return e.cause }

// codeOf is the one table from errors to gRPC codes; the first row that fits
// counts. Internal stands for an error that the caller can do nothing about.
func codeOf(err error) codes.Code {
	for _, row := range []struct {
		err  error
		code codes.Code
	}{
		// Nothing else may be said of a change that may yet take effect, whatever
		// ended the wait for it.
		{cluster.ErrUnknownOutcome, codes.Aborted},
		{errArgument, codes.InvalidArgument},
		{errNodeNotFound, codes.NotFound},
		{errNotConnected, codes.Unavailable},
		{errNoAnswer, codes.Unavailable},
		{errUnconfirmed, codes.Unavailable},
		{errNotProposed, codes.Unavailable},
		{errManySaves, codes.ResourceExhausted},
		{errStalled, codes.Unavailable},
		{fsm.ErrGroupsChanged, codes.Unavailable}, // while the change was made
		{errNeedsForce, codes.FailedPrecondition},
		{fsm.ErrConfigManaged, codes.FailedPrecondition},
		{fsm.ErrDefaultSegment, codes.FailedPrecondition},
		{fsm.ErrUnknownSegment, codes.NotFound},
		{fsm.ErrUnknownEdge, codes.NotFound},
		{fsm.ErrNotSharedSecret, codes.Unimplemented},
		{fsm.ErrShortSecret, codes.InvalidArgument},
		{fsm.ErrManyRequests, codes.ResourceExhausted},
		{fsm.ErrInvalid, codes.InvalidArgument},
		// A snapshot was restored in between.
		{fsm.ErrStaleGeneration, codes.Unavailable},
		{fsm.ErrNotInitialised, codes.Unavailable},
		{cluster.ErrNoLeader, codes.Unavailable},
		{cluster.ErrNotLeader, codes.Unavailable},
		{cluster.ErrShutdown, codes.Unavailable},
		{cluster.ErrOverloaded, codes.ResourceExhausted},
		{cluster.ErrTooLarge, codes.InvalidArgument},
		{cluster.ErrUnknownReplica, codes.NotFound},
		{cluster.ErrMembership, codes.FailedPrecondition},
		{cluster.ErrRemoved, codes.FailedPrecondition},
		{cluster.ErrDuplicate, codes.FailedPrecondition},
		{cluster.ErrWrongCluster, codes.FailedPrecondition},
		{fsm.ErrOldSchema, codes.FailedPrecondition},
		{fsm.ErrOtherCluster, codes.FailedPrecondition},
		{fsm.ErrInactiveSchema, codes.FailedPrecondition},
		{fsm.ErrSnapshot, codes.InvalidArgument},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{errChangeFailed, codes.Unavailable},
	} {
		if errors.Is(err, row.err) {
			return row.code
		}
	}
	return codes.Internal
}

// statusOf turns an error into what the caller gets. The text of an error that
// is none of the table's stays in the log.
func (s *Service) statusOf(err error) error {
	code := codeOf(err)
	if code == codes.Internal {
		s.logger.Error("northbound call failed", "error", statusText(err.Error()))
		return status.Error(code, "internal error")
	}
	return status.Error(code, statusText(err.Error()))
}
