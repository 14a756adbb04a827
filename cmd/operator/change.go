package operator

import (
	"context"
	"sync/atomic"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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

func (t *tree) changeOn(command *cobra.Command, action string, call func(context.Context, *grpc.ClientConn) error) error {
	progress := &callProgress{}
	err := t.connect(command, action, call, grpc.WithStatsHandler(progress))
	if err != nil && progress.unknown(err) {
		return &unknownOutcomeError{err}
	}
	return err
}

// callProgress notes how far the one call of a connection got.
type callProgress struct {
	sent, answered atomic.Bool
}

// unknown reports whether a failed call may have had its effect: it was sent, and
// no answer came or the answer leaves it open. The server's own word that time is
// up may cross with ours, and says no more.
func (p *callProgress) unknown(err error) bool {
	if !p.sent.Load() {
		return false
	}
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.Canceled:
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
