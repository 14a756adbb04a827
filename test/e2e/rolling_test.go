//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// caller makes changes like a client that knows all replicas: one that is not
// available is asked no more, and the change is sent to the next one under the same
// id, once.
type caller struct {
	clients []controlplanepb.ControlPlaneServiceClient
	next    int
}

func newCaller(t *testing.T, replicas []*process.Replica) *caller {
	t.Helper()
	c := &caller{}
	for _, r := range replicas {
		conn, err := grpc.NewClient("passthrough:///"+r.Northbound, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c.clients = append(c.clients, controlplanepb.NewControlPlaneServiceClient(conn))
	}
	return c
}

func (c *caller) addSegment(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "slimcp-request-id", uuid.NewString()), 20*time.Second)
	defer cancel()
	request := &controlplanepb.AddSegmentRequest{Name: name}
	c.next = (c.next + 1) % len(c.clients)
	_, err := c.clients[c.next].AddSegment(ctx, request)
	if status.Code(err) != codes.Unavailable {
		return err
	}
	c.next = (c.next + 1) % len(c.clients)
	_, second := c.clients[c.next].AddSegment(ctx, request)
	if second != nil {
		return errors.Join(err, second)
	}
	return nil
}

// Each replica in turn is stopped and started again. No operator's call fails that
// is tried twice, and no change is lost.
func TestRollingRestart(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	waitTolerance(t, replicas[0], 1)
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	made := 0
	calling.Go(func() {
		c := newCaller(t, replicas)
		for ctx.Err() == nil {
			if err := c.addSegment(t.Context(), fmt.Sprintf("segment-%d", made)); err != nil {
				t.Errorf("change %d: %v", made, err)
				return
			}
			made++
		}
	})
	for _, r := range replicas {
		r.Stop(t)
		r.Start(t)
		waitTolerance(t, r, 1)
	}
	stop()
	calling.Wait()
	t.Logf("%d changes", made)
	conn, err := newCaller(t, replicas[:1]).clients[0].ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(conn.GetSegments()) - 1; got != made {
		t.Errorf("%d segments, want %d", got, made)
	}
}
