package operator

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// change is ask for a call that changes something. It tells a change that was
// surely not made from one that may have been: the latter has an exit code of
// its own, since a script must not take it for a failure.
func (t *tree) change(
	command *cobra.Command,
	action string,
	call func(context.Context, controlplanepb.ControlPlaneServiceClient) error,
) error {
	return t.changeOn(command, action, func(ctx context.Context, connection *grpc.ClientConn) error {
		return call(ctx, controlplanepb.NewControlPlaneServiceClient(connection))
	})
}

// changeOn gives the change an id, under which the control plane makes it once: it
// is sent again when the replica asked was not available, as while leaders change.
func (t *tree) changeOn(command *cobra.Command, action string, call func(context.Context, *grpc.ClientConn) error) error {
	progress := &callProgress{}
	unknown := false
	id := uuid.NewString()
	err := t.connect(command, action, func(ctx context.Context, connection *grpc.ClientConn) error {
		ctx = metadata.AppendToOutgoingContext(ctx, requestIDKey, id)
		attempt := func() error {
			progress.reset()
			err := call(ctx, connection)
			// What an earlier attempt left open only an answer about the change itself
			// can settle.
			unknown = progress.unknown(err) || unknown && passing(err)
			return err
		}
		err := attempt()
		if status.Code(err) != codes.Unavailable || !timeFor(ctx, retryLeast) || !sleep(ctx, retryPause) {
			return err
		}
		return attempt()
	}, grpc.WithStatsHandler(progress))
	if err != nil && unknown {
		return &unknownOutcomeError{err}
	}
	return err
}

const (
	// requestIDKey is metadata of the northbound API.
	requestIDKey = "slimcp-request-id"
	// retryPause is the wait before a change is sent again.
	retryPause = 300 * time.Millisecond
	// retryLeast is how much time must be left for it: a second attempt that time
	// cuts short would turn a change that was not made into one that may have been.
	retryLeast = retryPause + time.Second
)

// timeFor reports whether so much is left of the context's time.
func timeFor(ctx context.Context, least time.Duration) bool {
	deadline, limited := ctx.Deadline()
	return !limited || time.Until(deadline) >= least
}

// callProgress notes how far the present call of a connection got.
type callProgress struct {
	sent, answered atomic.Bool
}

func (p *callProgress) reset() {
	p.sent.Store(false)
	p.answered.Store(false)
}

// unknown reports whether a failed call may have had its effect: it was sent, and
// no answer came or the answer leaves it open. The server's own word that time is
// up may cross with ours, and says no more.
func (p *callProgress) unknown(err error) bool {
	if err == nil || !p.sent.Load() {
		return false
	}
	switch status.Code(err) {
	case codes.Aborted, codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return !p.answered.Load()
}

// HandleRPC is called by gRPC.
func (p *callProgress) HandleRPC(_ context.Context, event stats.RPCStats) {
	switch event.(type) {
	case *stats.OutPayload:
		p.sent.Store(true)
	case *stats.InTrailer:
		p.answered.Store(true)
	}
}

// TagRPC is called by gRPC.
func (p *callProgress) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn is called by gRPC.
func (p *callProgress) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is called by gRPC.
func (p *callProgress) HandleConn(context.Context, stats.ConnStats) {}

// unknownOutcomeError is a change that may or may not have been made.
type unknownOutcomeError struct{ cause error }

func (e *unknownOutcomeError) Error() string {
	return e.cause.Error() + " (the change may or may not have been made: look before trying again)"
}

func (e *unknownOutcomeError) Unwrap() error { return e.cause }
func (e *unknownOutcomeError) ExitCode() int { return ExitUnknownOutcome }
