package fsm

import (
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/spt"
)

const (
	// Wildcard stands for every group in an adjacency list.
	Wildcard = "*"
	// DefaultSegment is the segment of a topology that is written as links.
	DefaultSegment = "default"
	// groupTemplate makes a segment a template: one instance for each group.
	groupTemplate = "$group"
)

// graphs is the topology, expanded for the groups that are present. It is
// immutable, apart from its cache, and replaced when either changes.
type graphs struct {
	segments []segmentGraph // by name
	blocked  blockedPairs   // avoided by forests
	// configured returns the same topology with nothing blocked.
	configured func() *graphs

	mu      sync.Mutex
	forests map[string]*forest // by announcing groups; bounded by maxForests
}

type segmentGraph struct {
	name  string
	graph *spt.Graph
	// usable returns the graph without the blocked pairs.
	usable func() *spt.Graph
}

// ConfigManaged reports whether a file gives the topology. Otherwise it is managed
// through the API, whose segments stay dormant meanwhile (protocol T2).
func (t *tables) ConfigManaged() bool { return FileTopology(t.fleet) }

// FileTopology reports whether a fleet configuration gives the topology.
func FileTopology(config *slimcppb.FleetConfig) bool {
	return len(config.GetTopology().GetSegments()) > 0 || UsesTemplate(config)
}

// fileSegments returns the segments that a file gives, over groups. What a template
// was rendered to has no placeholders any more.
func (t *tables) fileSegments(groups []string) []*slimcppb.Segment {
	if UsesTemplate(t.fleet) {
		return t.rendered.GetSegments()
	}
	return expandSegments(t.fleet.GetTopology(), groups)
}

// expand builds the graphs of the active topology over groups, which must be in
// order.
func (t *tables) expand(groups []string) *graphs {
	var segments []segmentGraph
	if t.ConfigManaged() {
		for _, segment := range t.fileSegments(groups) {
			segments = append(segments, segmentGraph{name: segment.GetName(), graph: segmentGraphOf(segment, groups)})
		}
	} else {
		for segment := range t.segments.all() {
			segments = append(segments, segmentGraph{name: segment.Name, graph: managedGraph(segment, groups)})
		}
	}
	slices.SortStableFunc(segments, func(a, b segmentGraph) int { return strings.Compare(a.name, b.name) })
	return newGraphs(segments, t.blocked)
}

// newGraphs takes segments in order of name. What blocked pairs ask for is made
// when it is first needed, mostly by a reader.
func newGraphs(segments []segmentGraph, blocked blockedPairs) *graphs {
	g := &graphs{segments: segments, blocked: blocked, forests: map[string]*forest{}}
	for i := range segments {
		graph := segments[i].graph
		segments[i].usable = sync.OnceValue(func() *spt.Graph { return usableGraph(graph, blocked) })
	}
	g.configured = sync.OnceValue(func() *graphs { return g.avoiding(newBlockedPairs()) })
	return g
}

// avoiding returns the same topology with other blocked pairs.
func (g *graphs) avoiding(blocked blockedPairs) *graphs {
	return newGraphs(slices.Clone(g.segments), blocked)
}

// managedGraph builds the graph of an API-managed segment: its names are groups,
// whatever they look like.
func managedGraph(segment *Segment, groups []string) *spt.Graph {
	builder := spt.NewBuilder()
	for _, edge := range segment.Edges {
		_, first := slices.BinarySearch(groups, edge[0])
		_, second := slices.BinarySearch(groups, edge[1])
		if first && second {
			builder.AddEdge(edge[0], edge[1])
		}
	}
	return builder.Build()
}

// expandSegments replaces each template by its instances: one for every group
// that the template does not name itself.
func expandSegments(topology *slimcppb.Topology, groups []string) []*slimcppb.Segment {
	var expanded []*slimcppb.Segment
	for _, segment := range topology.GetSegments() {
		if !isTemplate(segment) {
			expanded = append(expanded, segment)
			continue
		}
		for _, group := range groups {
			if !namesGroup(segment, group) {
				expanded = append(expanded, instantiate(segment, group))
			}
		}
	}
	return expanded
}

