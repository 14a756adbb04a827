package northbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// TestLongValuesAreShortened: a value of any length is refused with a status that
// fits into a header, and leaves a log line of bounded length.
func TestLongValuesAreShortened(t *testing.T) {
	long := strings.Repeat("ñ", 200_000)
	replica := func(change func(context.Context, *client, string) error) change {
		return func(ctx context.Context, c *client) error { return change(ctx, c, long) }
	}
	for what, call := range map[string]change{
		"add segment":     addSegment(long),
		"remove segment":  removeSegment(long),
		"add link":        addLink("a", long, ""),
		"link with self":  addLink(long, long, ""),
		"add link to":     addLink("a", "b", long),
		"remove link":     removeLink(long, "b", ""),
		"remove link of":  removeLink("a", "b", long),
		"add group":       addDomain(long, goodSecret),
		"short secret":    addDomain(long, "short"),
		"remove group":    removeDomain(long),
		"fleet":           applyAuth(long),
		"remove replica":  replica(removeReplica),
		"promote replica": replica(promoteReplica),
		"demote replica":  replica(demoteReplica),
		"hand over":       replica(handOver),
		"join":            replica(joinCluster),
		"explain link": func(ctx context.Context, c *client) error {
			_, err := c.ExplainLink(ctx, &slimcppb.ExplainLinkRequest{GroupA: long, GroupB: "b"})
			return err
		},
		"explain link with self": func(ctx context.Context, c *client) error {
			_, err := c.ExplainLink(ctx, &slimcppb.ExplainLinkRequest{GroupA: long, GroupB: long})
			return err
		},
		"explain route": func(ctx context.Context, c *client) error {
			_, err := c.ExplainRoute(ctx, &slimcppb.ExplainRouteRequest{Group: "a", Name: "a/b/" + long})
			return err
		},
		"explain route from": func(ctx context.Context, c *client) error {
			_, err := c.ExplainRoute(ctx, &slimcppb.ExplainRouteRequest{Group: long, Name: "a/b/c"})
			return err
		},
		"connections of a node": func(ctx context.Context, c *client) error {
			_, err := c.ListConnections(ctx, &controlplanepb.Node{Id: long})
			return err
		},
		"consistency": func(ctx context.Context, c *client) error {
			ctx = metadata.AppendToOutgoingContext(ctx, ConsistencyKey, strings.Repeat("x", 10_000))
			_, err := c.ListSegments(ctx, &controlplanepb.SegmentListRequest{})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFleet(t)
			f.useSharedSecrets()
			var log bytes.Buffer
			options := f.options()
			options.Cluster = &member{id: leaderID, leads: true}
			options.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
			err := call(t.Context(), dial(t, options))
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Errorf("code %v", code)
			}
			if text := status.Convert(err).Message(); len(text) > 500 || !strings.Contains(text, "bytes") {
				t.Errorf("a status of %d bytes: %.600s", len(text), text)
			}
			for line := range strings.Lines(log.String()) {
				if len(line) > 2000 {
					t.Errorf("a log line of %d bytes: %.600s", len(line), line)
				}
			}
		})
	}
}

func applyAuth(auth string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.ApplyFleetConfig(ctx, &slimcppb.ApplyFleetConfigRequest{Config: &slimcppb.FleetConfig{RegistrationAuth: auth}})
		return err
	}
}

func removeReplica(ctx context.Context, c *client, replica string) error {
	_, err := c.RemoveReplica(ctx, &slimcppb.RemoveReplicaRequest{Replica: replica})
	return err
}

func promoteReplica(ctx context.Context, c *client, replica string) error {
	_, err := c.PromoteReplica(ctx, &slimcppb.PromoteReplicaRequest{Replica: replica})
	return err
}

func demoteReplica(ctx context.Context, c *client, replica string) error {
	_, err := c.DemoteReplica(ctx, &slimcppb.DemoteReplicaRequest{Replica: replica})
	return err
}

func handOver(ctx context.Context, c *client, replica string) error {
	_, err := c.TransferLeadership(ctx, &slimcppb.TransferLeadershipRequest{To: replica})
	return err
}

