package northbound

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/slim-cp/slim-cp/cluster"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func TestReadErrors(t *testing.T) {
	f, _ := twoGroups(t)
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{fmt.Errorf("read: %w", cluster.ErrNoLeader), codes.Unavailable, "read: no leader"},
		{cluster.ErrNotLeader, codes.Unavailable, "this replica does not lead"},
		{cluster.ErrShutdown, codes.Unavailable, "replica is shutting down"},
		{cluster.ErrOverloaded, codes.ResourceExhausted, "too many proposals in flight"},
		{fmt.Errorf("open /secret: %w", cluster.ErrStoreFailed), codes.Internal, "internal error"},
	} {
		operator := dial(t, Options{Reader: &reader{store: f.store, err: c.err}, Nodes: &table{}})
		_, err := operator.ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
		wantStatus(t, err, c.code, c.text)
		_, err = collect(t.Context(), operator.ListLinks, &controlplanepb.LinkListRequest{})
		wantStatus(t, err, c.code, c.text)
		_, err = operator.ListConnections(t.Context(), &controlplanepb.Node{Id: "a/1"})
		wantStatus(t, err, c.code, c.text)
	}
}

// A leader that cannot confirm a read costs the caller seconds, not for ever.
func TestUnconfirmedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := twoGroups(t)
		operator := dial(t, Options{Reader: &reader{store: f.store, hangs: true}})
		_, err := operator.ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
		wantStatus(t, err, codes.Unavailable, "no leader confirmed the read within 4s")
	})
}

// Nobody waits for a leader that cannot be elected.
func TestCallersAreToldThatTheQuorumIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := twoGroups(t)
		lost := &cluster.QuorumLostError{Answering: 1, Voters: 3, Missing: []string{"cp-2", "cp-3"}}
		whileQuorum := func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			timer := time.AfterFunc(time.Second, func() { cancel(lost) })
			return ctx, func() { timer.Stop(); cancel(nil) }
		}
		proposer := &proposer{fleet: f, hangs: true}
		operator := dial(t, Options{Reader: &reader{store: f.store, hangs: true}, Proposer: proposer, WhileQuorum: whileQuorum})
		began := time.Now()
		_, err := operator.ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
		wantStatus(t, err, codes.Unavailable, lost.Error())
		_, err = operator.AddSegment(t.Context(), &controlplanepb.AddSegmentRequest{Name: "s"})
		wantStatus(t, err, codes.Unavailable, lost.Error())
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("both together took %v", took)
		}
		proposer.hangs, proposer.before = false, func() { <-time.After(2 * time.Second) }
		proposer.err = &cluster.UnknownOutcomeError{Cause: context.Canceled}
		_, err = operator.AddSegment(t.Context(), &controlplanepb.AddSegmentRequest{Name: "s"})
		wantStatus(t, err, codes.Aborted, proposer.err.Error())
	})
}

// One that does not wait so long learns why all the same.
func TestImpatientCallersAreToldWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := twoGroups(t)
		operator := dial(t, Options{Reader: &reader{store: f.store, hangs: true}, Proposer: &proposer{fleet: f, hangs: true}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := operator.ListSegments(ctx, &controlplanepb.SegmentListRequest{})
		wantStatus(t, err, codes.Unavailable, "no leader confirmed the read within 800ms")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = operator.AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: "s"})
		wantStatus(t, err, codes.Unavailable, "the change was not accepted for the log within 800ms")
	})
}

func TestStaleReadNeedsNoLeader(t *testing.T) {
	f, _ := twoGroups(t)
	operator := dial(t, Options{
		Reader: &reader{store: f.store, err: cluster.ErrNoLeader},
		Now:    func() time.Time { return f.clock.Add(1500 * time.Millisecond) },
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), ConsistencyKey, Stale)

	var headers metadata.MD
	response, err := operator.ListGroups(ctx, &controlplanepb.ListDomainsRequest{}, grpc.Header(&headers))
	if err != nil || len(response.GetDomains()) != 2 {
		t.Fatalf("%v, %v", response, err)
	}
	wantHeaders(t, headers, strconv.FormatUint(f.index, 10), "1500")

	headers = nil
	nodes, err := collect(ctx, operator.ListNodes, &controlplanepb.NodeListRequest{}, grpc.Header(&headers))
	if err != nil || len(nodes) != 2 {
		t.Fatalf("%v, %v", nodes, err)
	}
	wantHeaders(t, headers, strconv.FormatUint(f.index, 10), "1500")
}

func TestLinearizableReadTellsItsIndex(t *testing.T) {
	f, _ := twoGroups(t)
	operator := f.operator(t)
	for _, ctx := range []context.Context{
		t.Context(), metadata.AppendToOutgoingContext(t.Context(), ConsistencyKey, Linearizable),
	} {
		var headers metadata.MD
		if _, err := operator.ListGroups(ctx, &controlplanepb.ListDomainsRequest{}, grpc.Header(&headers)); err != nil {
			t.Fatal(err)
		}
		wantHeaders(t, headers, strconv.FormatUint(f.index, 10), "")
	}
}

func wantHeaders(tb testing.TB, headers metadata.MD, index, age string) {
	tb.Helper()
	first := func(key string) string {
		if values := headers.Get(key); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	if first(IndexKey) != index || first(AgeKey) != age {
		tb.Errorf("index %q and age %q, want %q and %q", first(IndexKey), first(AgeKey), index, age)
	}
}

func TestUnknownConsistency(t *testing.T) {
	f, _ := twoGroups(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), ConsistencyKey, "eventual")
	_, err := f.operator(t).ListGroups(ctx, &controlplanepb.ListDomainsRequest{})
	wantStatus(t, err, codes.InvalidArgument, `slimcp-consistency "eventual": accepted are "linearizable" and "stale"`)
}

// What the caller wants goes with a call that another replica answers.
func TestCallsPassedOnKeepWhatTheCallerWants(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(ConsistencyKey, "stale", RequestIDKey, "one", "other", "not ours"))
	passed, _ := metadata.FromOutgoingContext(onBehalf(ctx))
	for key, want := range map[string][]string{ConsistencyKey: {"stale"}, RequestIDKey: {"one"}, "other": nil} {
		if got := passed.Get(key); !slices.Equal(got, want) {
			t.Errorf("%s is passed on as %q, want %q", key, got, want)
		}
	}
}
