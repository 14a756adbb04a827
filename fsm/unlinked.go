package fsm

import "slices"

// A group that comes gets its links, and a topology that changes ends some and asks for
// others. In a mesh of n groups that is n links for each of them, and whatever else the
// log holds would wait behind all of them. So an entry makes and ends a bounded number
// of links (from schema 2 on). Groups whose turn did not come are remembered in the
// state, and the leader has the log go on with them, an entry at a time (MakeLinks).

const (
	// entryLinkBudget bounds what one entry spends on comparing links with the topology:
	// one for each pair of groups that it looks at, and linkCost for each link that it
	// makes or ends.
	entryLinkBudget = 16_384
	linkCost        = 128
)

// UnlinkedGroups returns how many groups have links that have yet to be compared with
// the topology.
func (t *tables) UnlinkedGroups() int { return t.unlinked.len() }

// unlinkedPair reports whether the link of two groups has yet to be compared with the
// topology.
func (t *tables) unlinkedPair(a, b string) bool {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		if rest, ok := t.unlinked.get(UnlinkedGroup{Group: pair[0]}); ok && rest.NextPeer <= pair[1] {
			return true
		}
	}
	return false
}

// makeLinks goes on where earlier entries stopped.
func (a *applier) makeLinks() Result {
	for *a.linkBudget > 0 {
		rest, ok := a.unlinked.first()
		if !ok {
			break
		}
		a.compareLinks(rest, "")
		*a.linkBudget-- // for a group that lacks nothing, too
	}
	return Result{}
}

// compareLinks ends the links of a group that the topology does not allow and makes
// those that the group lacks, in order of the peers' names, as far as the entry's
// budget goes; the rest is left to MakeLinks. The preferred node, if any, dials.
func (a *applier) compareLinks(rest UnlinkedGroup, prefer string) {
	group := rest.Group
	wanted := a.graph.neighbors(group)
	at, _ := slices.BinarySearch(wanted, rest.NextPeer)
	wanted = wanted[at:]
	linked := slices.Collect(a.linkedFrom(group, rest.NextPeer))
	for len(wanted)+len(linked) > 0 {
		peer := nextPeer(wanted, linked)
		if *a.linkBudget <= 0 {
			a.unlinked.set(UnlinkedGroup{Group: group, NextPeer: peer})
			return
		}
		*a.linkBudget--
		allowed, exists := len(wanted) > 0 && wanted[0] == peer, len(linked) > 0 && linked[0] == peer
		switch {
		case allowed && exists:
		case exists:
			if link, ok := a.LinkBetween(group, peer); ok {
				a.deleteLink(link, notAllowed)
				*a.linkBudget -= linkCost
			}
		case a.mayLink(group, peer):
			a.createLink(group, peer, prefer)
			*a.linkBudget -= linkCost
		}
		if allowed {
			wanted = wanted[1:]
		}
		if exists {
			linked = linked[1:]
		}
	}
	a.unlinked.delete(UnlinkedGroup{Group: group})
}

// notAllowed is why a link ends that the topology no longer asks for.
const notAllowed = "the topology no longer links the groups"

// nextPeer returns the first of two ascending lists, of which one may be empty.
func nextPeer(wanted, linked []string) string {
	switch {
	case len(wanted) == 0:
		return linked[0]
	case len(linked) == 0:
		return wanted[0]
	}
	return min(wanted[0], linked[0])
}

// mayLink reports whether createLink may make a link of two groups, without a look at
// their nodes.
func (a *applier) mayLink(group, peer string) bool {
	ours, known := a.Group(group)
	theirs, peerKnown := a.Group(peer)
	return known && peerKnown && ours.Connected > 0 && theirs.Connected > 0 && ours.Dialable+theirs.Dialable > 0
}