func joinCluster(ctx context.Context, c *client, host string) error {
	stream, err := c.Join(ctx, &slimcppb.JoinClusterRequest{Address: host + ":1"})
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

func TestShownValues(t *testing.T) {
	longest := strings.Repeat("g", maxNameBytes)
	if shown(longest) != longest {
		t.Error("a name that may be is not shown whole")
	}
	if got, want := shown("x"+strings.Repeat("ñ", 200)), "x"+strings.Repeat("ñ", 31)+"... (401 bytes)"; got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
}

// A status that is larger than what the other end takes for headers costs it the
// connection, with all the calls on it.
func TestStatusIsBounded(t *testing.T) {
	f := newFleet(t)
	var log bytes.Buffer
	options := f.options()
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	for _, cause := range []error{cluster.ErrOverloaded, errors.New("unknown"), &cluster.UnknownOutcomeError{Cause: context.Canceled}} {
		options.Proposer = &proposer{fleet: f, err: fmt.Errorf("%s: %w", strings.Repeat("é", 100_000), cause)}
		err := addSegment("s")(t.Context(), dial(t, options))
		if text := status.Convert(err).Message(); text == "" || len(text) > 4<<10 {
			t.Errorf("%v: a status of %d bytes", cause, len(text))
		}
	}
	if log.Len() > 4*(5<<10) { // one line each, and one of the unknown error
		t.Errorf("%d bytes of log", log.Len())
	}
}

func TestRequestsAreBounded(t *testing.T) {
	f := newFleet(t)
	operator := f.operator(t)
	wantCode := func(change change, code codes.Code) {
		t.Helper()
		if err := change(t.Context(), operator); status.Code(err) != code {
			t.Errorf("%.200v, want %v", err, code)
		}
	}
	wantCode(addSegment(strings.Repeat("x", 1<<20)), codes.ResourceExhausted)
	wantCode(addSegment(strings.Repeat("x", 1<<20-100)), codes.InvalidArgument)
	// What the log takes is taken.
	var segments []*slimcppb.Segment
	for n := range 1000 {
		segments = append(segments, &slimcppb.Segment{Name: fmt.Sprintf("%0200d", n), Links: []*slimcppb.Adjacency{
			{Group: fmt.Sprintf("%0100d", n), Neighbors: []string{strings.Repeat("n", 150)}},
		}})
	}
	wantCode(func(ctx context.Context, c *client) error {
		_, err := c.ApplyFleetConfig(ctx, &slimcppb.ApplyFleetConfigRequest{Config: &slimcppb.FleetConfig{
			RegistrationAuth: fsm.NoAuth, Topology: &slimcppb.Topology{Segments: segments},
		}})
		return err
	}, codes.OK)
}

// saver is a member whose saves wait.
type saver struct {
	*member
	started, finish chan struct{}
}

func (s *saver) SaveSnapshot(ctx context.Context, w io.Writer) (fsm.SnapshotInfo, error) {
	s.started <- struct{}{}
	select {
	case <-s.finish:
	case <-ctx.Done():
	}
	return s.member.SaveSnapshot(ctx, w)
}

func TestSavesAreBounded(t *testing.T) {
	f := newFleet(t)
	waiting := &saver{member: &member{id: leaderID, leads: true}, started: make(chan struct{}, 1), finish: make(chan struct{})}
	options := f.options()
	options.Cluster = waiting
	operator := dial(t, options)
	saved := make(chan error, maxSaves)
	for range maxSaves {
		go func() {
			_, _, err := save(t.Context(), operator)
			saved <- err
		}()
		<-waiting.started
	}
	for range 20 {
		_, _, err := save(t.Context(), operator)
		wantStatus(t, err, codes.ResourceExhausted, "too many snapshots are being saved: this replica sends at most 4 at a time")
	}
	close(waiting.finish)
	for range maxSaves {
		if err := <-saved; err != nil {
			t.Error(err)
		}
	}
	if _, _, err := save(t.Context(), operator); err != nil { // there is room again
		t.Error(err)
	}
}

// save reads a snapshot to its end.
func save(ctx context.Context, c *client) ([]byte, *slimcppb.SnapshotInfo, error) {
	stream, err := c.SaveSnapshot(ctx, &slimcppb.SaveSnapshotRequest{})
	if err != nil {
		return nil, nil, err
	}
	var content []byte
	var info *slimcppb.SnapshotInfo
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return content, info, nil
		}
		if err != nil {
			return content, info, err
		}
		content, info = append(content, part.GetData()...), part.GetInfo()
	}
}

