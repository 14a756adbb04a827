package operator

import (
	"context"

	"google.golang.org/grpc"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// hostile is a control plane of which everything bears one name.
type hostile struct {
	stub
	name string
}

func (s *hostile) ListNodes(_ *controlplanepb.NodeListRequest, stream controlplanepb.ControlPlaneService_ListNodesServer) error {
	return stream.Send(&controlplanepb.NodeEntry{Id: s.name, Domain: s.name})
}

func (s *hostile) ListRoutes(_ *controlplanepb.RouteListRequest, stream controlplanepb.ControlPlaneService_ListRoutesServer) error {
	return stream.Send(&controlplanepb.RouteEntry{SourceNodeId: s.name, Name: name(s.name, "b", "c", nil)})
}

func (s *hostile) ListLinks(request *controlplanepb.LinkListRequest, stream controlplanepb.ControlPlaneService_ListLinksServer) error {
	if request.GetSrcNodeId() != "" {
		return nil
	}
	return stream.Send(&controlplanepb.LinkEntry{SourceNodeId: s.name})
}

func (s *hostile) ListGroups(context.Context, *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	return &controlplanepb.ListDomainsResponse{Domains: []*controlplanepb.DomainEntry{{DomainName: s.name, Nodes: []string{s.name}}}}, nil
}

func (s *hostile) ListSegments(context.Context, *controlplanepb.SegmentListRequest) (*controlplanepb.SegmentListResponse, error) {
	return &controlplanepb.SegmentListResponse{Segments: []*controlplanepb.SegmentEntry{{Name: s.name}}}, nil
}

func (s *hostile) ListConnections(context.Context, *controlplanepb.Node) (*controllerpb.ConnectionListResponse, error) {
	return &controllerpb.ConnectionListResponse{Entries: []*controllerpb.ConnectionEntry{{LinkId: &s.name}}}, nil
}

func (s *hostile) ListNodeRoutes(context.Context, *controlplanepb.Node) (*controllerpb.RouteListResponse, error) {
	return &controllerpb.RouteListResponse{Entries: []*controllerpb.RouteEntry{{Name: name(s.name, "b", "c", nil)}}}, nil
}

func (s *hostile) Convergence(context.Context, *slimcppb.ConvergenceRequest) (*slimcppb.ConvergenceResponse, error) {
	return &slimcppb.ConvergenceResponse{Lines: []string{s.name}, Warnings: []string{s.name}}, nil
}

func (s *hostile) ClusterStatus(context.Context, *slimcppb.ClusterStatusRequest) (*slimcppb.ClusterStatusResponse, error) {
	return &slimcppb.ClusterStatusResponse{
		ClusterId: s.name, LeaderId: s.name, Notes: []string{s.name}, Replicas: []*slimcppb.ReplicaStatus{{Name: s.name, ReplicaId: s.name}},
	}, nil
}

func (s *hostile) Join(_ *slimcppb.JoinClusterRequest, stream grpc.ServerStreamingServer[slimcppb.JoinProgress]) error {
	return stream.Send(&slimcppb.JoinProgress{ReplicaId: s.name, Line: s.name, Done: true})
}

func (s *hostile) TransferLeadership(context.Context, *slimcppb.TransferLeadershipRequest) (*slimcppb.TransferLeadershipResponse, error) {
	return &slimcppb.TransferLeadershipResponse{LeaderId: s.name}, nil
}