func isTemplate(segment *slimcppb.Segment) bool {
	if strings.Contains(segment.GetName(), groupTemplate) {
		return true
	}
	for name := range segmentGroups(segment) {
		if strings.Contains(name, groupTemplate) {
			return true
		}
	}
	return false
}

func namesGroup(segment *slimcppb.Segment, group string) bool {
	for name := range segmentGroups(segment) {
		if name == group {
			return true
		}
	}
	return false
}

// segmentGroups yields every group string of a segment as it is written.
func segmentGroups(segment *slimcppb.Segment) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, adjacency := range segment.GetLinks() {
			if !yield(adjacency.GetGroup()) {
				return
			}
			for _, neighbor := range adjacency.GetNeighbors() {
				if !yield(neighbor) {
					return
				}
			}
		}
	}
}

func instantiate(segment *slimcppb.Segment, group string) *slimcppb.Segment {
	replace := func(text string) string { return strings.ReplaceAll(text, groupTemplate, group) }
	instance := &slimcppb.Segment{Name: replace(segment.GetName())}
	for _, adjacency := range segment.GetLinks() {
		copied := &slimcppb.Adjacency{Group: replace(adjacency.GetGroup())}
		for _, neighbor := range adjacency.GetNeighbors() {
			copied.Neighbors = append(copied.Neighbors, replace(neighbor))
		}
		instance.Links = append(instance.Links, copied)
	}
	return instance
}

// segmentGraphOf builds the graph of a segment over the groups that exist. Of those that
// do not, it looks at one mention only.
func segmentGraphOf(segment *slimcppb.Segment, groups []string) *spt.Graph {
	builder := spt.NewBuilder()
	exists := make(map[string]bool, len(groups)) // looked up only
	for _, group := range groups {
		exists[group] = true
	}
	everybody := false
	addUniversal := func(name string) {
		switch {
		case name == Wildcard:
			for _, group := range groups {
				builder.AddUniversal(group)
			}
		case exists[name]:
			builder.AddUniversal(name)
		}
	}
	for _, adjacency := range segment.GetLinks() {
		group := adjacency.GetGroup()
		everybody = everybody || group == Wildcard
		if group != Wildcard && !exists[group] {
			everybody = everybody || slices.Contains(adjacency.GetNeighbors(), Wildcard)
			continue
		}
		for _, neighbor := range adjacency.GetNeighbors() {
			switch {
			case group == Wildcard:
				addUniversal(neighbor)
			case neighbor == Wildcard:
				everybody = true
				addUniversal(group)
			case exists[neighbor]:
				builder.AddEdge(group, neighbor)
			}
		}
	}
	if everybody {
		for _, group := range groups {
			builder.AddVertex(group)
		}
	}
	return builder.Build()
}

// allowed reports whether some segment links the two groups.
func (g *graphs) allowed(a, b string) bool {
	for _, segment := range g.segments {
		if segment.graph.Adjacent(a, b) {
			return true
		}
	}
	return false
}

