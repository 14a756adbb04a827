package northbound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// listTimeout bounds the wait for a node's answer, behind the command that it
// may be working on.
const listTimeout = 10 * time.Second

// ListConnections answers with the connections that a node reports now. Only
// the leader asks nodes.
func (s *Service) ListConnections(ctx context.Context, request *controlplanepb.Node) (*controllerpb.ConnectionListResponse, error) {
	return atLeader(ctx, s, controlplanepb.ControlPlaneService_ListConnections_FullMethodName, request,
		func(ctx context.Context) (*controllerpb.ConnectionListResponse, error) {
			return s.listConnections(ctx, request)
		})
}

func (s *Service) listConnections(ctx context.Context, request *controlplanepb.Node) (*controllerpb.ConnectionListResponse, error) {
	asked, err := s.connectedNode(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	entries, err := askNode(ctx, s, asked.node.ID, s.nodes.ListConnections)
	if err != nil {
		return nil, err
	}
	asked.namePeers(entries)
	return &controllerpb.ConnectionListResponse{Entries: entries, Done: true}, nil
}

// ListNodeRoutes answers with the routes that a node reports now. Only
// the leader asks nodes.
func (s *Service) ListNodeRoutes(ctx context.Context, request *controlplanepb.Node) (*controllerpb.RouteListResponse, error) {
	return atLeader(ctx, s, controlplanepb.ControlPlaneService_ListNodeRoutes_FullMethodName, request,
		func(ctx context.Context) (*controllerpb.RouteListResponse, error) {
			return s.listNodeRoutes(ctx, request)
		})
}

func (s *Service) listNodeRoutes(ctx context.Context, request *controlplanepb.Node) (*controllerpb.RouteListResponse, error) {
	asked, err := s.connectedNode(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	entries, err := askNode(ctx, s, asked.node.ID, s.nodes.ListRoutes)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		asked.namePeers(entry.GetConnections())
	}
	return &controllerpb.RouteListResponse{Entries: entries, Done: true}, nil
}

// askedNode is a node in the view in which it was found.
type askedNode struct {
	view *fsm.View
	node *fsm.Node
}

// connectedNode finds a node that can be asked. Errors carry a gRPC status.
func (s *Service) connectedNode(ctx context.Context, id string) (askedNode, error) {
	view, err := s.view(ctx)
	if err != nil {
		return askedNode{}, err
	}
	node, known := view.Node(id)
	switch {
	case !known:
		return askedNode{}, s.statusOf(fmt.Errorf("node %s %w", shown(id), errNodeNotFound))
	case !node.Connected():
		return askedNode{}, s.statusOf(fmt.Errorf("node %s %w", id, errNotConnected))
	}
	return askedNode{view: view, node: node}, nil
}

// askNode calls a method of the lister with a deadline.
func askNode[Entry any](
	ctx context.Context, s *Service, nodeID string, list func(context.Context, string) ([]Entry, error),
) ([]Entry, error) {
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	entries, err := list(bounded, nodeID)
	switch {
	case err == nil:
		return entries, nil
	case ctx.Err() != nil:
		return nil, s.statusOf(ctx.Err())
	case errors.Is(err, southbound.ErrNoSession), errors.Is(err, southbound.ErrStreamEnded):
		return nil, s.statusOf(fmt.Errorf("node %s %w", nodeID, errNotConnected))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, southbound.ErrTimeout):
		return nil, s.statusOf(fmt.Errorf("node %s %w within %v", nodeID, errNoAnswer, listTimeout))
	}
	return nil, s.statusOf(&unansweredError{cause: err})
}

// namePeers fills in full node ids where a node knows bare ones, or none.
func (a askedNode) namePeers(connections []*controllerpb.ConnectionEntry) {
	for _, connection := range connections {
		switch connection.GetConnectionType() {
		case controllerpb.ConnectionType_CONNECTION_TYPE_PEER:
			a.namePeer(connection)
		case controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE:
			a.nameLinkEnd(connection)
		}
	}
}

// namePeer names a node of the same group.
func (a askedNode) namePeer(connection *controllerpb.ConnectionEntry) {
	prefix := a.node.Group + "/"
	if connection.PeerNodeId == nil || a.node.Group == "" || strings.HasPrefix(connection.GetPeerNodeId(), prefix) {
		return
	}
	named := prefix + connection.GetPeerNodeId()
	connection.PeerNodeId = &named
}

// nameLinkEnd names the node at the other end of a link. While nobody has
// claimed it, the node's own word is the best there is.
func (a askedNode) nameLinkEnd(connection *controllerpb.ConnectionEntry) {
	link, ok := a.view.Link(connection.GetLinkId())
	if !ok || (link.SourceNode != a.node.ID && link.DestNode != a.node.ID) {
		return
	}
	if peer := link.PeerOf(a.node.ID); peer != "" {
		connection.PeerNodeId = &peer
	}
}
