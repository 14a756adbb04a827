package northbound

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// ExplainLink says why two groups are linked, or what is in the way.
func (s *Service) ExplainLink(ctx context.Context, request *slimcppb.ExplainLinkRequest) (*slimcppb.Explanation, error) {
	a, b := request.GetGroupA(), request.GetGroupB()
	switch {
	case a == "" || b == "":
		return nil, s.statusOf(argumentError("group_a and group_b must not be empty"))
	case a == b:
		return nil, s.statusOf(argumentError("group_a and group_b are both %s: the nodes of one group connect among themselves", shown(a)))
	}
	if err := cmp.Or(checkLength("group_a", a), checkLength("group_b", b)); err != nil {
		return nil, s.statusOf(err)
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	e := s.explainer(view)
	return e.explanation(e.explainPair(a, b)), nil
}

// explainPair reports whether the link of two groups works.
func (e *explainer) explainPair(a, b string) bool {
	e.sayTopology(a, b)
	if e.view.Blocked(a, b) && e.view.WayAround(a, b) {
		e.say("names are led around groups %s and %s: %s", a, b, e.blockedBy(a, b))
	}
	firstConnected, secondConnected := e.sayGroup(a), e.sayGroup(b)
	link, linked := e.view.LinkBetween(a, b)
	if linked {
		return e.explainLink(link)
	}
	if e.view.Allowed(a, b) && firstConnected && secondConnected {
		if reason := newPairs(e.view).reason(a, b); reason != "" {
			e.say("%s", reason)
		} else {
			e.say("there is no link yet, and nothing that is known stands in its way")
		}
	}
	if former := e.formerLink(a, b); former != nil {
		e.sayFormer(former)
	}
	return false
}

// blockedBy says why names are led around two groups that the topology links.
func (e *explainer) blockedBy(a, b string) string {
	if link, linked := e.view.LinkBetween(a, b); linked {
		return fmt.Sprintf("every way to make link %s was tried in vain, and it goes on being tried", link.ID)
	}
	return "neither of them has a node with an external endpoint, so there is no link"
}

// templateProblem says why the topology's template is not rendered for the groups that
// there are.
func (e *explainer) templateProblem() []string {
	if problem := e.view.Rendered().GetError(); problem != "" {
		return []string{"the topology is the last good one, since its template fails for the groups that there are: " + problem}
	}
	return nil
}

func (e *explainer) sayTopology(a, b string) {
	for _, line := range e.templateProblem() {
		e.say("%s", line)
	}
	edge := [2]string{min(a, b), max(a, b)}
	segments := e.segmentsWith(func(s fsm.SegmentInfo) bool { return slices.Contains(s.Edges, edge) })
	if len(segments) > 0 {
		e.say("the topology links groups %s and %s in %s", a, b, inSegments(segments))
		return
	}
	for _, group := range []string{a, b} {
		if _, known := e.view.Group(group); !known && e.view.ConfigManaged() {
			e.say("no segment links groups %s and %s; patterns of the file are read for groups that have a node", a, b)
			return
		}
	}
	e.say("no segment of the topology links groups %s and %s", a, b)
}

// formerLink returns the link of two groups that was deleted last, nil if none is
// remembered.
func (e *explainer) formerLink(a, b string) *fsm.Link {
	var last *fsm.Link
	for link := range e.view.Links() {
		between := link.SourceGroup == a && link.DestGroup == b || link.SourceGroup == b && link.DestGroup == a
		if between && !link.Live() && (last == nil || link.SourceRevision > last.SourceRevision) {
			last = link
		}
	}
	return last
}

func (e *explainer) sayFormer(link *fsm.Link) {
	e.say("link %s from node %s was deleted: %s", link.ID, link.SourceNode, link.StatusMessage)
	if !link.Gone {
		e.say("node %s still holds the deleted link", link.SourceNode)
	}
}

// explainLink reports whether a live link works.
func (e *explainer) explainLink(link *fsm.Link) bool {
	e.say("link %s: node %s dials %s, which node %s offers", link.ID, link.SourceNode, southbound.EndpointURL(link), link.EndpointNode)
	for _, line := range e.linkState(link) {
		e.say("%s", line)
	}
	return link.Status == fsm.LinkApplied && link.DisputedBy == ""
}

// linkState says where a live link stands, one fact a line.
func (e *explainer) linkState(link *fsm.Link) []string {
	var lines []string
	say := func(text string, args ...any) { lines = append(lines, fmt.Sprintf(text, args...)) }
	switch link.Status {
	case fsm.LinkPending:
		if obstacle := e.dialObstacle(link); obstacle != "" {
			say("it waits to be dialled by node %s since %s: %s", link.SourceNode, e.at(link.UpdatedAt), obstacle)
		} else {
			say("node %s has been dialling since %s", link.SourceNode, e.at(link.UpdatedAt))
		}
		if link.StatusMessage != "" {
			say("reason for dialling: %s", link.StatusMessage)
		}
	case fsm.LinkConnecting:
		say("node %s acknowledged the dial; since %s no node of group %s has claimed the connection",
			link.SourceNode, e.at(link.UpdatedAt), link.DestGroup)
	case fsm.LinkFailed:
		say("it was dialled at %s and failed, %d in a row: %s", e.at(link.UpdatedAt), link.Failures, link.StatusMessage)
		say("the next try is due at %s", link.UpdatedAt.Add(redialAfter(link.Failures)).UTC().Format(time.RFC3339))
	case fsm.LinkApplied:
		say("it stands since %s, from node %s to node %s", e.at(link.UpdatedAt), link.SourceNode, link.DestNode)
	}
	if len(link.Tried) > 0 {
		say("other ways to dial it that failed before: %d", len(link.Tried))
	}
	if link.Exhausted {
		say("it has not stood since every way to dial it failed")
	}
	if link.FullState {
		say("no other way being left, it is dialled with the node's own settings")
	}
	if link.DisputedBy != "" {
		say("its end at node %s is disputed by node %s; the connection list of node %s will tell",
			link.DestNode, link.DisputedBy, link.SourceNode)
	}
	return lines
}

// dialObstacle says why a pending link is not dialled now, empty if it is.
func (e *explainer) dialObstacle(link *fsm.Link) string {
	source, ok := e.view.Node(link.SourceNode)
	switch group, _ := e.view.Group(link.DestGroup); {
	case !ok || !source.Connected():
		return "the node is not connected"
	case source.Silent:
		return "the node does not answer"
	case group == nil || group.Connected == 0:
		return fmt.Sprintf("group %s has no connected node", link.DestGroup)
	}
	return ""
}

// redialAfter is how long a link waits after that many failed dials in a row:
// 1 s, doubled each time, at most 60 s (protocol C11).
func redialAfter(failures uint32) time.Duration {
	const longest = time.Minute
	if failures > 6 {
		return longest
	}
	return min(time.Second<<(max(failures, 1)-1), longest)
}
