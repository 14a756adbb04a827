package operator

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A member is named by its id, on each try: another one may have joined under its
// name.
func TestRemoveSendsTheID(t *testing.T) {
	for given, want := range map[string]string{
		"cp-3": "cp-3-00000003", "cp-3-00000003": "cp-3-00000003", "cp-9": "cp-9", "cp-9-00000009": "cp-9-00000009",
	} {
		t.Run(given, func(t *testing.T) {
			isolate(t)
			var asked []string
			address := serve(t, &stub{}, grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if removal, ok := request.(*slimcppb.RemoveReplicaRequest); ok {
					if asked = append(asked, removal.GetReplica()); len(asked) == 1 {
						return nil, status.Error(codes.Unavailable, "no leader")
					}
				}
				return handler(ctx, request)
			}))
			got := run(t, Options{}, "cluster", "remove", given, "--server", address)
			if got.code != ExitDone || !slices.Equal(asked, []string{want, want}) {
				t.Errorf("exit code %d after %q, want %s: %s", got.code, asked, want, got.stderr)
			}
		})
	}
}

// What was not surely done is repeated by the id, which the message tells.
func TestUnknownRemovalNamesTheID(t *testing.T) {
	isolate(t)
	address := serve(t, &stub{}, grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if _, ok := request.(*slimcppb.RemoveReplicaRequest); ok {
			return nil, status.Error(codes.Aborted, "outcome unknown")
		}
		return handler(ctx, request)
	}))
	got := run(t, Options{}, "cluster", "remove", "cp-3", "--server", address)
	if got.code != ExitUnknownOutcome || !strings.Contains(got.stderr, "cp-3-00000003") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
}
