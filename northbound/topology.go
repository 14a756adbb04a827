package northbound

import (
	"context"
	"slices"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// ListSegments answers with the segments by name, templates expanded for the
// groups that have nodes.
func (s *Service) ListSegments(ctx context.Context, _ *controlplanepb.SegmentListRequest) (*controlplanepb.SegmentListResponse, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	response := &controlplanepb.SegmentListResponse{}
	if len(view.Fleet().GetTopology().GetSegments()) == 0 {
		// A topology that is managed through the API has this segment always.
		response.Segments = append(response.Segments, &controlplanepb.SegmentEntry{Name: fsm.DefaultSegment})
		return response, nil
	}
	if view.NodeCount() == 0 {
		return response, nil // nothing has an edge yet
	}
	for _, segment := range view.Segments() {
		response.Segments = append(response.Segments, segmentEntry(segment))
	}
	return response, nil
}

func segmentEntry(segment fsm.SegmentInfo) *controlplanepb.SegmentEntry {
	entry := &controlplanepb.SegmentEntry{Name: segment.Name, Domains: segment.Groups}
	for _, edge := range segment.Edges {
		entry.Edges = append(entry.Edges, &controlplanepb.SegmentEdge{DomainA: edge[0], DomainB: edge[1]})
	}
	return entry
}

// ListDomains answers with the groups by name and all their nodes, connected or
// not.
func (s *Service) ListDomains(ctx context.Context, _ *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	response := &controlplanepb.ListDomainsResponse{}
	for group := range view.Groups() {
		if group.Name == "" {
			continue // nodes without a group
		}
		response.Domains = append(response.Domains, &controlplanepb.DomainEntry{
			DomainName: group.Name,
			Nodes:      slices.Collect(view.Members(group.Name)),
		})
	}
	return response, nil
}

// ListGroups is ListDomains under its older name.
func (s *Service) ListGroups(ctx context.Context, request *controlplanepb.ListDomainsRequest) (*controlplanepb.ListDomainsResponse, error) {
	return s.ListDomains(ctx, request)
}