// A reader that stands still gets no more of a snapshot, and others get theirs.
func TestSaveEndsWithAReaderThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.follower.content = make([]byte, 10<<20)
		for range 3 * maxSaves / 2 {
			stream, err := p.SaveSnapshot(t.Context(), &slimcppb.SaveSnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(stallTimeout / 2)
			for size := 0; ; {
				part, err := stream.Recv()
				if size += len(part.GetData()); size > 1<<20 && err == nil {
					<-time.After(stallTimeout + time.Second)
				}
				if err != nil {
					wantStatus(t, err, codes.Unavailable, "the transfer of the snapshot stands still: the caller took nothing for 30s")
					break
				}
			}
		}
		content, info, err := save(t.Context(), p.client)
		if err != nil || len(content) != len(p.follower.content) || info == nil {
			t.Errorf("a reader that reads got %d bytes, %v, %v", len(content), info, err)
		}
	})
}

// A reader that takes a part now and then has a bound as well.
func TestSaveIsBoundedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.follower.content = make([]byte, 10<<20)
		started := time.Now()
		stream, err := p.SaveSnapshot(t.Context(), &slimcppb.SaveSnapshotRequest{})
		for err == nil {
			<-time.After(stallTimeout - 5*time.Second)
			_, err = stream.Recv()
		}
		wantStatus(t, err, codes.Unavailable, "the transfer of the snapshot stands still: not sent within 10m0s")
		if took := time.Since(started); took < saveTimeout {
			t.Errorf("it ended after %v", took)
		}
	})
}

// A caller that stops in the middle of a restore does not keep the next one out.
func TestRestoreEndsWithACallerThatStandsStill(t *testing.T) {
	for _, leads := range []bool{true, false} {
		for parts := range 2 {
			t.Run(fmt.Sprintf("leads=%v, parts=%d", leads, parts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPair(t)
					p.follower.leads = leads
					stream, err := p.RestoreSnapshot(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if parts > 0 {
						if err := stream.Send(&slimcppb.RestoreSnapshotRequest{
							Part: &slimcppb.RestoreSnapshotRequest_Options{Options: &slimcppb.RestoreOptions{}},
						}); err != nil {
							t.Fatal(err)
						}
					}
					started := time.Now()
					err = stream.RecvMsg(&slimcppb.RestoreSnapshotResponse{})
					wantStatus(t, err, codes.Unavailable,
						"the transfer of the snapshot stands still: no part of it came for 30s, nothing was restored")
					if took := time.Since(started); took < stallTimeout || took > stallTimeout+time.Second {
						t.Errorf("it ended after %v", took)
					}
					if !strings.Contains(p.log.String(), "outcome=refused") {
						t.Errorf("log:\n%s", &p.log)
					}
					if _, err := restore(t.Context(), p.client, 1000, false); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestRequestIDIsForOneChange: a change that was made already is told apart from one
// that is made now, and an id that was used from a success.
func TestRequestIDIsForOneChange(t *testing.T) {
	f := newFleet(t)
	f.setTopology()
	var log bytes.Buffer
	options := f.options()
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	operator := dial(t, options)
	given := metadata.AppendToOutgoingContext(t.Context(), RequestIDKey, "my-id")
	line := func(change change, want string) error {
		t.Helper()
		log.Reset()
		err := change(given, operator)
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %q", want, &log)
		}
		return err
	}
	if err := line(addSegment("x"), "outcome=committed"); err != nil {
		t.Error(err)
	}
	made := f.index
	if err := line(addSegment("x"), fmt.Sprintf("outcome=repeated index=%d", made)); err != nil {
		t.Error(err)
	}
	for _, other := range []change{addSegment("y"), removeSegment("x"), addLink("a", "b", "x")} {
		wantStatus(t, line(other, "outcome=refused"), codes.InvalidArgument,
			`invalid command: request id "my-id" was used for another change`)
	}
	if got := operator.segments(t); len(got) != 2 || got[1] != "x" {
		t.Errorf("segments are %q", got)
	}
}
