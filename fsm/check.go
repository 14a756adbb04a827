package fsm

import (
	"fmt"
	"slices"
)

// Check verifies the invariants of the state, for tests and for files that come
// from outside. It costs the square of the fleet.
func (v *View) Check() error {
	if err := v.check(); err != nil {
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

// check verifies that records agree with each other and with the indexes.
func (t *tables) check() error {
	if err := t.checkLinks(); err != nil {
		return err
	}
	if err := t.checkNodes(); err != nil {
		return err
	}
	return t.checkNames()
}

func (t *tables) checkLinks() error {
	live := 0
	for link := range t.Links() {
		if link.SourceGroup == link.DestGroup {
			return fmt.Errorf("link %s is inside group %q", link.ID, link.SourceGroup)
		}
		if !link.Live() {
			continue
		}
		live++
		if between, ok := t.LinkBetween(link.SourceGroup, link.DestGroup); !ok || between.ID != link.ID {
			return fmt.Errorf("link %s is not the link of its pair %s~%s", link.ID, link.SourceGroup, link.DestGroup)
		}
		if !t.Allowed(link.SourceGroup, link.DestGroup) {
			return fmt.Errorf("link %s: the topology forbids %s~%s", link.ID, link.SourceGroup, link.DestGroup)
		}
		for _, end := range []struct{ node, group string }{
			{link.SourceNode, link.SourceGroup}, {link.DestNode, link.DestGroup},
		} {
			if end.node == "" {
				continue
			}
			if node, ok := t.Node(end.node); !ok || node.Group != end.group || node.State != NodePresent {
				return fmt.Errorf("link %s ends at %q, which is not a present node of group %q", link.ID, end.node, end.group)
			}
			if !t.linksOfNode.has(nodeLinkKey{node: end.node, link: link.ID}) {
				return fmt.Errorf("link %s is not in the index of node %q", link.ID, end.node)
			}
		}
		if link.Status == LinkApplied && link.DestNode == "" {
			return fmt.Errorf("link %s is applied without an end", link.ID)
		}
	}
	if t.pairs.len() != live || t.groupLinks.len() != 2*live {
		return fmt.Errorf("%d live links, but %d pairs and %d neighbours", live, t.pairs.len(), t.groupLinks.len())
	}
	for key := range t.linksOfNode.all() {
		if link, ok := t.Link(key.link); !ok || (link.SourceNode != key.node && link.DestNode != key.node) {
			return fmt.Errorf("index gives node %q link %s, which does not end there", key.node, key.link)
		}
	}
	for key := range t.former.all() {
		if link, ok := t.Link(key.linkID); !ok || link.Live() {
			return fmt.Errorf("former link %s of %s~%s is not a deleted one", key.linkID, key.a, key.b)
		}
	}
	if t.former.len() != t.links.len()-live {
		return fmt.Errorf("%d links, %d of them live, but %d former ones", t.links.len(), live, t.former.len())
	}
	return nil
}

func (t *tables) checkNodes() error {
	sessions := 0
	counted := map[string]Group{}
	for node := range t.Nodes() {
		for i, session := range node.Sessions {
			sessions++
			if owner, ok := t.SessionNode(session.Name); !ok || owner.ID != node.ID {
				return fmt.Errorf("session %v of node %q is not in the index", session.Name, node.ID)
			}
			if i > 0 && node.Sessions[i-1].Epoch > session.Epoch {
				return fmt.Errorf("sessions of node %q are out of order", node.ID)
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
			return fmt.Errorf("node %q has a session and a last session, or neither", node.ID)
		}
	}
	if t.sessions.len() != sessions {
		return fmt.Errorf("%d sessions, but %d in the index", sessions, t.sessions.len())
	}
	if t.groups.len() != len(counted) || t.members.len() != t.nodes.len() {
		return fmt.Errorf("%d groups and %d nodes, but %d and %d in the indexes",
			len(counted), t.nodes.len(), t.groups.len(), t.members.len())
	}
	for group := range t.Groups() {
		want := counted[group.Name]
		want.Name = group.Name
		if *group != want {
			return fmt.Errorf("group %+v is counted as %+v", want, *group)
		}
	}
	return nil
}

func (t *tables) checkNames() error {
	announcers := 0
	for record := range t.Names() {
		if len(record.Announcers) == 0 {
			return fmt.Errorf("name %s has no announcer", record.Name)
		}
		for i, announcer := range record.Announcers {
			announcers++
			node, ok := t.Node(announcer.NodeID)
			if !ok || node.Group != announcer.Group || node.State != NodePresent {
				return fmt.Errorf("name %s: announcer %q is not a present node of group %q",
					record.Name, announcer.NodeID, announcer.Group)
			}
			if i > 0 && record.Announcers[i-1].First.Compare(announcer.First) > 0 {
				return fmt.Errorf("name %s: announcers are out of order", record.Name)
			}
			if t.tombstones.has(&Tombstone{Name: record.Name, Announcer: announcer}) {
				return fmt.Errorf("name %s: announcer %q has a tombstone too", record.Name, announcer.NodeID)
			}
			if !t.namesOfNode.has(nodeNameKey{node: announcer.NodeID, name: record.Name}) {
				return fmt.Errorf("name %s is not in the index of node %q", record.Name, announcer.NodeID)
			}
		}
	}
	if t.namesOfNode.len() != announcers {
		return fmt.Errorf("%d announcements, but %d in the index", announcers, t.namesOfNode.len())
	}
	return nil
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
