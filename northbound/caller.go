package northbound

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// RequestIDKey is set by a caller that may send a change again: a change with the
// id of an earlier one is made once and answered like that one (protocol X1).
const RequestIDKey = "slimcp-request-id"

// Metadata keys with which a replica says on whose behalf it calls another one.
// They count on the cluster port only: anybody could set them elsewhere.
const (
	callerIdentityKey = "slimcp-caller-identity"
	callerAddressKey  = "slimcp-caller-address"
)

// fromReplica reports whether a call came over the cluster port.
func fromReplica(ctx context.Context) bool { return cluster.CallerReplica(ctx) != "" }

// callerOf says who calls. Nobody proves an identity on a listener without
// authentication: the address is all there is.
func callerOf(ctx context.Context) *slimcppb.Caller {
	if fromReplica(ctx) {
		return &slimcppb.Caller{Identity: lastValue(ctx, callerIdentityKey), Address: lastValue(ctx, callerAddressKey)}
	}
	caller := &slimcppb.Caller{}
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		caller.Address = from.Addr.String()
	}
	return caller
}

// onBehalf returns the context of a call to another replica: with who asked for
// it, and what that caller wants.
func onBehalf(ctx context.Context) context.Context {
	caller := callerOf(ctx)
	pairs := []string{callerIdentityKey, caller.GetIdentity(), callerAddressKey, caller.GetAddress()}
	for _, key := range []string{RequestIDKey, ConsistencyKey} {
		if value := lastValue(ctx, key); value != "" {
			pairs = append(pairs, key, value)
		}
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// requestID returns the id that the caller gave its change, or a new one.
func requestID(ctx context.Context) (string, error) {
	given := lastValue(ctx, RequestIDKey)
	switch {
	case given == "":
		return uuid.NewString(), nil
	case len(given) > fsm.MaxRequestIDBytes || strings.ContainsFunc(given, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", argumentError("%s: accepted are 1 to %d printable ASCII characters without spaces", RequestIDKey, fsm.MaxRequestIDBytes)
	}
	return given, nil
}

func lastValue(ctx context.Context, key string) string {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
