package northbound

import (
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// ListRoutes streams templates first, then the routes of each node, one row for
// each announcer (protocol N2). It waits for a slow reader, which costs the
// memory of the view's age but none for rows that wait.
func (s *Service) ListRoutes(request *controlplanepb.RouteListRequest, stream grpc.ServerStreamingServer[controlplanepb.RouteEntry]) error {
	view, err := s.view(stream.Context())
	if err != nil {
		return err
	}
	for route := range view.Routes(fsm.RouteFilter{Source: request.GetSrcNodeId(), Dest: request.GetDestNodeId()}) {
		if err := stream.Send(routeEntry(route)); err != nil {
			return err
		}
	}
	return nil
}

func routeEntry(route fsm.Route) *controlplanepb.RouteEntry {
	return &controlplanepb.RouteEntry{
		Id:           routeID(route),
		SourceNodeId: route.NodeID,
		DestNodeId:   route.Announcer.NodeID,
		Name:         route.Name.Wire(),
		Status:       routeStatus(route.Status),
		StatusMsg:    route.Message,
		LastUpdated:  unixSeconds(route.UpdatedAt),
		LinkId:       route.LinkID,
	}
}

// routeID is a version 5 UUID in the OID namespace of what makes a row the row
// it is. The order of the parts is the wire schema's, not ours.
func routeID(route fsm.Route) string {
	var instance string
	if route.Name.ID != fsm.NoInstance {
		instance = route.Name.ID.String()
	}
	parts := []string{
		route.NodeID, route.Name.C0, route.Name.C1, route.Name.C2, instance, route.Announcer.NodeID, route.LinkID,
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(strings.Join(parts, "\x00"))).String()
}

func routeStatus(status fsm.RouteStatus) controlplanepb.RouteStatus {
	switch status {
	case fsm.RoutePending:
		return controlplanepb.RouteStatus_ROUTE_STATUS_PENDING
	case fsm.RouteApplied:
		return controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED
	case fsm.RouteFailed:
		return controlplanepb.RouteStatus_ROUTE_STATUS_FAILED
	case fsm.RouteDeleted:
		return controlplanepb.RouteStatus_ROUTE_STATUS_DELETED
	}
	return controlplanepb.RouteStatus_ROUTE_STATUS_UNSPECIFIED
}
