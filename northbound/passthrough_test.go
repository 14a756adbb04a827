package northbound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

func wantStatus(tb testing.TB, err error, code codes.Code, text string) {
	tb.Helper()
	if got := status.Convert(err); got.Code() != code || got.Message() != text {
		tb.Errorf("%v %q, want %v %q", got.Code(), got.Message(), code, text)
	}
}

// wantRefused asks for both tables of a node.
func wantRefused(t *testing.T, operator *client, id string, code codes.Code, text string) {
	t.Helper()
	_, err := operator.ListConnections(t.Context(), &controlplanepb.Node{Id: id})
	wantStatus(t, err, code, text)
	_, err = operator.ListNodeRoutes(t.Context(), &controlplanepb.Node{Id: id})
	wantStatus(t, err, code, text)
}

func TestNodesThatCannotBeAsked(t *testing.T) {
	f, _ := twoGroups(t)
	f.lose("b/1")
	nodes := &table{err: errors.New("node a/1 is busy: command sent 3 s ago")}
	operator := dial(t, Options{Reader: &reader{store: f.store}, Nodes: nodes})
	for _, c := range []struct {
		id   string
		code codes.Code
		text string
	}{
		{"a/none", codes.NotFound, "node a/none not found"},
		{"", codes.NotFound, "node  not found"},
		{"b/1", codes.Unavailable, "node b/1 is not connected"},
		{"a/1", codes.Unavailable, "node a/1 is busy: command sent 3 s ago"},
	} {
		wantRefused(t, operator, c.id, c.code, c.text)
	}
	if want := []string{"a/1", "a/1"}; !slices.Equal(nodes.asked, want) {
		t.Errorf("asked %q, want %q", nodes.asked, want)
	}

	for _, c := range []struct {
		err  error
		text string
	}{
		{fmt.Errorf("node a/1: %w", cluster.ErrNoLeader), "node a/1: no leader"},
		{southbound.ErrNoSession, "node a/1 is not connected"},
		{southbound.ErrStreamEnded, "node a/1 is not connected"},
		{southbound.ErrTimeout, "node a/1 did not answer within 10s"},
	} {
		operator := dial(t, Options{Reader: &reader{store: f.store}, Nodes: &table{err: c.err}})
		wantRefused(t, operator, "a/1", codes.Unavailable, c.text)
	}
}

func TestANodeThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := twoGroups(t)
		operator := dial(t, Options{Reader: &reader{store: f.store}, Nodes: &table{hangs: true}})
		_, err := operator.ListConnections(t.Context(), &controlplanepb.Node{Id: "a/1"})
		wantStatus(t, err, codes.Unavailable, "node a/1 did not answer within 10s")

		ctx, cancel := context.WithTimeout(t.Context(), listTimeout/2)
		defer cancel()
		if _, err := operator.ListNodeRoutes(ctx, &controlplanepb.Node{Id: "a/1"}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a caller with less patience got %v", err)
		}
	})
}

// Nodes name their peers by bare ids, or not at all.
func TestPeersAreNamed(t *testing.T) {
	f, link := twoGroups(t)
	f.register("c/1")
	unclaimed := f.link("a", "c")
	f.claim("a/1", link)
	const (
		local  = controllerpb.ConnectionType_CONNECTION_TYPE_LOCAL
		remote = controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE
		peer   = controllerpb.ConnectionType_CONNECTION_TYPE_PEER
		edge   = controllerpb.ConnectionType_CONNECTION_TYPE_EDGE
	)
	for _, c := range []struct {
		what string
		node string
		kind controllerpb.ConnectionType
		link string
		peer *string
		want *string
	}{
		{"the source of a link", "b/1", remote, link.ID, proto.String("1"), proto.String("a/1")},
		{"its destination", "a/1", remote, link.ID, nil, proto.String("b/1")},
		{"a link of others", "c/1", remote, link.ID, proto.String("1"), proto.String("1")},
		{"an unclaimed link", "c/1", remote, unclaimed.ID, proto.String("1"), proto.String("1")},
		{"an unclaimed link without a word", "c/1", remote, unclaimed.ID, nil, nil},
		{"an unknown link", "a/1", remote, "strange", proto.String("x"), proto.String("x")},
		{"no link", "a/1", remote, "", proto.String("x"), proto.String("x")},
		{"a sibling", "a/1", peer, "", proto.String("2"), proto.String("a/2")},
		{"a sibling with its full id", "a/1", peer, "", proto.String("a/2"), proto.String("a/2")},
		{"a sibling without a word", "a/1", peer, "", nil, nil},
		{"a local connection", "a/1", local, "", proto.String("app"), proto.String("app")},
		{"an edge connection", "a/1", edge, link.ID, proto.String("app"), proto.String("app")},
	} {
		t.Run(c.what, func(t *testing.T) {
			entry := func(peer *string) *controllerpb.ConnectionEntry {
				return &controllerpb.ConnectionEntry{Id: 7, ConnectionType: c.kind, LinkId: proto.String(c.link), PeerNodeId: peer}
			}
			nodes := &table{
				connections: []*controllerpb.ConnectionEntry{entry(c.peer)},
				routes:      []*controllerpb.RouteEntry{{Connections: []*controllerpb.ConnectionEntry{entry(c.peer)}}},
			}
			operator := dial(t, Options{Reader: &reader{store: f.store}, Nodes: nodes})
			connections, err := operator.ListConnections(t.Context(), &controlplanepb.Node{Id: c.node})
			if err != nil {
				t.Fatal(err)
			}
			wantEntries(t, connections.GetEntries(), entry(c.want))
			routes, err := operator.ListNodeRoutes(t.Context(), &controlplanepb.Node{Id: c.node})
			if err != nil {
				t.Fatal(err)
			}
			wantEntries(t, routes.GetEntries(), &controllerpb.RouteEntry{Connections: []*controllerpb.ConnectionEntry{entry(c.want)}})
			if !connections.GetDone() || !routes.GetDone() {
				t.Error("the only message of an answer is not its last")
			}
		})
	}
}
