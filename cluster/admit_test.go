package cluster_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// stranger connects to a replica's cluster port as one that has the id of the
// cluster and is no member.
func (e *ensemble) stranger(to string) slimcppb.ReplicaServiceClient {
	e.tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.tb.Fatal(err)
	}
	port := peer.NewPort(peer.Options{
		Listener: listener, Dial: e.network.dial("stranger"), Logger: quiet(e.tb),
		Hello: func() *slimcppb.Hello {
			return &slimcppb.Hello{
				ClusterId: e.replicas[to].ClusterID(), ReplicaId: "stranger-00000001", BootId: "boot", Advertise: "stranger:1",
			}
		},
		Admit:   func(context.Context, *slimcppb.Hello) error { return nil },
		Refused: func(*slimcppb.HelloAnswer, error) {},
	})
	e.tb.Cleanup(func() { _ = port.Close() })
	conn, err := grpc.NewClient("passthrough:///"+to+":1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, _, err := port.Dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, address)
			return conn, err
		}))
	if err != nil {
		e.tb.Fatal(err)
	}
	e.tb.Cleanup(func() { _ = conn.Close() })
	return slimcppb.NewReplicaServiceClient(conn)
}

// The id of a cluster is no secret, and makes nobody a member.
func TestStrangersMayOnlyAskToJoin(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b")
	stranger := e.stranger(e.leader())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := stranger.Describe(ctx, &slimcppb.DescribeRequest{}); err != nil {
		t.Errorf("what anybody may ask: %v", err)
	}
	for what, call := range map[string]func() error{
		"propose": func() error { _, err := stranger.Propose(ctx, &slimcppb.ProposeRequest{}); return err },
		"confirm": func() error { _, err := stranger.Confirm(ctx, &slimcppb.ConfirmRequest{}); return err },
		"index":   func() error { _, err := stranger.ReadIndex(ctx, &slimcppb.ReadIndexRequest{}); return err },
		"farewell": func() error {
			_, err := stranger.Farewell(ctx, &slimcppb.FarewellRequest{ReplicaId: e.replicas[e.leader()].ReplicaID()})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What no replica could apply would end all of them, at each start again: a leader
// looks at what another replica has encoded before it is in the log.
func TestForwardedGarbageDoesNotEnterTheLog(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	encode := func(command *slimcppb.Command) []byte {
		encoded, err := proto.Marshal(command)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	good := register(3)
	good.Schema, good.Generation = 1, e.replicas["b"].View().Generation()
	newer, decided, unknown := register(1), register(2), encode(&slimcppb.Command{RequestId: "x"})
	newer.Schema, decided.Term = 1000, 1
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 1000, protowire.BytesType), []byte("a kind of later"))
	conn, _, err := e.replicas["b"].LeaderConn(false)
	if err != nil {
		t.Fatal(err)
	}
	commands := [][]byte{[]byte("garbage"), nil, {0x0a, 0xff}, encode(newer), encode(decided), unknown, encode(good)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	before := e.replicas["a"].LastLogIndex()
	response, err := slimcppb.NewReplicaServiceClient(conn).Propose(ctx, &slimcppb.ProposeRequest{Commands: commands})
	if err != nil {
		t.Fatal(err)
	}
	for i, outcome := range response.GetOutcomes() {
		want := slimcppb.ProposalError_PROPOSAL_ERROR_INVALID
		if i == len(commands)-1 {
			want = slimcppb.ProposalError_PROPOSAL_ERROR_NONE
		}
		if outcome.GetError() != want {
			t.Errorf("command %d: %v", i, outcome)
		}
	}
	if added := e.replicas["a"].LastLogIndex() - before; added != 1 {
		t.Errorf("%d entries entered the log for one good command", added)
	}
	for name, replica := range e.replicas {
		view, err := replica.Read(t.Context())
		if err != nil || !hasNode(view, 3) {
			t.Errorf("%s: %v, %v", name, replica.Err(), err)
		}
	}
}
