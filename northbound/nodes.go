package northbound

import (
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// ListNodes streams all nodes by id.
func (s *Service) ListNodes(_ *controlplanepb.NodeListRequest, stream grpc.ServerStreamingServer[controlplanepb.NodeEntry]) error {
	view, err := s.view(stream.Context())
	if err != nil {
		return err
	}
	provisional := s.provisionalNodes(stream)
	for node := range view.Nodes() {
		for len(provisional) > 0 && provisional[0] < node.ID {
			if err := stream.Send(provisionalEntry(provisional[0])); err != nil {
				return err
			}
			provisional = provisional[1:]
		}
		entry := nodeEntry(node)
		if len(provisional) > 0 && provisional[0] == node.ID {
			entry.Status = controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
			provisional = provisional[1:]
		}
		if err := stream.Send(entry); err != nil {
			return err
		}
	}
	for _, id := range provisional {
		if err := stream.Send(provisionalEntry(id)); err != nil {
			return err
		}
	}
	return nil
}

// provisionalNodes returns in order the nodes that only a stale list of this
// replica knows as connected (protocol S6).
func (s *Service) provisionalNodes(stream grpc.ServerStream) []string {
	if wanted, err := consistency(stream.Context()); err != nil || wanted != Stale {
		return nil
	}
	ids := slices.Clone(s.provisional())
	slices.Sort(ids)
	return slices.Compact(ids)
}

// provisionalEntry shows a node of which the state knows nothing yet. Its group
// is the part of its id before the first slash: groups hold none, nor do ids
// without a group (protocol A8).
func provisionalEntry(id string) *controlplanepb.NodeEntry {
	entry := &controlplanepb.NodeEntry{Id: id, Status: controlplanepb.NodeStatus_NODE_STATUS_CONNECTED}
	if group, _, grouped := strings.Cut(id, "/"); grouped {
		entry.Domain = group
	}
	return entry
}

func nodeEntry(node *fsm.Node) *controlplanepb.NodeEntry {
	entry := &controlplanepb.NodeEntry{
		Id:     node.ID,
		Status: controlplanepb.NodeStatus_NODE_STATUS_NOT_CONNECTED,
		Domain: node.Group,
	}
	if node.Connected() {
		entry.Status = controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
	}
	for _, detail := range node.Details {
		entry.Connections = append(entry.Connections, connectionDetails(detail))
	}
	return entry
}

func connectionDetails(detail fsm.ConnectionDetail) *controllerpb.ConnectionDetails {
	shown := &controllerpb.ConnectionDetails{
		Endpoint:    detail.Endpoint,
		TlsRequired: detail.TLSRequired,
		// Both enums have the wire's numbers.
		AuthMethod: controllerpb.AuthMethod(detail.AuthMethod),
	}
	if detail.HasExternal {
		shown.ExternalEndpoint = &detail.ExternalEndpoint
	}
	if detail.TrustDomain != "" {
		shown.SpireTrustDomain = &detail.TrustDomain
	}
	return shown
}
