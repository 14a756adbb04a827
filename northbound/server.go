package northbound

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/slim-cp/slim-cp/budget"
	"github.com/slim-cp/slim-cp/cluster"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// maxRequestBytes bounds a message of a caller, 1 MiB: no change is larger than a
	// command of the log may be, and a snapshot comes in parts.
	maxRequestBytes = 2 * cluster.MaxCommandBytes
	// maxAnswerBytes bounds a message to a caller. The largest is a node's own table.
	maxAnswerBytes = 64 << 20
	// maxHeaderBytes bounds the metadata of a call.
	maxHeaderBytes = 64 << 10
	// maxConcurrentStreams bounds the calls of one connection: each list holds a
	// view.
	maxConcurrentStreams = 256
	// keepaliveTime and keepaliveTimeout end the calls of a client that is gone
	// without a word; its lists would hold their views for hours.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
	// streamWorkers answer calls on stacks that have grown already: a goroutine for
	// each call copies its stack several times on the way to the log. Calls beyond
	// them get a goroutine.
	streamWorkers = 128
	// minClientKeepalive is how often a client may ping before it is cut off.
	minClientKeepalive = 5 * time.Second
)

// NewServer returns a gRPC server with both services of the operator API, health
// and reflection.
// The options come on top, for instance the transport's credentials.
func NewServer(service *Service, health *Health, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unaryWords),
		grpc.ChainStreamInterceptor(streamWords),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxSendMsgSize(maxAnswerBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ForceServerCodecV2(budget.Codec()),
		budget.NoCompression(),
		grpc.InTapHandle(budget.Opened),
		grpc.ChainStreamInterceptor(budget.HoldStream),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientKeepalive, PermitWithoutStream: true}),
	}, options...)...)
	controlplanepb.RegisterControlPlaneServiceServer(server, service)
	slimcppb.RegisterClusterServiceServer(server, service)
	RegisterIntrospection(server, health)
	return server
}
