package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// When a replica stops, all who wait for a leader that does not answer are told at
// once, however many wait: more than one call to the leader takes.
func TestForwarderAnswersAllWhenItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forwarder := newForwarder(func(ctx context.Context, _ func(context.Context, *grpc.ClientConn) error) error {
			<-ctx.Done()
			return &UnknownOutcomeError{Cause: ctx.Err()}
		})
		const waiting = (maxForwards + 2) * maxEntryCommands
		outcomes := make(chan outcome, waiting)
		for range waiting {
			go func() { outcomes <- forwarder.await(context.Background(), &proposal{encoded: []byte("command")}) }()
		}
		synctest.Wait()
		began := time.Now()
		forwarder.stop(ErrShutdown)
		synctest.Wait()
		if len(outcomes) != waiting || time.Since(began) > 0 {
			t.Fatalf("%d of %d were answered, after %s", len(outcomes), waiting, time.Since(began))
		}
		sent := 0
		for range waiting {
			switch out := <-outcomes; {
			case errors.Is(out.err, ErrUnknownOutcome):
				sent++
			case !errors.Is(out.err, ErrShutdown):
				t.Fatalf("told %v", out.err)
			}
		}
		if sent > maxForwards*maxEntryCommands {
			t.Errorf("the outcome of %d is called unknown, at most %d were sent", sent, maxForwards*maxEntryCommands)
		}
	})
}
