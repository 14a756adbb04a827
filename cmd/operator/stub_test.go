package operator

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// stub is a control plane with fixed answers. It notes what it was asked.
type stub struct {
	controlplanepb.UnimplementedControlPlaneServiceServer
	slimcppb.UnimplementedClusterServiceServer

	empty bool
	// fail, if set, is the answer to every call.
	fail error
	// hang makes every call wait for its deadline.
	hang bool
	// unconverged is how often Convergence says no.
	unconverged int
	// warnings are Convergence's.
	warnings []string
	// departed is how many nodes are gone by Convergence's word; each answer has one less.
	departed uint64
	// preview is the answer of PreviewFleetConfig, nil: an older replica has none.
	preview *slimcppb.PreviewFleetConfigResponse
	// during, if set, runs in the middle of each call.
	during func()
	// linkIDBytes makes the one connection that large.
	linkIDBytes int
	// snapshot is what is saved, or was restored; cutOff loses the end of the
	// stream.
	snapshot []byte
	cutOff   bool
	// alone is the state of a cluster whose other members are gone; novote is a join
	// that never ends.
	alone, novote bool

	mu            sync.Mutex
	methods       []string
	requests      []proto.Message
	authorization []string
}

// note records a call and returns what it has to fail with.
func (s *stub) note(ctx context.Context, method string, request proto.Message) error {
	s.mu.Lock()
	s.methods = append(s.methods, method)
	s.requests = append(s.requests, request)
	incoming, _ := metadata.FromIncomingContext(ctx)
	s.authorization = incoming.Get("authorization")
	during := s.during
	s.mu.Unlock()
	if during != nil {
		during()
	}
	if s.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.fail
}

// calls returns how many calls there were.
func (s *stub) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.methods)
}

func (s *stub) lastMethod() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.methods) == 0 {
		return ""
	}
	return s.methods[len(s.methods)-1]
}

func (s *stub) lastRequest() proto.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return nil
	}
	return s.requests[len(s.requests)-1]
}

func (s *stub) lastAuthorization() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.authorization, ",")
}

func name(c0, c1, c2 string, id *dataplanepb.NameId) *dataplanepb.Name {
	return &dataplanepb.Name{
		Name:    &dataplanepb.EncodedName{NameId: id},
		StrName: &dataplanepb.StringName{StrComponent_0: c0, StrComponent_1: c1, StrComponent_2: c2},
	}
}

func (s *stub) ListNodes(request *controlplanepb.NodeListRequest, stream controlplanepb.ControlPlaneService_ListNodesServer) error {
	if err := s.note(stream.Context(), "ListNodes", request); err != nil || s.empty {
		return err
	}
	for _, node := range []*controlplanepb.NodeEntry{
		{
			Id: "alpha/gateway-1", Domain: "alpha", Status: controlplanepb.NodeStatus_NODE_STATUS_CONNECTED,
			Connections: []*controllerpb.ConnectionDetails{
				{Endpoint: "0.0.0.0:46357", ExternalEndpoint: proto.String("alpha.example:46357"), TlsRequired: true},
				{Endpoint: "0.0.0.0:1", ExternalEndpoint: proto.String("never-shown:1")},
			},
		},
		{
			Id: "beta/b", Domain: "beta", Status: controlplanepb.NodeStatus_NODE_STATUS_NOT_CONNECTED,
			Connections: []*controllerpb.ConnectionDetails{{Endpoint: "0.0.0.0:46357"}},
		},
		{
			Id: "empty-endpoint", Domain: "", Status: controlplanepb.NodeStatus_NODE_STATUS_UNSPECIFIED,
			Connections: []*controllerpb.ConnectionDetails{{Endpoint: "10.0.0.9:1", ExternalEndpoint: proto.String("")}},
		},
		{Id: "naïve/n", Domain: "naïve"},
	} {
		if err := stream.Send(node); err != nil {
			return err
		}
	}
	return nil
}

func (s *stub) ListConnections(ctx context.Context, request *controlplanepb.Node) (*controllerpb.ConnectionListResponse, error) {
	if err := s.note(ctx, "ListConnections", request); err != nil || s.empty {
		return &controllerpb.ConnectionListResponse{}, err
	}
	if s.linkIDBytes > 0 {
		long := strings.Repeat("x", s.linkIDBytes)
		return &controllerpb.ConnectionListResponse{Entries: []*controllerpb.ConnectionEntry{{LinkId: &long}}}, nil
	}
	return &controllerpb.ConnectionListResponse{Done: true, Entries: connections()}, nil
}

