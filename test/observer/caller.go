package observer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// changeTimeout bounds a change, its second attempt included.
const changeTimeout = 20 * time.Second

// Caller makes changes like a client that knows all replicas: one that is not
// available is asked no more, and the change goes to the next one under the same
// id, once. It is for one goroutine.
type Caller struct {
	clients []controlplanepb.ControlPlaneServiceClient
	next    int
}

// NewCaller returns a caller of northbound endpoints (host:port), until the test
// ends.
func NewCaller(tb testing.TB, endpoints ...string) *Caller {
	tb.Helper()
	c := &Caller{}
	for _, endpoint := range endpoints {
		connection, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = connection.Close() })
		c.clients = append(c.clients, controlplanepb.NewControlPlaneServiceClient(connection))
	}
	return c
}

// AddSegment adds a segment. Its errors are those of both attempts.
func (c *Caller) AddSegment(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "slimcp-request-id", uuid.NewString()), changeTimeout)
	defer cancel()
	request := &controlplanepb.AddSegmentRequest{Name: name}
	var all error
	for range 2 {
		c.next = (c.next + 1) % len(c.clients)
		_, err := c.clients[c.next].AddSegment(ctx, request)
		if err == nil {
			return nil
		}
		all = errors.Join(all, err)
		if status.Code(err) != codes.Unavailable {
			break
		}
	}
	return all
}
