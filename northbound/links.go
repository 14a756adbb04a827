package northbound

import (
	"strings"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// ListLinks streams the links by id, also deleted ones while they are
// remembered, and then an entry for each pair of groups that should be linked
// and is not.
func (s *Service) ListLinks(request *controlplanepb.LinkListRequest, stream grpc.ServerStreamingServer[controlplanepb.LinkEntry]) error {
	view, err := s.view(stream.Context())
	if err != nil {
		return err
	}
	filter := linkFilter{source: request.GetSrcNodeId(), dest: request.GetDestNodeId()}
	pairs := newPairs(view)
	for link := range view.Links() {
		pairs.note(link)
		if !filter.matches(link) {
			continue
		}
		if err := stream.Send(linkEntry(link, view)); err != nil {
			return err
		}
	}
	for a, b := range pairs.unlinked() {
		if !filter.matchesPair(a, b) {
			continue
		}
		if err := stream.Send(pairs.entry(a, b)); err != nil {
			return err
		}
	}
	return nil
}

// linkFilter selects by exact ids; an empty field selects all.
type linkFilter struct{ source, dest string }

func (f linkFilter) matches(link *fsm.Link) bool {
	return (f.source == "" || f.source == link.SourceNode) && (f.dest == "" || f.dest == link.DestNode)
}

// matchesPair selects pairs of groups by their names. Which group will dial is
// open, so either may be the source.
func (f linkFilter) matchesPair(a, b string) bool {
	matches := func(source, dest string) bool {
		return (f.source == "" || f.source == source) && (f.dest == "" || f.dest == dest)
	}
	return matches(a, b) || matches(b, a)
}

func linkEntry(link *fsm.Link, view *fsm.View) *controlplanepb.LinkEntry {
	endpoint := southbound.EndpointURL(link)
	return &controlplanepb.LinkEntry{
		Id:             strings.Join([]string{link.SourceNode, link.DestNode, endpoint, link.ID}, "|"),
		LinkId:         link.ID,
		SourceNodeId:   link.SourceNode,
		DestNodeId:     link.DestNode,
		DestEndpoint:   endpoint,
		ConnConfigData: southbound.ServerConfig(link, view.Fleet().GetEnforcedConnection()),
		Status:         linkStatus(link.Status),
		StatusMsg:      link.StatusMessage,
		Deleted:        !link.Live(),
		LastUpdated:    unixSeconds(link.UpdatedAt),
	}
}

// linkStatus has no value for deleted links: LinkEntry.deleted says it.
func linkStatus(status fsm.LinkStatus) controlplanepb.LinkStatus {
	switch status {
	case fsm.LinkPending, fsm.LinkConnecting:
		return controlplanepb.LinkStatus_LINK_STATUS_PENDING
	case fsm.LinkApplied:
		return controlplanepb.LinkStatus_LINK_STATUS_APPLIED
	case fsm.LinkFailed:
		return controlplanepb.LinkStatus_LINK_STATUS_FAILED
	}
	return controlplanepb.LinkStatus_LINK_STATUS_UNSPECIFIED
}