// neighbors returns the groups that some segment links with the group, in order.
func (g *graphs) neighbors(group string) []string {
	if len(g.segments) == 1 {
		return slices.Collect(g.segments[0].graph.Neighbors(group))
	}
	var all []string
	for _, segment := range g.segments {
		all = slices.AppendSeq(all, segment.graph.Neighbors(group))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// edgesWithout counts the edges of all segments that do not touch a group.
func (g *graphs) edgesWithout(group string) int {
	count := 0
	for _, segment := range g.segments {
		for a, b := range segment.graph.Edges() {
			if a != group && b != group {
				count++
			}
		}
	}
	return count
}

// keepsPaths reports whether a group can come or go without a change of the
// paths between the others. It is cautious: false is always right.
func (g *graphs) keepsPaths(group string) bool {
	found := false
	for _, segment := range g.segments {
		switch segment.graph.Degree(group) {
		case 0:
			continue
		case 1:
		default:
			if found || !segment.graph.Simplicial(group) || !segment.keepsUsablePaths(group) {
				return false
			}
		}
		if found && len(g.neighbors(group)) > 1 {
			return false
		}
		found = true
	}
	return true
}

// keepsUsablePaths reports whether a group can come or go without a change of the
// paths between others that blocked pairs are avoided by. Where a blocked pair
// has to be used after all, the group may be the one behind it.
func (s segmentGraph) keepsUsablePaths(group string) bool {
	usable := s.usable()
	if usable == s.graph {
		return true
	}
	return usable.Simplicial(group) && reach(usable, group) == reach(s.graph, group)
}

// reach counts the groups that are joined with a group, itself included.
func reach(graph *spt.Graph, group string) int {
	tree, ok := graph.Tree(group)
	if !ok {
		return 0
	}
	count := 0
	for range tree.Reach() {
		count++
	}
	return count
}

// SegmentInfo is a segment as listings show it.
type SegmentInfo struct {
	Name   string
	Groups []string    // with at least one edge, in order
	Edges  [][2]string // each ordered, in order
}

// Segments returns the topology's segments by name. Those of a file are expanded
// for every group that has a node record; those of the API are shown as they
// were made.
func (t *tables) Segments() []SegmentInfo {
	if !t.ConfigManaged() {
		return t.managedSegments()
	}
	var infos []SegmentInfo
	for _, segment := range t.expand(t.groupNames()).segments {
		info := SegmentInfo{Name: segment.name}
		for _, group := range segment.graph.Vertices() {
			if segment.graph.HasEdges(group) {
				info.Groups = append(info.Groups, group)
			}
		}
		for a, b := range segment.graph.Edges() {
			info.Edges = append(info.Edges, [2]string{a, b})
		}
		infos = append(infos, info)
	}
	return infos
}

// segmentCount returns how many segments a list shows: before the first node nothing
// of a file has an edge.
func (t *tables) segmentCount() int {
	switch {
	case !t.ConfigManaged():
		return len(t.managedSegments())
	case t.NodeCount() == 0:
		return 0
	}
	return len(t.fileSegments(t.groupNames()))
}

// groupNames returns the groups that have a record, in order.
func (t *tables) groupNames() []string {
	var groups []string
	for group := range t.Groups() {
		if group.Name != "" {
			groups = append(groups, group.Name)
		}
	}
	return groups
}

// AllowedPairs yields the pairs of present groups that the topology links, each
// ordered and once, in order.
func (t *tables) AllowedPairs() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for group := range t.Groups() {
			for _, peer := range t.graph.neighbors(group.Name) {
				if group.Name < peer && !yield(group.Name, peer) {
					return
				}
			}
		}
	}
}

// WantedPairs yields the pairs of groups that the topology links, each ordered and
// once, in order: also those of which a group has no present node, as long as it has
// a record, or an operator has linked it by name.
func (t *tables) WantedPairs() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		groups := t.wantedGroups()
		graph := t.expand(groups)
		for _, group := range groups {
			for _, peer := range graph.neighbors(group) {
				if group < peer && !yield(group, peer) {
					return
				}
			}
		}
	}
}

// wantedGroups returns the groups that have a record or an end of a link of the
// API-managed topology, in order.
func (t *tables) wantedGroups() []string {
	groups := t.groupNames()
	if !t.ConfigManaged() {
		for segment := range t.segments.all() {
			for _, edge := range segment.Edges {
				groups = append(groups, edge[0], edge[1])
			}
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// Allowed reports whether the topology links two groups that are present.
func (t *tables) Allowed(a, b string) bool { return t.graph.allowed(a, b) }