func connections() []*controllerpb.ConnectionEntry {
	return []*controllerpb.ConnectionEntry{
		{
			Id: 4, ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE,
			LinkId: proto.String("0198c0de-0000-7000-8000-000000000001"), PeerNodeId: proto.String("beta/b"),
		},
		{Id: 5, ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_LOCAL},
		{
			Id: math.MaxUint64, ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_PEER,
			Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING, PeerNodeId: proto.String("alpha/gateway-2"),
		},
		{
			Id: 7, ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_EDGE,
			Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING, PeerNodeId: proto.String("ignored"), LinkId: proto.String(""),
		},
	}
}

func (s *stub) ListNodeRoutes(ctx context.Context, request *controlplanepb.Node) (*controllerpb.RouteListResponse, error) {
	if err := s.note(ctx, "ListNodeRoutes", request); err != nil || s.empty {
		return &controllerpb.RouteListResponse{}, err
	}
	return &controllerpb.RouteListResponse{Done: true, Entries: []*controllerpb.RouteEntry{
		{Name: name("org", "ns", "app", &dataplanepb.NameId{Id_0: 1, Id_1: 2}), Connections: connections()[:2]},
		{Name: name("org", "ns", "worker", nil), Connections: connections()[3:]},
		{Name: name("org", "ns", "orphan", nil)},
		{},
	}}, nil
}

func (s *stub) ListRoutes(request *controlplanepb.RouteListRequest, stream controlplanepb.ControlPlaneService_ListRoutesServer) error {
	if err := s.note(stream.Context(), "ListRoutes", request); err != nil || s.empty {
		return err
	}
	none := &dataplanepb.NameId{Id_0: math.MaxUint64, Id_1: math.MaxUint64}
	const link = "0198c0de-0000-7000-8000-000000000001"
	for _, route := range []*controlplanepb.RouteEntry{
		{Id: "t", SourceNodeId: "*", DestNodeId: "alpha/gateway-1", Name: name("org", "ns", "app", none), Status: controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED, LastUpdated: 1790000000},
		{Id: "a", SourceNodeId: "beta/b", DestNodeId: "alpha/gateway-1", Name: name("org", "ns", "app", &dataplanepb.NameId{Id_0: 0x0123456789abcdef, Id_1: 0xfedcba9876543210}), Status: controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED, LinkId: link},
		{Id: "f", SourceNodeId: "beta/b", Name: name("org", "ns", "x", &dataplanepb.NameId{Id_1: math.MaxUint64}), Status: controlplanepb.RouteStatus_ROUTE_STATUS_FAILED, StatusMsg: "connection not found", LinkId: link},
		{Id: "d", SourceNodeId: "gamma/g", DestNodeId: "beta/b", Name: name("org", "ns", "y", none), Status: controlplanepb.RouteStatus_ROUTE_STATUS_DELETED},
		{Id: "p", SourceNodeId: "gamma/g", DestNodeId: "beta/b", Status: controlplanepb.RouteStatus_ROUTE_STATUS_PENDING, LinkId: link},
		{Id: "u", SourceNodeId: "gamma/g", DestNodeId: "beta/b", Name: name("org", "ns", "z", nil)},
	} {
		if err := stream.Send(route); err != nil {
			return err
		}
	}
	return nil
}

func (s *stub) ListLinks(request *controlplanepb.LinkListRequest, stream controlplanepb.ControlPlaneService_ListLinksServer) error {
	if err := s.note(stream.Context(), "ListLinks", request); err != nil || s.empty {
		return err
	}
	for _, link := range []*controlplanepb.LinkEntry{
		{LinkId: "0198c0de-0000-7000-8000-000000000001", SourceNodeId: "alpha/gateway-1", DestNodeId: "beta/b", DestEndpoint: "http://beta.example:46357", ConnConfigData: `{"endpoint":"http://beta.example:46357"}`, Status: controlplanepb.LinkStatus_LINK_STATUS_APPLIED, LastUpdated: 1790000000},
		{LinkId: "0198c0de-0000-7000-8000-000000000002", SourceNodeId: "alpha/gateway-1", DestEndpoint: "http://gamma.example:46357", Status: controlplanepb.LinkStatus_LINK_STATUS_PENDING},
		{LinkId: "0198c0de-0000-7000-8000-000000000003", SourceNodeId: "gamma/g", DestNodeId: "beta/b", DestEndpoint: "http://beta.example:46357", Status: controlplanepb.LinkStatus_LINK_STATUS_FAILED, StatusMsg: "refused"},
		{LinkId: "0198c0de-0000-7000-8000-000000000004", SourceNodeId: "gamma/g", DestNodeId: "beta/b", Deleted: true},
		{LinkId: "-", SourceNodeId: "beta", DestNodeId: "delta", DestEndpoint: "-", Status: controlplanepb.LinkStatus_LINK_STATUS_PENDING},
	} {
		if err := stream.Send(link); err != nil {
			return err
		}
	}
	return nil
}

