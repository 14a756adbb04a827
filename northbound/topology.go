package northbound

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxNameBytes bounds the names of segments and groups, in bytes.
const maxNameBytes = 253

// ListSegments answers with the segments: those of the API as they were made,
// the default one first; those of a file by name, templates expanded for the
// groups that have nodes.
func (s *Service) ListSegments(ctx context.Context, _ *controlplanepb.SegmentListRequest) (*controlplanepb.SegmentListResponse, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	response := &controlplanepb.SegmentListResponse{}
	if view.ConfigManaged() && view.NodeCount() == 0 {
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

// AddSegment makes a segment. One that is there already is left as it is.
func (s *Service) AddSegment(ctx context.Context, request *controlplanepb.AddSegmentRequest) (*controlplanepb.AddSegmentResponse, error) {
	name := request.GetName()
	_, err := s.mutate(ctx, mutation{
		action:  "add segment",
		subject: []any{"segment", name},
		refused: checkNewSegment(name),
		command: &slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: name}}},
	})
	return &controlplanepb.AddSegmentResponse{}, err
}

// RemoveSegment ends a segment and the links that no other one asks for.
func (s *Service) RemoveSegment(ctx context.Context, request *controlplanepb.RemoveSegmentRequest) (*controlplanepb.RemoveSegmentResponse, error) {
	name := request.GetName()
	_, err := s.mutate(ctx, mutation{
		action:  "remove segment",
		subject: []any{"segment", name},
		refused: checkSegmentName(name),
		command: &slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: name}}},
		texts:   map[error]string{fsm.ErrUnknownSegment: segmentNotFound(name)},
	})
	return &controlplanepb.RemoveSegmentResponse{}, err
}

func checkSegmentName(name string) error {
	if name == "" {
		return argumentError("segment name must not be empty")
	}
	return checkLength("segment name", name)
}

// checkLength refuses a name that is too long for anything to have it.
func checkLength(what, name string) error {
	if len(name) > maxNameBytes {
		return argumentError("%s %q: at most %d bytes are accepted", what, shown(name), maxNameBytes)
	}
	return nil
}

func checkNewSegment(name string) error {
	if len(name) > maxNameBytes || strings.ContainsFunc(name, unicode.IsControl) {
		return argumentError("segment name %q: accepted are at most %d bytes without control characters", shown(name), maxNameBytes)
	}
	return checkSegmentName(name)
}

func segmentNotFound(name string) string { return fmt.Sprintf("segment '%s' not found", shown(name)) }

// AddTopologyLink links two groups in a segment. It warns of groups without a
// node: their link is made when they have one.
func (s *Service) AddTopologyLink(ctx context.Context, request *controlplanepb.AddTopologyLinkRequest) (*controlplanepb.AddTopologyLinkResponse, error) {
	a, b, segment := request.GetDomainA(), request.GetDomainB(), cmp.Or(request.GetSegment(), fsm.DefaultSegment)
	response := &controlplanepb.AddTopologyLinkResponse{}
	_, err := s.mutate(ctx, mutation{
		action:  "add topology link",
		subject: []any{"group_a", a, "group_b", b, "segment", segment},
		refused: cmp.Or(checkNewEdge(a, b), checkLength("segment", segment)),
		judge: func(view *fsm.View) error {
			response.Warnings = missingGroups(view, a, b)
			return nil
		},
		command: &slimcppb.Command{Payload: &slimcppb.Command_AddEdge{
			AddEdge: &slimcppb.AddEdge{Segment: segment, GroupA: a, GroupB: b},
		}},
		texts: map[error]string{fsm.ErrUnknownSegment: segmentNotFound(segment)},
	})
	return response, err
}

// RemoveTopologyLink ends the link of two groups in a segment.
func (s *Service) RemoveTopologyLink(ctx context.Context, request *controlplanepb.RemoveTopologyLinkRequest) (*controlplanepb.RemoveTopologyLinkResponse, error) {
	a, b, segment := request.GetDomainA(), request.GetDomainB(), cmp.Or(request.GetSegment(), fsm.DefaultSegment)
	_, err := s.mutate(ctx, mutation{
		action:  "remove topology link",
		subject: []any{"group_a", a, "group_b", b, "segment", segment},
		refused: cmp.Or(checkEnds(a, b), checkLength("segment", segment)),
		command: &slimcppb.Command{Payload: &slimcppb.Command_RemoveEdge{
			RemoveEdge: &slimcppb.RemoveEdge{Segment: segment, GroupA: a, GroupB: b},
		}},
		texts: map[error]string{
			fsm.ErrUnknownSegment: segmentNotFound(segment),
			fsm.ErrUnknownEdge:    fmt.Sprintf("link %s↔%s not found in segment '%s'", shown(a), shown(b), shown(segment)),
		},
	})
	return &controlplanepb.RemoveTopologyLinkResponse{}, err
}

func checkEnds(a, b string) error {
	if a == "" || b == "" {
		return argumentError("domain_a and domain_b must not be empty")
	}
	return cmp.Or(checkLength("domain_a", a), checkLength("domain_b", b))
}

func checkNewEdge(a, b string) error {
	if err := checkEnds(a, b); err != nil {
		return err
	}
	if a == b {
		return argumentError("domain_a and domain_b are both '%s': a domain cannot be linked with itself", a)
	}
	for _, group := range []string{a, b} {
		if err := checkGroup(group); err != nil {
			return err
		}
	}
	return nil
}

// checkGroup refuses a group that no node could register with (protocol A8).
func checkGroup(group string) error {
	if err := fsm.CheckGroup(group); err != nil {
		return argumentError("%v", err)
	}
	return nil
}

// checkSecretGroup refuses a group that no token can name: ":" separates the parts of
// one, and no part has white space in it.
func checkSecretGroup(group string) error {
	if strings.Contains(group, ":") || strings.ContainsFunc(group, unicode.IsSpace) {
		return argumentError("no token can name group %q: ':' and white space are not accepted beside shared secrets", shown(group))
	}
	return checkGroup(group)
}

func missingGroups(view *fsm.View, groups ...string) []string {
	var warnings []string
	p := newPairs(view)
	for _, group := range groups {
		if _, registered := view.Group(group); !registered {
			warnings = append(warnings, fmt.Sprintf(
				"domain '%s' has no registered nodes yet; physical link will be created when nodes register", group))
		}
		if other, found := p.otherCase(group); found {
			warnings = append(warnings, fmt.Sprintf("domain '%s' differs from the registered domain '%s' only by case", group, other))
		}
	}
	return warnings
}
