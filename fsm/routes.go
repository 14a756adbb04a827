package fsm

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// TemplateSource is the source of a route that stands for an announcement.
const TemplateSource = "*"

// RouteStatus is what listings show of a route.
type RouteStatus uint32

const (
	// RoutePending is not confirmed by its node.
	RoutePending RouteStatus = iota + 1
	// RouteApplied is confirmed.
	RouteApplied
	// RouteFailed was refused; Route.Message says why.
	RouteFailed
	// RouteDeleted was withdrawn and is still listed.
	RouteDeleted
)

// Route is a computed route: a node forwards a name over a link (protocol N1).
// A template has no link and TemplateSource as its node.
type Route struct {
	NodeID    string
	LinkID    string
	Name      Name
	Announcer Announcer
	Status    RouteStatus
	Message   string
	UpdatedAt time.Time
}

// RouteFilter selects routes by exact node ids; an empty field selects all.
type RouteFilter struct {
	Source string
	Dest   string
}

// Forwards reports whether the node at the group's end of a link should forward
// a name over it, whatever the state of the link.
func (v *View) Forwards(link *Link, group string, record *NameRecord) bool {
	_, ok := v.graph.forest(record.Groups()).hop(group, link.PeerGroup(group))
	return ok
}

// ForwardsIfUsable is Forwards without regard to blocked pairs: what it would be
// if names were not led around them.
func (v *View) ForwardsIfUsable(link *Link, group string, record *NameRecord) bool {
	_, ok := v.graph.configured().forest(record.Groups()).hop(group, link.PeerGroup(group))
	return ok
}

// Fan says where one node forwards names to. It belongs to the view that made
// it.
type Fan struct {
	graph *graphs
	group string
	links map[string]*Link // by peer group; looked up only
}

// Fan returns the links over which a node has routes: those with two known ends
// (protocol L5), whatever their status.
func (v *View) Fan(nodeID string) Fan {
	fan := Fan{graph: v.graph, links: map[string]*Link{}}
	node, ok := v.Node(nodeID)
	if !ok || node.Group == "" {
		return fan
	}
	fan.group = node.Group
	for link := range v.LinksOf(nodeID) {
		if link.Live() && link.DestNode != "" && link.End(node.Group) == nodeID {
			fan.links[link.PeerGroup(node.Group)] = link
		}
	}
	return fan
}

// Empty reports whether the node has no link with routes.
func (f Fan) Empty() bool { return len(f.links) == 0 }

// Links yields the links over which the node should forward a name, by peer
// group.
func (f Fan) Links(record *NameRecord) iter.Seq[*Link] {
	return func(yield func(*Link) bool) {
		if len(f.links) == 0 {
			return
		}
		for _, hop := range f.graph.forest(record.Groups()).hops[f.group] {
			if link, ok := f.links[hop.peer]; ok && !yield(link) {
				return
			}
		}
	}
}

// Carriers yields the nodes that should forward a name, with the link each
// forwards it over, for the announcing groups given. The order is that of the
// groups.
func (v *View) Carriers(groups []string) iter.Seq2[string, *Link] { return v.carriers(v.graph, groups) }

func (v *View) carriers(graph *graphs, groups []string) iter.Seq2[string, *Link] {
	return func(yield func(string, *Link) bool) {
		f := graph.forest(groups)
		for group := range v.Groups() {
			for _, hop := range f.hops[group.Name] {
				link, ok := v.LinkBetween(group.Name, hop.peer)
				if !ok || link.DestNode == "" {
					continue
				}
				if !yield(link.End(group.Name), link) {
					return
				}
			}
		}
	}
}

// NodeRoutes yields the names that a node should forward, in order, with the
// link each goes over. It costs the names of the fleet.
func (v *View) NodeRoutes(nodeID string) iter.Seq2[*Link, *NameRecord] {
	return func(yield func(*Link, *NameRecord) bool) {
		fan := v.Fan(nodeID)
		if fan.Empty() {
			return
		}
		for record := range v.Names() {
			for link := range fan.Links(record) {
				if !yield(link, record) {
					return
				}
			}
		}
	}
}

// RouteRevision is the revision of a route at a node: the newest of its name's,
// its trees' and its link's (protocol L1).
func (v *View) RouteRevision(link *Link, nodeID string, record *NameRecord) uint64 {
	return max(record.Revision, v.meta.TreesRevision, link.RevisionAt(nodeID))
}

// Routes yields what listings show: templates first, then the routes of each
// node in order, one for each announcer that is reached over it.
func (v *View) Routes(filter RouteFilter) iter.Seq[Route] {
	return func(yield func(Route) bool) {
		if filter.Source == "" || filter.Source == TemplateSource {
			if !v.templates(filter.Dest, yield) {
				return
			}
		}
		for node := range v.Nodes() {
			if filter.Source != "" && filter.Source != node.ID {
				continue
			}
			if !v.routesFrom(node, filter.Dest, yield) {
				return
			}
		}
	}
}

func (v *View) templates(dest string, yield func(Route) bool) bool {
	row := func(name Name, announcer Announcer, status RouteStatus, at time.Time) bool {
		if dest != "" && dest != announcer.NodeID {
			return true
		}
		return yield(Route{NodeID: TemplateSource, Name: name, Announcer: announcer, Status: status, UpdatedAt: at})
	}
	for record := range v.namesTowards(dest) {
		for _, announcer := range record.Announcers {
			if !row(record.Name, announcer, RouteApplied, record.UpdatedAt) {
				return false
			}
		}
	}
	for tombstone := range v.Tombstones() {
		if !row(tombstone.Name, tombstone.Announcer, RouteDeleted, tombstone.RemovedAt) {
			return false
		}
	}
	return true
}