func (s *stub) ListSegments(ctx context.Context, request *controlplanepb.SegmentListRequest) (*controlplanepb.SegmentListResponse, error) {
	if err := s.note(ctx, "ListSegments", request); err != nil || s.empty {
		return &controlplanepb.SegmentListResponse{}, err
	}
	return &controlplanepb.SegmentListResponse{Segments: []*controlplanepb.SegmentEntry{
		{Name: "default"},
		{Name: "partners", Domains: []string{"alpha", "beta", "gamma"}, Edges: []*controlplanepb.SegmentEdge{{DomainA: "alpha", DomainB: "beta"}, {DomainA: "alpha", DomainB: "gamma"}}},
	}}, nil
}

func (s *stub) ListDomains(ctx context.Context, request *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	return s.members(ctx, "ListDomains", request)
}

func (s *stub) ListGroups(ctx context.Context, request *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	return s.members(ctx, "ListGroups", request)
}

func (s *stub) members(ctx context.Context, method string, request proto.Message) (*controlplanepb.ListDomainsResponse, error) {
	if err := s.note(ctx, method, request); err != nil || s.empty {
		return &controlplanepb.ListDomainsResponse{}, err
	}
	return &controlplanepb.ListDomainsResponse{Domains: []*controlplanepb.DomainEntry{
		{DomainName: "alpha", Nodes: []string{"alpha/gateway-1", "alpha/gateway-2"}},
		{DomainName: "delta"},
	}}, nil
}

func (s *stub) AddSegment(ctx context.Context, request *controlplanepb.AddSegmentRequest) (*controlplanepb.AddSegmentResponse, error) {
	return &controlplanepb.AddSegmentResponse{}, s.note(ctx, "AddSegment", request)
}

func (s *stub) RemoveSegment(ctx context.Context, request *controlplanepb.RemoveSegmentRequest) (*controlplanepb.RemoveSegmentResponse, error) {
	return &controlplanepb.RemoveSegmentResponse{}, s.note(ctx, "RemoveSegment", request)
}

// AddTopologyLink warns of groups whose name begins with "new".
func (s *stub) AddTopologyLink(ctx context.Context, request *controlplanepb.AddTopologyLinkRequest) (*controlplanepb.AddTopologyLinkResponse, error) {
	response := &controlplanepb.AddTopologyLinkResponse{}
	for _, group := range []string{request.GetDomainA(), request.GetDomainB()} {
		if strings.HasPrefix(group, "new") {
			response.Warnings = append(response.Warnings, "nobody knows "+group)
		}
	}
	return response, s.note(ctx, "AddTopologyLink", request)
}

func (s *stub) RemoveTopologyLink(ctx context.Context, request *controlplanepb.RemoveTopologyLinkRequest) (*controlplanepb.RemoveTopologyLinkResponse, error) {
	return &controlplanepb.RemoveTopologyLinkResponse{}, s.note(ctx, "RemoveTopologyLink", request)
}

func (s *stub) AddDomain(ctx context.Context, request *controlplanepb.AddDomainRequest) (*controlplanepb.AddDomainResponse, error) {
	return &controlplanepb.AddDomainResponse{}, s.note(ctx, "AddDomain", request)
}

func (s *stub) AddGroup(ctx context.Context, request *controlplanepb.AddDomainRequest) (*controlplanepb.AddDomainResponse, error) {
	return &controlplanepb.AddDomainResponse{}, s.note(ctx, "AddGroup", request)
}

func (s *stub) RemoveDomain(ctx context.Context, request *controlplanepb.RemoveDomainRequest) (*controlplanepb.RemoveDomainResponse, error) {
	return &controlplanepb.RemoveDomainResponse{}, s.note(ctx, "RemoveDomain", request)
}

func (s *stub) RemoveGroup(ctx context.Context, request *controlplanepb.RemoveDomainRequest) (*controlplanepb.RemoveDomainResponse, error) {
	return &controlplanepb.RemoveDomainResponse{}, s.note(ctx, "RemoveGroup", request)
}

func (s *stub) ExplainLink(ctx context.Context, request *slimcppb.ExplainLinkRequest) (*slimcppb.Explanation, error) {
	return &slimcppb.Explanation{
		Works: true, Lines: []string{"the topology links groups a and b in segment default", "it stands\x1b[2J since today"}, Index: 41,
	}, s.note(ctx, "ExplainLink", request)
}

