package northbound

import (
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	connected    = controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
	notConnected = controlplanepb.NodeStatus_NODE_STATUS_NOT_CONNECTED
)

// wantEntries compares messages one by one.
func wantEntries[Entry proto.Message](tb testing.TB, got []Entry, want ...Entry) {
	tb.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			tb.Errorf("entry %d is missing: %v", i, want[i])
		case i >= len(want):
			tb.Errorf("entry %d is too much: %v", i, got[i])
		case !proto.Equal(got[i], want[i]):
			tb.Errorf("entry %d is\n%v\nwant\n%v", i, got[i], want[i])
		}
	}
}

func TestListNodes(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("b/2")
	f.register("lonely", inner())
	f.register("a/1", inner(), &slimcppb.ConnectionDetail{
		Endpoint: "0.0.0.0:2", ExternalEndpoint: proto.String("a-ext:2"), TlsRequired: true,
		AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE, TrustDomain: "a.example",
	}, &slimcppb.ConnectionDetail{Endpoint: "0.0.0.0:3", ExternalEndpoint: proto.String(""), AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_OIDC})
	f.lose("b/2")
	wantEntries(t, f.operator(t).nodes(t),
		&controlplanepb.NodeEntry{
			Id: "a/1", Domain: "a", Status: connected, Connections: []*controllerpb.ConnectionDetails{
				{Endpoint: "10.0.0.1:46357"},
				{
					Endpoint: "0.0.0.0:2", ExternalEndpoint: proto.String("a-ext:2"), TlsRequired: true,
					AuthMethod: controllerpb.AuthMethod_AUTH_METHOD_SPIRE, SpireTrustDomain: proto.String("a.example"),
				},
				{Endpoint: "0.0.0.0:3", ExternalEndpoint: proto.String(""), AuthMethod: controllerpb.AuthMethod_AUTH_METHOD_OIDC},
			},
		},
		&controlplanepb.NodeEntry{Id: "b/2", Domain: "b", Status: notConnected},
		&controlplanepb.NodeEntry{
			Id: "lonely", Status: connected, Connections: []*controllerpb.ConnectionDetails{{Endpoint: "10.0.0.1:46357"}},
		},
	)
}

// A node that comes back while nobody leads is connected only in the stale list
// of the replica that holds its stream.
func TestProvisionalNodes(t *testing.T) {
	f := newFleet(t, mesh())
	for _, id := range []string{"b/1", "c/1"} {
		f.register(id)
		f.lose(id)
	}
	operator := dial(t, Options{
		Reader:      &reader{store: f.store},
		Provisional: func() []string { return []string{"z", "b/1", "a/x/y", "b/3"} },
	})

	ctx := metadata.AppendToOutgoingContext(t.Context(), ConsistencyKey, Stale)
	stale, err := collect(ctx, operator.ListNodes, &controlplanepb.NodeListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEntries(t, stale,
		&controlplanepb.NodeEntry{Id: "a/x/y", Domain: "a", Status: connected},
		&controlplanepb.NodeEntry{Id: "b/1", Domain: "b", Status: connected},
		&controlplanepb.NodeEntry{Id: "b/3", Domain: "b", Status: connected},
		&controlplanepb.NodeEntry{Id: "c/1", Domain: "c", Status: notConnected},
		&controlplanepb.NodeEntry{Id: "z", Status: connected},
	)
	wantEntries(t, operator.nodes(t),
		&controlplanepb.NodeEntry{Id: "b/1", Domain: "b", Status: notConnected},
		&controlplanepb.NodeEntry{Id: "c/1", Domain: "c", Status: notConnected},
	)
}
