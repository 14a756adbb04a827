package fsm

import "slices"

// The functions of this file are the only ones that write tables, so that the
// indexes always agree with the records.

// setNode stores a node record. Its group comes and goes with the present nodes.
func (a *applier) setNode(node *Node) {
	old, _ := a.Node(node.ID)
	a.indexSessions(old, node)
	a.nodes.set(node)
	a.countNode(old, node)
}

func (a *applier) removeNode(node *Node) {
	a.indexSessions(node, nil)
	a.nodes.delete(node)
	a.countNode(node, nil)
}

// nodeChanged tells the leader's work that a node's sessions or state changed.
func (a *applier) nodeChanged(id string) { a.changes.Nodes = append(a.changes.Nodes, id) }

func (a *applier) indexSessions(old, node *Node) {
	if old != nil {
		for _, session := range old.Sessions {
			a.sessions.delete(sessionKey{name: session.Name})
		}
	}
	if node != nil {
		for _, session := range node.Sessions {
			a.sessions.set(sessionKey{name: session.Name, node: node.ID})
		}
	}
}

// isCandidate reports whether the node may be given new links.
func isCandidate(node *Node) bool {
	return node != nil && node.Connected() && node.State == NodePresent
}

func (a *applier) countNode(old, node *Node) {
	present := func(n *Node) bool { return n != nil && n.State == NodePresent }
	current := node
	if current == nil {
		current = old
	}
	key := groupNodeKey{group: current.Group, node: current.ID}
	group := Group{Name: current.Group}
	if existing, ok := a.Group(current.Group); ok {
		group = *existing
	}
	wasPresent, wasDialable := group.Present > 0, group.Dialable > 0
	count := func(counter *int, was, is bool) {
		if is && !was {
			*counter++
		} else if was && !is {
			*counter--
		}
	}
	count(&group.Nodes, old != nil, node != nil)
	count(&group.Present, present(old), present(node))
	count(&group.Connected, isCandidate(old), isCandidate(node))
	count(&group.Dialable, isDialable(old), isDialable(node))

	if node != nil {
		a.members.set(key)
	} else {
		a.members.delete(key)
	}
	if isCandidate(node) {
		a.connected.set(key)
	} else {
		a.connected.delete(key)
	}
	if group.Nodes > 0 {
		a.groups.set(&group)
	} else {
		a.groups.delete(&group)
	}
	if isPresent := group.Present > 0; isPresent != wasPresent {
		a.regroup(group.Name, isPresent)
	} else if group.Dialable > 0 != wasDialable {
		a.blockedChanges.groups = append(a.blockedChanges.groups, group.Name)
	}
}

// isDialable reports whether others can dial the node, now or when it is back.
func isDialable(node *Node) bool {
	if node == nil || node.State != NodePresent {
		return false
	}
	_, ok := node.ExternalDetail()
	return ok
}

// setLink stores a link record.
func (a *applier) setLink(link *Link) {
	before, _ := a.Link(link.ID)
	a.links.set(link)
	a.indexLink(before, link)
	pair := pairOf(link.SourceGroup, link.DestGroup)
	switch {
	case before == nil && link.Live() && !link.Exhausted && !a.Blocked(pair.a, pair.b):
		// A new link frees its pair, and it was free.
	case before == nil, before.Live() != link.Live(), before.Exhausted != link.Exhausted:
		a.blockedChanges.pairs = append(a.blockedChanges.pairs, pair)
	}
	a.changes.Links = append(a.changes.Links, LinkChange{LinkID: link.ID, Before: before})
}

// removeLink drops a link record at once.
func (a *applier) removeLink(link *Link) {
	a.unindexLink(link)
	a.links.delete(link)
	a.blockedChanges.pairs = append(a.blockedChanges.pairs, pairOf(link.SourceGroup, link.DestGroup))
	a.changes.Links = append(a.changes.Links, LinkChange{LinkID: link.ID, Before: link})
}

// indexLink brings the indexes up to date. Most changes of a link change none of them.
func (a *applier) indexLink(before, link *Link) {
	if before != nil && before.SourceNode == link.SourceNode && before.DestNode == link.DestNode &&
		before.SourceGroup == link.SourceGroup && before.DestGroup == link.DestGroup && before.Live() && link.Live() {
		return
	}
	if before != nil {
		a.unindexLink(before)
	}
	a.linksOfNode.set(nodeLinkKey{node: link.SourceNode, link: link.ID})
	if link.DestNode != "" {
		a.linksOfNode.set(nodeLinkKey{node: link.DestNode, link: link.ID})
	}
	if !link.Live() {
		a.former.set(formerOf(link))
		return
	}
	pair := pairOf(link.SourceGroup, link.DestGroup)
	pair.linkID = link.ID
	a.pairs.set(pair)
	a.groupLinks.set(groupLinkKey{group: link.SourceGroup, peer: link.DestGroup})
	a.groupLinks.set(groupLinkKey{group: link.DestGroup, peer: link.SourceGroup})
}

func (a *applier) unindexLink(link *Link) {
	pair := pairOf(link.SourceGroup, link.DestGroup)
	a.linksOfNode.delete(nodeLinkKey{node: link.SourceNode, link: link.ID})
	if link.DestNode != "" {
		a.linksOfNode.delete(nodeLinkKey{node: link.DestNode, link: link.ID})
	}
	if !link.Live() {
		a.former.delete(formerOf(link))
		return
	}
	a.pairs.delete(pair)
	a.groupLinks.delete(groupLinkKey{group: link.SourceGroup, peer: link.DestGroup})
	a.groupLinks.delete(groupLinkKey{group: link.DestGroup, peer: link.SourceGroup})
}

// appendAnnouncer adds the newest announcer of a name. The list stays in order of age
// (protocol N2).
func (a *applier) appendAnnouncer(name Name, announcer Announcer) {
	var announcers []Announcer
	if record, ok := a.NameRecord(name); ok {
		announcers = slices.Clone(record.Announcers)
	}
	a.namesOfNode.set(nodeNameKey{node: announcer.NodeID, name: name})
	a.setAnnouncers(name, append(announcers, announcer))
}

// dropAnnouncer takes an announcer from a name.
func (a *applier) dropAnnouncer(record *NameRecord, at int) {
	a.namesOfNode.delete(nodeNameKey{node: record.Announcers[at].NodeID, name: record.Name})
	a.setAnnouncers(record.Name, slices.Delete(slices.Clone(record.Announcers), at, at+1))
}

// setAnnouncers stores who announces a name now; the record goes with the last.
func (a *applier) setAnnouncers(name Name, announcers []Announcer) {
	var groupsBefore []string
	if before, ok := a.NameRecord(name); ok {
		groupsBefore = before.Groups()
	}
	record := &NameRecord{Name: name, Revision: a.index(), UpdatedAt: a.now(), Announcers: announcers}
	if len(announcers) > 0 {
		a.names.set(record)
	} else {
		a.names.delete(record)
	}
	a.changes.Names = append(a.changes.Names, NameChange{Name: name, GroupsBefore: groupsBefore})
}

// setAnnouncer changes what is known of an announcer. No route depends on it, so
// the name keeps its revision.
func (a *applier) setAnnouncer(record *NameRecord, at int, announcer Announcer) {
	changed := *record
	changed.Announcers = slices.Clone(record.Announcers)
	changed.Announcers[at] = announcer
	a.names.set(&changed)
}