func (s *stub) ExplainRoute(ctx context.Context, request *slimcppb.ExplainRouteRequest) (*slimcppb.Explanation, error) {
	return &slimcppb.Explanation{Lines: []string{"nobody announces " + request.GetName()}, Index: 42}, s.note(ctx, "ExplainRoute", request)
}

func (s *stub) Convergence(ctx context.Context, request *slimcppb.ConvergenceRequest) (*slimcppb.ConvergenceResponse, error) {
	err := s.note(ctx, "Convergence", request)
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &slimcppb.ConvergenceResponse{
		Converged: true, Index: 43, Nodes: 3, ConnectedNodes: 3, Links: 2, AppliedLinks: 2, Routes: 9, AppliedRoutes: 9,
		Warnings: s.warnings, DepartedNodes: s.departed,
	}
	if s.departed > 0 {
		s.departed--
	}
	if s.unconverged > 0 {
		s.unconverged--
		answer.Converged, answer.ConnectedNodes, answer.AppliedRoutes = false, 2, 4
		answer.Lines = []string{"node a/1 does not answer", "node b/1: 5 routes are not applied"}
	}
	return answer, err
}

func (s *stub) ApplyFleetConfig(ctx context.Context, request *slimcppb.ApplyFleetConfigRequest) (*slimcppb.ApplyFleetConfigResponse, error) {
	return &slimcppb.ApplyFleetConfigResponse{Changed: !s.empty, Index: 44}, s.note(ctx, "ApplyFleetConfig", request)
}

func (s *stub) PreviewFleetConfig(_ context.Context, _ *slimcppb.PreviewFleetConfigRequest) (*slimcppb.PreviewFleetConfigResponse, error) {
	if s.preview == nil {
		return nil, status.Error(codes.Unimplemented, "an older replica")
	}
	return s.preview, nil
}

// services are what a control plane serves.
type services interface {
	controlplanepb.ControlPlaneServiceServer
	slimcppb.ClusterServiceServer
}

// serve starts the stub on a loopback port and returns its address.
func serve(t *testing.T, s services, options ...grpc.ServerOption) string {
	t.Helper()
	address, _ := serveUntil(t, s, options...)
	return address
}

// serveUntil also returns a function that ends all connections.
func serveUntil(t *testing.T, s services, options ...grpc.ServerOption) (string, func()) {
	t.Helper()
	listener := listen(t)
	server := grpc.NewServer(options...)
	controlplanepb.RegisterControlPlaneServiceServer(server, s)
	slimcppb.RegisterClusterServiceServer(server, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-stopped
	})
	return listener.Addr().String(), server.Stop
}

// listen takes a free port below the range that the system hands out by itself.
func listen(t *testing.T) net.Listener {
	t.Helper()
	var err error
	for range 100 {
		var listener net.Listener
		listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if err == nil {
			return listener
		}
	}
	t.Fatalf("no free port: %v", err)
	return nil
}

// isolate gives the test an empty home and working directory and none of the
// variables that the commands read. It returns the home.
func isolate(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Chdir(t.TempDir())
	for _, v := range []vocabulary{SlimCP.vocabulary(), Slimctl.vocabulary()} {
		for _, flag := range []string{configFlag, basicAuthFlag, serverFlag, timeoutFlag, skipVerifyFlag, caFileFlag, certFileFlag, keyFileFlag} {
			if variable(v, flag) != "" {
				t.Setenv(variable(v, flag), "")
			}
		}
	}
	return home
}

// outcome is what a user sees of one command.
type outcome struct {
	stdout, stderr string
	code           int
}

// run executes one command line, given as by a user after the program's name.
func run(t *testing.T, options Options, arguments ...string) outcome {
	t.Helper()
	return runWith(t, "", options, arguments...)
}

// runWith is run with something on standard input.
func runWith(t *testing.T, input string, options Options, arguments ...string) outcome {
	t.Helper()
	root := &cobra.Command{Use: "slim-cp"}
	top := root
	if options.Dialect == Slimctl {
		root = &cobra.Command{Use: "slimctl"}
		top = &cobra.Command{Use: "controller", Aliases: []string{"c", "ctrl"}}
		root.AddCommand(top)
		options.ConnectionFlags = root.PersistentFlags()
	}
	top.AddCommand(NewCommands(options)...)

	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetIn(strings.NewReader(input))
	root.SetArgs(arguments)
	code := Execute(t.Context(), root)
	return outcome{stdout.String(), stderr.String(), code}
}
