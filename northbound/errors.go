package northbound

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
)

// Errors of this package. The caller sees their text.
var (
	errNodeNotFound = errors.New("not found")
	errNotConnected = errors.New("is not connected")
	errNoAnswer     = errors.New("did not answer")
	errUnconfirmed  = errors.New("no leader confirmed the read")
)

// unansweredError is an error of a NodeLister. Whatever kept the node from
// answering, the caller may try again.
type unansweredError struct{ cause error }

func (e *unansweredError) Error() string        { return e.cause.Error() }
func (e *unansweredError) Is(target error) bool { return target == errNoAnswer }
func (e *unansweredError) Unwrap() error        { return e.cause }

// codeOf is the one table from errors to gRPC codes. Internal stands for an
// error that the caller can do nothing about.
func codeOf(err error) codes.Code {
	for _, row := range []struct {
		err  error
		code codes.Code
	}{
		{errNodeNotFound, codes.NotFound},
		{errNotConnected, codes.Unavailable},
		{errNoAnswer, codes.Unavailable},
		{errUnconfirmed, codes.Unavailable},
		{cluster.ErrNoLeader, codes.Unavailable},
		{cluster.ErrNotLeader, codes.Unavailable},
		{cluster.ErrShutdown, codes.Unavailable},
		{cluster.ErrOverloaded, codes.ResourceExhausted},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
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
		s.logger.Error("northbound call failed", "error", err)
		return status.Error(code, "internal error")
	}
	return status.Error(code, err.Error())
}
