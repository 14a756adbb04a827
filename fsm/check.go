package fsm

import (
	"fmt"
	"slices"
)

// Check verifies the invariants of the state, for tests and for files that come
// from outside. It costs the square of the fleet.
func (v *View) Check() error {
	j := &judge{tables: &v.tables}
	j.state()
	if err := j.err(); err != nil {
		return err
	}
	if err := v.checkBlocked(); err != nil {
		return err
	}
	for record := range v.Names() {
		if err := v.checkPaths(record); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) checkLinks() {
	live := 0
	for link := range j.Links() {
		if link.SourceGroup == link.DestGroup {
			j.say("link %s is inside group %q", link.ID, link.SourceGroup)
		}
		if !link.Live() {
			continue
		}
		live++
		if between, ok := j.LinkBetween(link.SourceGroup, link.DestGroup); !ok || between.ID != link.ID {
			j.say("link %s is not the link of its pair %s~%s", link.ID, link.SourceGroup, link.DestGroup)
		}
		if !j.Allowed(link.SourceGroup, link.DestGroup) && !j.unlinkedPair(link.SourceGroup, link.DestGroup) {
			j.say("link %s: the topology forbids %s~%s", link.ID, link.SourceGroup, link.DestGroup)
		}
		for _, end := range []struct{ node, group string }{
			{link.SourceNode, link.SourceGroup}, {link.DestNode, link.DestGroup},
		} {
			if end.node == "" {
				continue
			}
			if node, ok := j.Node(end.node); !ok || node.Group != end.group || node.State != NodePresent {
				j.say("link %s ends at %q, which is not a present node of group %q", link.ID, end.node, end.group)
			}
			if !j.linksOfNode.has(nodeLinkKey{node: end.node, link: link.ID}) {
				j.say("link %s is not in the index of node %q", link.ID, end.node)
			}
		}
		if link.Status == LinkApplied && link.DestNode == "" {
			j.say("link %s is applied without an end", link.ID)
		}
	}
	if j.pairs.len() != live || j.groupLinks.len() != 2*live {
		j.say("%d live links, but %d pairs and %d neighbours", live, j.pairs.len(), j.groupLinks.len())
	}
	for key := range j.linksOfNode.all() {
		if link, ok := j.Link(key.link); !ok || (link.SourceNode != key.node && link.DestNode != key.node) {
			j.say("index gives node %q link %s, which does not end there", key.node, key.link)
		}
	}
	for key := range j.former.all() {
		if link, ok := j.Link(key.linkID); !ok || link.Live() {
			j.say("former link %s of %s~%s is not a deleted one", key.linkID, key.a, key.b)
		}
	}
	if j.former.len() != j.links.len()-live {
		j.say("%d links, %d of them live, but %d former ones", j.links.len(), live, j.former.len())
	}
}

func (j *judge) checkNodes() {
	sessions := 0
	counted := map[string]Group{}
	for node := range j.Nodes() {
		for i, session := range node.Sessions {
			sessions++
			if owner, ok := j.SessionNode(session.Name); !ok || owner.ID != node.ID {
				j.say("session %v of node %q is not in the index", session.Name, node.ID)
			}
			if i > 0 && node.Sessions[i-1].Epoch > session.Epoch {
				j.say("sessions of node %q are out of order", node.ID)
			}
		}
		group := counted[node.Group]
		group.Nodes++
		if node.State == NodePresent {
			group.Present++
		}
		if isCandidate(node) {
			group.Connected++
		}
		if isDialable(node) {
			group.Dialable++
		}
		counted[node.Group] = group
		if node.Connected() == !node.LastSession.Name.IsZero() {
			j.say("node %q has a session and a last session, or neither", node.ID)
		}
	}
	if j.sessions.len() != sessions {
		j.say("%d sessions, but %d in the index", sessions, j.sessions.len())
	}
	if j.groups.len() != len(counted) || j.members.len() != j.nodes.len() {
		j.say("%d groups and %d nodes, but %d and %d in the indexes",
			len(counted), j.nodes.len(), j.groups.len(), j.members.len())
	}
	for group := range j.Groups() {
		want := counted[group.Name]
		want.Name = group.Name
		if *group != want {
			j.say("group %+v is counted as %+v", want, *group)
		}
	}
}

func (j *judge) checkNames() {
	announcers := 0
	for record := range j.Names() {
		if len(record.Announcers) == 0 {
			j.say("name %s has no announcer", record.Name)
		}
		for i, announcer := range record.Announcers {
			announcers++
			node, ok := j.Node(announcer.NodeID)
			if !ok || node.Group != announcer.Group || node.State != NodePresent {
				j.say("name %s: announcer %q is not a present node of group %q",
					record.Name, announcer.NodeID, announcer.Group)
			}
			if i > 0 && record.Announcers[i-1].First.Compare(announcer.First) > 0 {
				j.say("name %s: announcers are out of order", record.Name)
			}
			if j.tombstones.has(&Tombstone{Name: record.Name, Announcer: announcer}) {
				j.say("name %s: announcer %q has a tombstone too", record.Name, announcer.NodeID)
			}
			if !j.namesOfNode.has(nodeNameKey{node: announcer.NodeID, name: record.Name}) {
				j.say("name %s is not in the index of node %q", record.Name, announcer.NodeID)
			}
		}
	}
	if j.namesOfNode.len() != announcers {
		j.say("%d announcements, but %d in the index", announcers, j.namesOfNode.len())
	}
}

// checkBlocked compares the blocked pairs with what they follow from, and with
// those that paths avoid.
func (v *View) checkBlocked() error {
	want := v.allBlocked()
	for key := range want.all() {
		if !v.Blocked(key.group, key.peer) || !v.graph.blocked.has(key.group, key.peer) {
			return fmt.Errorf("blocked pair %s~%s is not avoided", key.group, key.peer)
		}
	}
	if v.blocked.len() != want.len() || v.graph.blocked.len() != want.len() {
		return fmt.Errorf("%d pairs are blocked both ways, but %d in the index and %d for paths",
			want.len(), v.blocked.len(), v.graph.blocked.len())
	}
	return nil
}

// arrival is how a name comes to a group.
type arrival struct {
	times   int
	blocked bool // over a blocked pair
}

// checkPaths follows a name from every group: no loop, no announcing group
// twice, and every one of the own segment reached if the links stand, without a
// blocked pair if that can be.
func (v *View) checkPaths(record *NameRecord) error {
	groups := record.Groups()
	f := v.graph.forest(groups)
	for group := range v.Groups() {
		reached := map[string]arrival{}
		if err := v.follow(f, record.Name, [2]string{group.Name, ""}, reached, 0); err != nil {
			return err
		}
		for _, segment := range v.graph.segments {
			for _, announcing := range groups {
				_, connected := v.reachable(segment, group.Name, announcing)
				if connected && announcing != group.Name && reached[announcing].times != 1 {
					return fmt.Errorf("name %s from group %q reaches group %q %d times",
						record.Name, group.Name, announcing, reached[announcing].times)
				}
				if tree, ok := segment.usable().Tree(announcing); ok && tree.Reached(group.Name) && reached[announcing].blocked {
					return fmt.Errorf("name %s from group %q comes to group %q over a blocked pair, and another path exists",
						record.Name, group.Name, announcing)
				}
			}
		}
	}
	return nil
}

func (v *View) reachable(segment segmentGraph, from, to string) (int, bool) {
	tree, ok := segment.graph.Tree(to)
	if !ok {
		return 0, false
	}
	return tree.Depth(from)
}

// follow passes a name on from a group that got it from another one.
func (v *View) follow(f *forest, name Name, at [2]string, reached map[string]arrival, depth int) error {
	group, from := at[0], at[1]
	if depth > v.groups.len() {
		return fmt.Errorf("name %s loops at group %q", name, group)
	}
	blocked := depth > 0 && (reached[from].blocked || v.graph.blocked.has(from, group))
	reached[group] = arrival{times: reached[group].times + 1, blocked: blocked}
	for _, hop := range f.hops[group] {
		if hop.peer == from {
			continue
		}
		if !slices.Contains(v.graph.neighbors(group), hop.peer) {
			return fmt.Errorf("name %s: hop %s~%s is not in the topology", name, group, hop.peer)
		}
		if err := v.follow(f, name, [2]string{hop.peer, group}, reached, depth+1); err != nil {
			return err
		}
	}
	return nil
}
