package northbound

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// maxInstances bounds how many instances of a name one call explains.
	maxInstances = 20
	// maxNamePattern bounds a name that is asked for, in bytes: no node can announce
	// a longer one.
	maxNamePattern = 4 << 10
)

// ExplainRoute says how messages for a name go from a group, or what is in the
// way. A name without an instance id stands for all its instances.
func (s *Service) ExplainRoute(ctx context.Context, request *slimcppb.ExplainRouteRequest) (*slimcppb.Explanation, error) {
	wanted, err := parseName(request.GetName())
	if err == nil && request.GetGroup() == "" {
		err = argumentError("group must not be empty")
	}
	if err == nil {
		err = checkLength("group", request.GetGroup())
	}
	if err != nil {
		return nil, s.statusOf(err)
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	e := s.explainer(view)
	connected := e.sayGroup(request.GetGroup())
	works := e.explainNames(wanted, request.GetGroup())
	return e.explanation(connected && works), nil
}

// namePattern is a name, or all instances of one.
type namePattern struct {
	name fsm.Name
	any  bool
}

func (p namePattern) matches(name fsm.Name) bool {
	if p.any {
		name.ID = p.name.ID
	}
	return name == p.name
}

func (p namePattern) String() string {
	if p.any {
		return strings.Join([]string{p.name.C0, p.name.C1, p.name.C2}, "/")
	}
	return p.name.String()
}

func parseName(text string) (namePattern, error) {
	malformed := argumentError("name %q: accepted are C0/C1/C2 and C0/C1/C2/ID, where ID is a UUID or %v", shown(text), fsm.NoInstance)
	if len(text) > maxNamePattern {
		return namePattern{}, malformed
	}
	parts := strings.Split(text, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return namePattern{}, malformed
	}
	pattern := namePattern{name: fsm.Name{C0: parts[0], C1: parts[1], C2: parts[2], ID: fsm.NoInstance}, any: len(parts) == 3}
	if pattern.any || parts[3] == fsm.NoInstance.String() {
		return pattern, nil
	}
	id, err := uuid.Parse(parts[3])
	if err != nil {
		return namePattern{}, malformed
	}
	pattern.name.ID = fsm.InstanceID(id)
	return pattern, nil
}

// explainNames reports whether messages get from the group to every name that
// fits.
func (e *explainer) explainNames(wanted namePattern, group string) bool {
	found, works := 0, true
	for record := range e.view.Names() {
		if !wanted.matches(record.Name) {
			continue
		}
		if found++; found <= maxInstances {
			works = e.explainName(record, group) && works
		}
	}
	if found > maxInstances {
		e.say("more instances that are announced: %d; name one to have it explained", found-maxInstances)
	}
	if found == 0 {
		e.say("nobody announces %v", wanted)
		e.sayWithdrawn(wanted)
	}
	return works && found > 0
}

func (e *explainer) sayWithdrawn(wanted namePattern) {
	said := 0
	for tombstone := range e.view.Tombstones() {
		if wanted.matches(tombstone.Name) && said < maxNamed {
			said++
			e.say("node %s no longer announces %v since %s", tombstone.Announcer.NodeID, tombstone.Name, e.at(tombstone.RemovedAt))
		}
	}
}

// explainName reports whether messages for a name get from the group to all that
// announce it, as far as the segments let them.
func (e *explainer) explainName(record *fsm.NameRecord, group string) bool {
	e.sayAnnouncers(record)
	paths, configured := e.pathsFrom(group, record, e.view.Forwards), e.pathsFrom(group, record, e.view.ForwardsIfUsable)
	reached, works := 0, true
	for _, goal := range record.Groups() {
		if goal == group {
			reached++
			e.say("group %s announces %v itself: its nodes pass the messages on among themselves", group, record.Name)
			continue
		}
		path := paths.to(goal)
		if path == nil {
			e.sayIsolated(group, goal)
			continue
		}
		reached++
		e.sayDetour(path, configured.to(goal))
		works = e.explainPath(path, record) && works
	}
	return works && reached > 0
}

func (e *explainer) sayAnnouncers(record *fsm.NameRecord) {
	nodes := map[string][]string{} // looked up only
	for _, announcer := range record.Announcers {
		nodes[announcer.Group] = append(nodes[announcer.Group], announcer.NodeID)
	}
	for _, group := range record.Groups() {
		segments := e.segmentsWith(func(s fsm.SegmentInfo) bool { return slices.Contains(s.Groups, group) })
		where := "which is in no segment"
		if len(segments) > 0 {
			where = "which is in " + inSegments(segments)
		}
		e.say("%v is announced in group %s, %s, by %s", record.Name, group, where, some(nodes[group]))
		e.sayTroubles(slices.Values(nodes[group]))
	}
	if alone := nodes[""]; len(alone) > 0 {
		e.say("%v is announced by %s, which belongs to no group: nobody has a route to it", record.Name, some(alone))
	}
}

// sayIsolated says why messages do not get from one group to another.
func (e *explainer) sayIsolated(from, to string) {
	both := e.segmentsWith(func(s fsm.SegmentInfo) bool {
		return slices.Contains(s.Groups, from) && slices.Contains(s.Groups, to)
	})
	if len(both) == 0 {
		e.say("group %s is isolated from group %s: no segment holds both", from, to)
		return
	}
	e.say("there is no way from group %s to group %s within %s: groups between them have no node, or nothing links them",
		from, to, inSegments(both))
}

// sayDetour says which pairs of groups a path avoids that it would lead over if
// they could have a link.
func (e *explainer) sayDetour(path, configured []string) {
	if slices.Equal(path, configured) {
		return
	}
	for i := range max(len(configured)-1, 0) {
		if a, b := configured[i], configured[i+1]; e.view.Blocked(a, b) {
			e.say("the path is led around groups %s and %s: %s", a, b, e.blockedBy(a, b))
		}
	}
}

// explainPath reports whether every hop of a path works.
func (e *explainer) explainPath(path []string, record *fsm.NameRecord) bool {
	e.say("messages for %v go %s", record.Name, strings.Join(path, " → "))
	works := true
	for i := range len(path) - 1 {
		status, text := e.hop(path[i], path[i+1], record)
		e.say("%s → %s: %s", path[i], path[i+1], text)
		works = works && status == fsm.RouteApplied
	}
	return works
}

// hop says how a name goes from one group to the next one on its way.
func (e *explainer) hop(from, to string, record *fsm.NameRecord) (fsm.RouteStatus, string) {
	link, linked := e.view.LinkBetween(from, to)
	if !linked {
		reason := newPairs(e.view).reason(from, to)
		if reason == "" {
			reason = "it will be made"
		}
		return fsm.RoutePending, "PENDING: there is no link yet: " + reason
	}
	node, known := e.view.Node(link.End(from))
	if !known {
		return fsm.RoutePending, fmt.Sprintf("PENDING: no node of group %s holds link %s: %s",
			from, link.ID, strings.Join(e.linkState(link), "; "))
	}
	status, reason := e.routeStatus(link, node, record)
	text := fmt.Sprintf("node %s over link %s is %s", node.ID, link.ID, routeStatusText(status))
	if reason != "" {
		text += ": " + reason
	}
	return status, text
}

// routeStatus says where a route stands at the node that should hold it, and why.
func (e *explainer) routeStatus(link *fsm.Link, node *fsm.Node, record *fsm.NameRecord) (fsm.RouteStatus, string) {
	revision := e.view.RouteRevision(link, node.ID, record)
	if failure := failureOf(node, link, record.Name, revision); failure != nil {
		return fsm.RouteFailed, failure.Error
	}
	trouble := e.nodeTrouble(node)
	switch {
	case link.Status != fsm.LinkApplied:
		return fsm.RoutePending, strings.Join(e.linkState(link), "; ")
	case revision <= node.Acked:
		return fsm.RouteApplied, ""
	case trouble != "":
		return fsm.RoutePending, trouble
	}
	return fsm.RoutePending, fmt.Sprintf("the node has confirmed index %d, the route is of index %d", node.Acked, revision)
}

// failureOf returns the node's refusal of a route in its present revision, nil if
// there is none.
func failureOf(node *fsm.Node, link *fsm.Link, name fsm.Name, revision uint64) *fsm.RouteFailure {
	for i, failure := range node.Failures {
		if failure.LinkID == link.ID && failure.Name == name && failure.Revision >= revision {
			return &node.Failures[i]
		}
	}
	return nil
}

func routeStatusText(status fsm.RouteStatus) string {
	switch status {
	case fsm.RouteApplied:
		return "APPLIED"
	case fsm.RouteFailed:
		return "FAILED"
	}
	return "PENDING"
}

// paths are the ways of a name from one group.
type paths struct {
	from     string
	previous map[string]string // by group that is reached; looked up only
}

// pathsFrom follows a name from a group. Its hops form a forest (protocol N3), so
// that there is at most one way to each group.
func (e *explainer) pathsFrom(group string, record *fsm.NameRecord, forwards forwarding) paths {
	p := paths{from: group, previous: map[string]string{group: ""}}
	for queue := []string{group}; len(queue) > 0; queue = queue[1:] {
		for peer := range e.view.Groups() {
			if _, reached := p.previous[peer.Name]; reached || !e.forwards(queue[0], peer.Name, record, forwards) {
				continue
			}
			p.previous[peer.Name] = queue[0]
			queue = append(queue, peer.Name)
		}
	}
	return p
}

// forwarding says whether the node at a group's end of a link should forward a
// name over it.
type forwarding func(link *fsm.Link, group string, record *fsm.NameRecord) bool

// forwards reports whether a group should forward a name to a peer, if they had a
// link.
func (e *explainer) forwards(group, peer string, record *fsm.NameRecord, forwards forwarding) bool {
	return e.view.Allowed(group, peer) && forwards(&fsm.Link{SourceGroup: group, DestGroup: peer}, group, record)
}

// to returns the groups on the way, both ends included, nil if there is none.
func (p paths) to(goal string) []string {
	if _, reached := p.previous[goal]; !reached {
		return nil
	}
	path := []string{goal}
	for at := goal; at != p.from; {
		at = p.previous[at]
		path = append(path, at)
	}
	slices.Reverse(path)
	return path
}