// namesTowards yields the names of one announcer, or all.
func (v *View) namesTowards(dest string) iter.Seq[*NameRecord] {
	if dest == "" {
		return v.Names()
	}
	return func(yield func(*NameRecord) bool) {
		for name := range v.NamesOf(dest) {
			if record, ok := v.NameRecord(name); ok && !yield(record) {
				return
			}
		}
	}
}

// nodeLinks are the links of a node that listings show routes over, by peer
// group: live ones with two ends, and where there is none the last deleted one.
func (v *View) nodeLinks(node *Node) []*Link {
	var links []*Link
	for link := range v.LinksOf(node.ID) {
		if link.End(node.Group) != node.ID || link.DestNode == "" {
			continue
		}
		if !link.Live() {
			former, ok := v.formerLinkBetween(link.SourceGroup, link.DestGroup)
			if _, replaced := v.LinkBetween(link.SourceGroup, link.DestGroup); replaced || !ok || former.ID != link.ID {
				continue
			}
		}
		links = append(links, link)
	}
	return links
}

func (v *View) routesFrom(node *Node, dest string, yield func(Route) bool) bool {
	links := v.nodeLinks(node)
	if len(links) == 0 || node.Group == "" {
		return true
	}
	for record := range v.namesTowards(dest) {
		f := v.graph.forest(record.Groups())
		for _, link := range links {
			step, ok := f.hop(node.Group, link.PeerGroup(node.Group))
			if !ok || !link.Live() {
				continue
			}
			status, message := v.routeStatus(link, node, record)
			for _, announcer := range record.Announcers {
				if (dest != "" && announcer.NodeID != dest) || !slices.Contains(step.groups, announcer.Group) {
					continue
				}
				row := Route{
					NodeID: node.ID, LinkID: link.ID, Name: record.Name, Announcer: announcer,
					Status: status, Message: message, UpdatedAt: later(record.UpdatedAt, link.UpdatedAt),
				}
				if !yield(row) {
					return false
				}
			}
		}
	}
	return v.deletedRoutesFrom(node, links, dest, yield)
}

// deletedRoutesFrom shows the routes to a withdrawn announcer as they were while
// it announced.
func (v *View) deletedRoutesFrom(node *Node, links []*Link, dest string, yield func(Route) bool) bool {
	for tombstone := range v.Tombstones() {
		if dest != "" && tombstone.Announcer.NodeID != dest {
			continue
		}
		f := v.formerGraph().forest(v.groupsWith(tombstone))
		for _, link := range links {
			step, ok := f.hop(node.Group, link.PeerGroup(node.Group))
			if !ok || !slices.Contains(step.groups, tombstone.Announcer.Group) {
				continue
			}
			row := Route{
				NodeID: node.ID, LinkID: link.ID, Name: tombstone.Name, Announcer: tombstone.Announcer,
				Status: RouteDeleted, UpdatedAt: tombstone.RemovedAt,
			}
			if !yield(row) {
				return false
			}
		}
	}
	return true
}

// RemovalConfirmed reports whether every node that forwarded a name to a withdrawn
// announcer has confirmed that it no longer does. A removed link and an absent
// session confirm as well (protocol N9).
func (v *View) RemovalConfirmed(tombstone *Tombstone) bool {
	for range v.Unconfirmed(tombstone) {
		return false
	}
	return true
}

// Unconfirmed iterates over the ids of the nodes that have yet to confirm a removal.
func (v *View) Unconfirmed(tombstone *Tombstone) iter.Seq[string] {
	return func(yield func(string) bool) {
		for id := range v.carriers(v.formerGraph(), v.groupsWith(tombstone)) {
			if node, ok := v.Node(id); ok && node.Connected() && node.Acked < tombstone.Revision && !yield(id) {
				return
			}
		}
	}
}

// groupsWith returns the groups that announced a name while a withdrawn
// announcer did.
func (v *View) groupsWith(tombstone *Tombstone) []string {
	var announcers []Announcer
	if record, ok := v.NameRecord(tombstone.Name); ok {
		announcers = append(announcers, record.Announcers...)
	}
	for other := range v.tombstonesOf(tombstone.Name) {
		if other.Revision >= tombstone.Revision {
			announcers = append(announcers, other.Announcer)
		}
	}
	slices.SortFunc(announcers, func(a, b Announcer) int {
		if order := a.First.Compare(b.First); order != 0 {
			return order
		}
		return strings.Compare(a.NodeID, b.NodeID)
	})
	return announcingGroups(announcers)
}

// formerGraph is the topology with the groups that have left but are still listed,
// so that routes to them can be shown as deleted.
func (v *View) formerGraph() *graphs {
	v.recentOnce.Do(func() {
		var groups []string
		same := true
		for group := range v.Groups() {
			if group.Name == "" {
				continue
			}
			groups = append(groups, group.Name)
			same = same && group.Present > 0
		}
		for tombstone := range v.Tombstones() {
			at, known := slices.BinarySearch(groups, tombstone.Announcer.Group)
			if !known && tombstone.Announcer.Group != "" {
				groups = slices.Insert(groups, at, tombstone.Announcer.Group)
				same = false
			}
		}
		if v.recentGraph = v.graph; !same {
			v.recentGraph = v.expand(groups)
		}
	})
	return v.recentGraph
}

func (v *View) routeStatus(link *Link, node *Node, record *NameRecord) (RouteStatus, string) {
	revision := v.RouteRevision(link, node.ID, record)
	for _, failure := range node.Failures {
		if failure.LinkID == link.ID && failure.Name == record.Name && failure.Revision >= revision {
			return RouteFailed, failure.Error
		}
	}
	if link.Status == LinkApplied && revision <= node.Acked {
		return RouteApplied, ""
	}
	return RoutePending, link.StatusMessage
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
