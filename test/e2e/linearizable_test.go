//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/process"
	"github.com/slim-cp/slim-cp/test/segments"
)

// segmentCaller calls one replica, one call after the other.
type segmentCaller struct {
	client  controlplanepb.ControlPlaneServiceClient
	id      int
	history []porcupine.Operation
}

func (c *segmentCaller) run(ctx context.Context, began time.Time, phase *atomic.Int64) {
	for ctx.Err() == nil {
		call := segments.Call{
			Kind: []string{segments.Add, segments.Remove, segments.Read, segments.Read}[rand.IntN(4)],
			Name: fmt.Sprintf("s%d-%d", phase.Load(), rand.IntN(2)),
		}
		at := int64(time.Since(began))
		answer, happened := c.call(call)
		if !happened || answer.Unknown {
			<-time.After(20 * time.Millisecond) // a replica that is down would be asked again at once
		}
		if !happened {
			continue
		}
		operation := porcupine.Operation{ClientId: c.id, Input: call, Call: at, Output: answer, Return: int64(time.Since(began))}
		if answer.Unknown {
			operation.Return = math.MaxInt64
		}
		c.history = append(c.history, operation)
	}
}

// call reports false for what surely has no effect, and no answer.
func (c *segmentCaller) call(call segments.Call) (segments.Answer, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var err error
	switch call.Kind {
	case segments.Add:
		_, err = c.client.AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: call.Name})
	case segments.Remove:
		_, err = c.client.RemoveSegment(ctx, &controlplanepb.RemoveSegmentRequest{Name: call.Name})
	default:
		response, err := c.client.ListSegments(ctx, &controlplanepb.SegmentListRequest{})
		if err != nil {
			return segments.Answer{}, false
		}
		for _, segment := range response.GetSegments() {
			if segment.GetName() == call.Name {
				return segments.Answer{There: true}, true
			}
		}
		return segments.Answer{}, true
	}
	switch code := status.Code(err); {
	case code == codes.OK:
		return segments.Answer{There: true}, true
	case code == codes.NotFound && call.Kind == segments.Remove:
		return segments.Answer{}, true
	default: // also a call that broke off
		return segments.Answer{Unknown: true}, true
	}
}

// Leaders are killed and stopped while operators call all replicas: no answer
// contradicts a single copy of the state.
func TestOperatorsSeeOneCopy(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	waitTolerance(t, replicas[0], 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers []*segmentCaller
	var calling sync.WaitGroup
	var phase atomic.Int64
	began := time.Now()
	for i := range 6 {
		conn, err := grpc.NewClient(replicas[i%3].Northbound, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		c := &segmentCaller{client: controlplanepb.NewControlPlaneServiceClient(conn), id: i}
		callers = append(callers, c)
		calling.Go(func() { c.run(ctx, began, &phase) })
	}
	for round := range 4 {
		phase.Add(1)
		leader, others := leaderOf(t, replicas)
		if round%2 == 0 {
			leader.Kill(t)
			waitOtherLeader(t, others)
			leader.Start(t)
		} else {
			leader.Signal(t, syscall.SIGSTOP)
			waitOtherLeader(t, others)
			leader.Signal(t, syscall.SIGCONT)
		}
		waitTolerance(t, others[0], 1)
	}
	cancel()
	calling.Wait()
	var history []porcupine.Operation
	for _, c := range callers {
		history = append(history, c.history...)
	}
	unknown := 0
	for _, operation := range history {
		if operation.Output.(segments.Answer).Unknown {
			unknown++
		}
	}
	t.Logf("%d calls, the outcome of %d is unknown", len(history), unknown)
	if result := porcupine.CheckOperationsTimeout(segments.Model(), history, time.Minute); result != porcupine.Ok {
		t.Errorf("the answers are %s", result)
	}
	if answered := len(history) - unknown; answered < 200 {
		t.Errorf("only %d answers", answered)
	}
}

// waitOtherLeader waits until one of these replicas leads.
func waitOtherLeader(t *testing.T, replicas []*process.Replica) {
	t.Helper()
	eventually(t, "another leader", func() bool {
		found := roles(replicas[0].Status(t))
		return found[replicas[0].Member.Name] == leads || found[replicas[1].Member.Name] == leads
	})
}
