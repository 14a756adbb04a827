package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// drawnTopology is a random topology, with the plainest possible reading of who
// is linked with whom in each of its segments.
type drawnTopology struct {
	groups   []string
	segments []*slimcppb.Segment
	edges    []map[string][]string // by segment: group to its neighbours
}

func (d *drawnTopology) add(name string, pairs [][2]string) {
	segment := &slimcppb.Segment{Name: name}
	edges := map[string][]string{}
	for _, pair := range pairs {
		segment.Links = append(segment.Links, &slimcppb.Adjacency{Group: pair[0], Neighbors: []string{pair[1]}})
		for _, a := range d.groups {
			for _, b := range d.groups {
				if a != b && (pair[0] == Wildcard || pair[0] == a) && (pair[1] == Wildcard || pair[1] == b) {
					edges[a], edges[b] = append(edges[a], b), append(edges[b], a)
				}
			}
		}
	}
	d.segments, d.edges = append(d.segments, segment), append(d.edges, edges)
}

// addTemplate links a hub with each other group, in a segment for each.
func (d *drawnTopology) addTemplate(prefix, hub string) {
	d.segments = append(d.segments, &slimcppb.Segment{
		Name: prefix + "-$group", Links: []*slimcppb.Adjacency{{Group: hub, Neighbors: []string{"$group"}}},
	})
	for _, group := range d.groups {
		if group != hub {
			d.edges = append(d.edges, map[string][]string{hub: {group}, group: {hub}})
		}
	}
}

// joined returns the groups that some path within one segment joins with a
// group.
func (d *drawnTopology) joined(group string) map[string]bool {
	all := map[string]bool{}
	for _, edges := range d.edges {
		seen := map[string]bool{group: true}
		for queue := []string{group}; len(queue) > 0; queue = queue[1:] {
			for _, next := range edges[queue[0]] {
				if !seen[next] {
					seen[next], all[next] = true, true
					queue = append(queue, next)
				}
			}
		}
	}
	return all
}

func drawTopology(t *rapid.T) *drawnTopology {
	d := &drawnTopology{}
	for i := range rapid.IntRange(2, 8).Draw(t, "groups") {
		d.groups = append(d.groups, fmt.Sprintf("g%c", 'a'+(i*5)%8))
	}
	either := rapid.OneOf(rapid.SampledFrom(d.groups), rapid.SampledFrom(d.groups), rapid.Just(Wildcard))
	one := rapid.SampledFrom(d.groups)
	for i := range rapid.IntRange(1, 4).Draw(t, "segments") {
		name := fmt.Sprintf("segment-%d", i)
		if rapid.IntRange(0, 4).Draw(t, "template") == 0 {
			d.addTemplate(name, one.Draw(t, "hub"))
			continue
		}
		var pairs [][2]string
		for range rapid.IntRange(1, 8).Draw(t, "pairs") {
			pair := [2]string{one.Draw(t, "from"), one.Draw(t, "to")}
			if rapid.IntRange(0, 9).Draw(t, "with wildcards") == 0 {
				pair = [2]string{either.Draw(t, "any from"), either.Draw(t, "any to")}
			}
			pairs = append(pairs, pair)
		}
		d.add(name, pairs)
	}
	return d
}

// deliver passes a message on as nodes do, over every route for its name but the
// one that leads back, and counts how often it comes to each group.
func deliver(t tester, next map[string][]string, from string, most int) map[string]int {
	type arrival struct{ group, over string }
	reached := map[string]int{}
	for queue := []arrival{{group: from}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if reached[at.group]++; reached[at.group] > most {
			t.Fatalf("a message from %s comes to %s again and again", from, at.group)
		}
		for _, peer := range next[at.group] {
			if peer != at.over {
				queue = append(queue, arrival{group: peer, over: at.group})
			}
		}
	}
	return reached
}

// TestEveryAnnouncerIsReachedOnce draws topologies with several segments and
// templates, and names that any groups announce in any order. From each group,
// each announcing group that a segment joins with it is reached exactly once,
// and no group twice.
func TestEveryAnnouncerIsReachedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawTopology(t)
		h := newHistory(t)
		h.must(topologyCommand(d.segments...))
		sessions := map[string]SessionName{}
		for _, group := range rapid.Permutation(d.groups).Draw(t, "registered") {
			sessions[group] = h.register(group, "n1")
		}
		h.stand()
		x := appName("x", 1)
		announcing := rapid.SliceOfNDistinct(rapid.SampledFrom(d.groups), 1, -1, rapid.ID).Draw(t, "announcers")
		for _, group := range announcing {
			h.announce(sessions[group], x)
		}
		h.check()

		view := h.view()
		record, _ := view.NameRecord(x)
		carried := map[string][]string{}
		for id, link := range view.Carriers(record.Groups()) {
			group := h.node(id).Group
			if link.End(group) != id || link.Status != LinkApplied {
				t.Fatalf("%s carries the name over %+v", id, *link)
			}
			carried[group] = append(carried[group], link.PeerGroup(group))
		}
		for _, group := range d.groups {
			var fanned []string
			for link := range view.Fan(NodeID(group, "n1")).Links(record) {
				fanned = append(fanned, link.PeerGroup(group))
			}
			if !slices.Equal(fanned, carried[group]) {
				t.Fatalf("%s fans out to %q, but carries to %q", group, fanned, carried[group])
			}
		}
		for _, group := range d.groups {
			reached := deliver(t, carried, group, len(d.groups))
			for at, times := range reached {
				if times > 1 {
					t.Fatalf("a message from %s comes to %s %d times", group, at, times)
				}
			}
			for _, announcer := range announcing {
				if group != announcer && d.joined(group)[announcer] && reached[announcer] != 1 {
					t.Fatalf("%s is not reached from %s, routes %v", announcer, group, carried)
				}
			}
		}
	})
}
