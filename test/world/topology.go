package world

import (
	"slices"
	"strings"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Segment reads links such as "a~b", "hub~*" and "$group~hub" as a segment.
func Segment(name string, links ...string) *slimcppb.Segment {
	segment := &slimcppb.Segment{Name: name}
	for _, link := range links {
		group, neighbor, _ := strings.Cut(link, "~")
		segment.Links = append(segment.Links, &slimcppb.Adjacency{Group: group, Neighbors: []string{neighbor}})
	}
	return segment
}

// SetTopology replaces the topology.
func (w *World) SetTopology(segments ...*slimcppb.Segment) {
	w.t.Helper()
	w.segments = segments
	w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: segments}, Graces: w.options.Graces},
	}}})
}

// SetTemplate makes the topology from a template. Segments are what it is to come to.
func (w *World) SetTemplate(template string, segments ...*slimcppb.Segment) {
	w.t.Helper()
	w.segments = segments
	w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{SegmentsTemplate: template}, Graces: w.options.Graces},
	}}})
}

// reachability says which groups are to reach which. It is computed from the topology's
// text and the nodes that run, by other means than the control plane's.
type reachability struct {
	pairs   map[[2]string]bool // linked directly, both ways
	reached map[[2]string]bool
}

// Reaches reports whether messages from one group are to arrive in another.
func (r *reachability) Reaches(from, to string) bool { return r.reached[[2]string{from, to}] }

func (w *World) reach() *reachability {
	groups, external := w.runningGroups()
	r := &reachability{pairs: map[[2]string]bool{}, reached: map[[2]string]bool{}}
	for _, segment := range w.segments {
		instances := []string{""}
		if isTemplate(segment) {
			instances = slices.DeleteFunc(slices.Clone(groups), func(group string) bool { return mentions(segment, group) })
		}
		for _, instance := range instances {
			edges := map[[2]string]bool{}
			for _, adjacency := range segment.GetLinks() {
				for _, neighbor := range adjacency.GetNeighbors() {
					connect(edges, groups, external, fill(adjacency.GetGroup(), instance), fill(neighbor, instance))
				}
			}
			for edge := range edges {
				r.pairs[edge] = true
			}
			joinPaths(edges, groups, r.reached)
		}
	}
	return r
}

// runningGroups returns the groups with a running node, in order, and whether
// one of them can be dialled from outside.
func (w *World) runningGroups() ([]string, map[string]bool) {
	external := map[string]bool{}
	for _, node := range w.nodes {
		if node.Phase() != dataplane.Stopped && node.Group() != "" {
			external[node.Group()] = external[node.Group()] || node.ExternalEndpoint() != ""
		}
	}
	var groups []string
	for group := range external {
		groups = append(groups, group)
	}
	slices.Sort(groups)
	return groups, external
}

const template = "$group"

func fill(text, instance string) string { return strings.ReplaceAll(text, template, instance) }

func isTemplate(segment *slimcppb.Segment) bool {
	return strings.Contains(segment.GetName(), template) || mentions(segment, template)
}

func mentions(segment *slimcppb.Segment, group string) bool {
	for _, adjacency := range segment.GetLinks() {
		if adjacency.GetGroup() == group || slices.Contains(adjacency.GetNeighbors(), group) {
			return true
		}
	}
	return false
}

// connect adds the edges that one link of a segment means.
func connect(edges map[[2]string]bool, groups []string, external map[string]bool, a, b string) {
	matches := func(pattern, group string) bool { return pattern == "*" || pattern == group }
	for _, x := range groups {
		for _, y := range groups {
			if x != y && matches(a, x) && matches(b, y) && (external[x] || external[y]) {
				edges[[2]string{x, y}], edges[[2]string{y, x}] = true, true
			}
		}
	}
}

// joinPaths adds every pair that a path of edges joins.
func joinPaths(edges map[[2]string]bool, groups []string, reached map[[2]string]bool) {
	for _, from := range groups {
		seen := map[string]bool{from: true}
		next := []string{from}
		for len(next) > 0 {
			at := next[0]
			next = next[1:]
			for _, to := range groups {
				if !seen[to] && edges[[2]string{at, to}] {
					seen[to] = true
					reached[[2]string{from, to}] = true
					next = append(next, to)
				}
			}
		}
	}
}
