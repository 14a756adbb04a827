package segments

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

const (
	// callTimeout bounds one call.
	callTimeout = time.Second
	// retryInterval is the pause after a call without an answer: a replica that is
	// down would be asked again at once.
	retryInterval = 20 * time.Millisecond
)

// Caller calls one replica, one call after the other, and writes down what it was
// told. The history is complete when Run has returned.
type Caller struct {
	Client controlplanepb.ControlPlaneServiceClient
	ID     int
	// Interval is the pause between two calls.
	Interval time.Duration
	History  []porcupine.Operation
}

// Run calls until the context ends. All callers of a history share its beginning
// and the phase, which names the segments: a new phase bounds what a judge has to
// look at together.
func (c *Caller) Run(ctx context.Context, began time.Time, phase *atomic.Int64) {
	for ctx.Err() == nil {
		call := Call{
			Kind: []string{Add, Remove, Read, Read}[rand.IntN(4)],
			Name: fmt.Sprintf("s%d-%d", phase.Load(), rand.IntN(2)),
		}
		at := int64(time.Since(began))
		answer, happened := c.call(call)
		if happened {
			operation := porcupine.Operation{ClientId: c.ID, Input: call, Call: at, Output: answer, Return: int64(time.Since(began))}
			if answer.Unknown {
				operation.Return = math.MaxInt64
			}
			c.History = append(c.History, operation)
		}
		pause := c.Interval
		if !happened || answer.Unknown {
			pause = max(pause, retryInterval)
		}
		<-time.After(pause)
	}
}

// call reports false for what surely has no effect, and no answer.
func (c *Caller) call(call Call) (Answer, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var err error
	switch call.Kind {
	case Add:
		_, err = c.Client.AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: call.Name})
	case Remove:
		_, err = c.Client.RemoveSegment(ctx, &controlplanepb.RemoveSegmentRequest{Name: call.Name})
	default:
		response, err := c.Client.ListSegments(ctx, &controlplanepb.SegmentListRequest{})
		if err != nil {
			return Answer{}, false
		}
		for _, segment := range response.GetSegments() {
			if segment.GetName() == call.Name {
				return Answer{There: true}, true
			}
		}
		return Answer{}, true
	}
	switch code := status.Code(err); {
	case code == codes.OK:
		return Answer{There: true}, true
	case code == codes.NotFound && call.Kind == Remove:
		return Answer{}, true
	default: // also a call that broke off
		return Answer{Unknown: true}, true
	}
}

// Unknown counts the operations of a history whose outcome nobody knows.
func Unknown(history []porcupine.Operation) int {
	unknown := 0
	for _, operation := range history {
		if operation.Output.(Answer).Unknown {
			unknown++
		}
	}
	return unknown
}
