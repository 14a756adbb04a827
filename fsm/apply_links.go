package fsm

import (
	"slices"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// restamp gives both ends of a link a new revision (protocol L1): the routes
// over it are pushed again at both.
func (a *applier) restamp(link *Link) {
	link.SourceRevision, link.DestRevision = a.index(), a.index()
	link.UpdatedAt = a.now()
}

// syncLinks compares a node's links with what it reported at registration
// (protocol A9).
func (a *applier) syncLinks(node *Node, reported []*slimcppb.ReportedLink) {
	incoming := map[string]bool{} // looked up only, never ranged over
	for _, link := range reported {
		if link.GetIncoming() {
			incoming[link.GetLinkId()] = true
		}
	}
	for _, link := range slices.Collect(a.LinksOf(node.ID)) {
		switch {
		case !link.Live():
			if link.SourceNode == node.ID {
				a.markGone(link)
			}
		case link.SourceNode == node.ID:
			// A node drops its outgoing links before it connects.
			a.pend(link, "the source connected anew")
		case !incoming[link.ID] && (link.Status == LinkApplied || link.Status == LinkConnecting):
			a.pend(link, "the destination no longer holds the connection")
		}
	}
	for _, report := range reported {
		link, ok := a.Link(report.GetLinkId())
		if ok && report.GetIncoming() {
			a.claim(link, node, "")
		}
	}
}

// pend makes a link be dialled again.
func (a *applier) pend(old *Link, why string) {
	link := *old
	link.Status, link.StatusMessage, link.Acked = LinkPending, why, false
	a.restamp(&link)
	a.setLink(&link)
}

// claimLink takes a notice that a connection arrived (protocol L2).
func (a *applier) claimLink(command *slimcppb.ClaimLink) Result {
	node, _, err := a.sequenced(command.GetSession(), command.GetSequence())
	if err != nil {
		return Result{Err: err}
	}
	link, ok := a.Link(command.GetLinkId())
	if !ok || !link.Live() {
		if a.OwnLinkID(command.GetLinkId()) {
			a.suspect(node.ID) // a leftover: its source is told to drop it (protocol L4)
		}
		return Result{Err: ErrUnknownLink}
	}
	a.claim(link, node, command.GetMessageId())
	return Result{LinkID: link.ID}
}

// claim is by a report at registration if there is no message id: then a claim
// of an end that the node holds already says nothing new. Both ends of a link
// send notices, so those of the source's group are ignored.
func (a *applier) claim(link *Link, node *Node, messageID string) {
	switch {
	case !link.Live(), node.Group == "", node.Group != link.DestGroup:
	case link.DestNode == "":
		a.connect(link, node.ID, messageID)
	case link.DestNode == node.ID:
		if messageID != "" && messageID != link.ClaimMessage {
			a.connect(link, node.ID, messageID)
		}
	default:
		// Only the source knows which of the two holds the end.
		changed := *link
		changed.DisputedBy = node.ID
		a.setLink(&changed)
		a.changes.Disputes = append(a.changes.Disputes, link.ID)
	}
}

// connect makes a link stand with its end at a node.
func (a *applier) connect(old *Link, destination, messageID string) {
	link := *old
	link.DestNode = destination
	link.Status, link.StatusMessage, link.Acked = LinkApplied, "", true
	link.Failures, link.DisputedBy, link.Tried, link.Exhausted = 0, "", nil, false
	link.ReachedAt = a.now()
	if messageID != "" {
		link.ClaimMessage = messageID
	}
	a.restamp(&link)
	a.setLink(&link)
}

// linkAcked takes the source's answer to a dial. An answer to an older state of
// the link says nothing (protocol C8).
func (a *applier) linkAcked(node *Node, ack *slimcppb.LinkAck) {
	link, ok := a.Link(ack.GetLinkId())
	if !ok || !link.Live() || link.SourceNode != node.ID || link.SourceRevision != ack.GetRevision() ||
		link.Status == LinkApplied {
		return
	}
	changed := *link
	changed.UpdatedAt = a.now()
	if ack.GetSuccess() {
		// The other end is not confirmed: an id that is still dying is acknowledged
		// like one that lives (protocol L5).
		changed.Status, changed.StatusMessage, changed.Acked = LinkConnecting, "", true
	} else {
		changed.Status, changed.StatusMessage, changed.Acked = LinkFailed, ack.GetError(), false
		changed.Failures++
	}
	a.setLink(&changed)
}

// linkObserved takes what the source's connection list says of a link.
func (a *applier) linkObserved(node *Node, seen *slimcppb.LinkObservation) {
	link, ok := a.Link(seen.GetLinkId())
	if !ok || !link.Live() || link.SourceNode != node.ID || link.SourceRevision != seen.GetRevision() {
		return
	}
	switch what := seen.GetSeen().(type) {
	case *slimcppb.LinkObservation_Down:
		if link.Status == LinkApplied || link.Status == LinkConnecting {
			a.pend(link, what.Down)
		}
	case *slimcppb.LinkObservation_Up:
		a.linkSeenUp(link, NodeID(link.DestGroup, what.Up))
	}
}

func (a *applier) linkSeenUp(link *Link, destination string) {
	if node, known := a.Node(destination); !known || node.State != NodePresent {
		return // its own registration will report the link
	}
	switch {
	case link.DestNode != destination, link.Status != LinkApplied:
		a.connect(link, destination, "")
	case link.DisputedBy != "":
		settled := *link
		settled.DisputedBy = ""
		a.setLink(&settled)
	}
}

// replaceLink makes a new link for a pair, so that its source dials afresh
// (protocol L3), or lets others try to make it (protocol C11).
func (a *applier) replaceLink(command *slimcppb.ReplaceLink) Result {
	link, ok := a.Link(command.GetLinkId())
	switch {
	case !ok:
		return Result{Err: ErrUnknownLink}
	case !link.Live(), link.SourceRevision != command.GetRevision():
		return Result{Err: ErrStale}
	case command.GetFullState():
		return Result{LinkID: a.dialWithFullState(link, command.GetExhausted())}
	case command.GetExhausted():
		return a.exhaust(link)
	case command.GetSourceNodeId() != "":
		return a.reroute(link, command)
	}
	if !a.canLink(link.SourceGroup, link.DestGroup) {
		return Result{Err: ErrStale} // a bad link is better than none
	}
	return Result{LinkID: a.replace(link, command.GetReason())}
}

// dialWithFullState tries a link that nobody could make once more, with the
// node's own settings. If that fails too the others are tried again.
func (a *applier) dialWithFullState(old *Link, exhausted bool) string {
	link := *old
	link.FullState, link.Tried, link.Exhausted = true, nil, exhausted || link.Exhausted
	link.Status, link.StatusMessage, link.Acked = LinkPending, "dialled with the node's own settings: "+old.StatusMessage, false
	a.restamp(&link)
	a.setLink(&link)
	return link.ID
}

// exhaust notes that every way to make a link was tried in vain. It is not dialled
// otherwise because of that: the ways are tried again in their turn.
func (a *applier) exhaust(old *Link) Result {
	if old.Status != LinkFailed {
		return Result{Err: ErrStale} // a dial or a claim got through meanwhile
	}
	link := *old
	link.Exhausted, link.Tried = true, nil
	a.setLink(&link)
	return Result{LinkID: link.ID}
}

// inherit gives a link that was made instead of another one what its pair went
// through: names are led around the pair until a link of it stands.
func (a *applier) inherit(created, former *Link) *Link {
	if created == nil || !former.Exhausted {
		return created
	}
	link := *created
	link.Exhausted = true
	a.setLink(&link)
	return &link
}

// Attempt names who dials whom, as Link.Tried has it.
func Attempt(source, dialled string) string { return source + "|" + dialled }

// reroute lets another node dial, or another endpoint be dialled.
func (a *applier) reroute(link *Link, command *slimcppb.ReplaceLink) Result {
	source, foundSource := a.Node(command.GetSourceNodeId())
	dialled, foundDialled := a.Node(command.GetDialledNodeId())
	switch {
	case !foundSource, !foundDialled:
		return Result{Err: ErrUnknownNode}
	case !isCandidate(source), !isCandidate(dialled),
		pairOf(source.Group, dialled.Group) != pairOf(link.SourceGroup, link.DestGroup):
		return Result{Err: ErrStale}
	}
	rendered, ok := renderEndpoint(dialled)
	if !ok {
		return Result{Err: ErrStale}
	}
	tried := append(slices.Clone(link.Tried), Attempt(link.SourceNode, link.EndpointNode))
	if source.Group == link.SourceGroup && rendered == link.endpoint() {
		moved := *link
		moved.EndpointNode, moved.Tried, moved.FullState = dialled.ID, tried, false
		a.moveSource(&moved, source.ID)
		a.keepFailures(link.ID, link.Failures)
		return Result{LinkID: link.ID}
	}
	a.deleteLink(link, command.GetReason())
	created := a.inherit(a.newLink(source, dialled), link)
	if created == nil {
		return Result{}
	}
	trying := *created
	trying.Tried = tried
	a.setLink(&trying)
	a.keepFailures(created.ID, link.Failures)
	return Result{LinkID: created.ID}
}

// keepFailures carries the count on, so that the back-off of a pair that nobody
// can link goes on growing.
func (a *applier) keepFailures(linkID string, failures uint32) {
	if link, ok := a.Link(linkID); ok {
		counted := *link
		counted.Failures = failures
		a.setLink(&counted)
	}
}

func (a *applier) replace(link *Link, reason string) string {
	a.deleteLink(link, reason)
	created := a.inherit(a.createLink(link.SourceGroup, link.DestGroup, link.SourceNode), link)
	if created == nil {
		return ""
	}
	if created.SourceGroup == link.SourceGroup && created.Endpoint == link.Endpoint {
		proven := *created
		proven.ReachedAt = link.ReachedAt // the endpoint stays proven (protocol C7)
		a.setLink(&proven)
	}
	return created.ID
}

// refreshEndpoint looks after the links that were made for an endpoint which the
// node no longer offers in that form. One that does not stand is dialled at the new
// endpoint, under its id; any other is replaced, since its source would take a dial
// of an id that it holds for done (protocol L3).
func (a *applier) refreshEndpoint(node *Node) {
	rendered, offered := renderEndpoint(node)
	for _, peer := range slices.Collect(a.LinkedGroups(node.Group)) {
		link, ok := a.LinkBetween(node.Group, peer)
		if !ok || link.EndpointNode != node.ID {
			continue
		}
		switch {
		case offered && rendered == link.endpoint():
		case offered && a.meta.ActiveSchema >= 2 && (link.Status == LinkPending || link.Status == LinkFailed):
			a.redirect(link, rendered)
		default:
			a.replace(link, endpointChanged)
		}
	}
}

// endpointChanged is why a link is dialled anew.
const endpointChanged = "the destination's endpoint changed"

// redirect makes a link be dialled at another endpoint of the same node. What is
// known of the old one says nothing about it.
func (a *applier) redirect(old *Link, to endpoint) {
	link := *old
	link.Endpoint, link.TLSRequired, link.AuthMethod, link.TrustDomain = to.address, to.tlsRequired, to.authMethod, to.trustDomain
	link.ReachedAt, link.Failures, link.Tried, link.FullState = time.Time{}, 0, nil, false
	a.pend(&link, endpointChanged)
}

// deleteLink ends a link. Its source, if it is there, has yet to drop it.
func (a *applier) deleteLink(old *Link, why string) {
	link := *old
	link.Status, link.StatusMessage, link.Acked, link.DisputedBy = LinkDeleted, why, false, ""
	source, known := a.Node(link.SourceNode)
	link.Gone = !known || !source.Connected()
	a.restamp(&link)
	if former, ok := a.formerLinkBetween(link.SourceGroup, link.DestGroup); ok && former.Gone {
		a.removeLink(former)
	}
	a.setLink(&link)
}

// markGone notes that the source no longer holds a deleted link. The record
// stays for listings until it is purged.
func (a *applier) markGone(old *Link) {
	link := *old
	link.Gone = true
	link.UpdatedAt = a.now()
	a.setLink(&link)
}

// confirmDeleted: a node without a session holds no outgoing link, or drops it
// before it comes back.
func (a *applier) confirmDeleted(nodeID string) {
	for _, link := range slices.Collect(a.LinksOf(nodeID)) {
		if link.SourceNode == nodeID && !link.Live() && !link.Gone {
			a.markGone(link)
		}
	}
}

// departLinks takes the links of a departing node away from it. An outgoing one
// keeps its id and moves to a sibling, an incoming one is made anew.
func (a *applier) departLinks(node *Node) {
	heir := a.sibling(node)
	for _, link := range slices.Collect(a.LinksOf(node.ID)) {
		switch {
		case !link.Live():
			if link.SourceNode == node.ID {
				a.markGone(link)
			}
		case link.SourceNode == node.ID && heir != "":
			a.moveSource(link, heir)
		default:
			a.remake(link, node.Group)
		}
	}
	for _, peer := range slices.Collect(a.LinkedGroups(node.Group)) {
		link, ok := a.LinkBetween(node.Group, peer)
		if !ok || link.EndpointNode != node.ID {
			continue
		}
		if link.Status != LinkApplied || heir == "" {
			a.remake(link, node.Group)
		}
	}
	if group, ok := a.Group(node.Group); !ok || group.Present == 0 {
		for _, peer := range slices.Collect(a.LinkedGroups(node.Group)) {
			if link, ok := a.LinkBetween(node.Group, peer); ok {
				a.deleteLink(link, "the last node of group "+node.Group+" left")
			}
		}
	}
}

// remake deletes a link of a group that lost a node and makes another one, if
// there are still nodes for it.
func (a *applier) remake(link *Link, group string) {
	a.deleteLink(link, "a node at its end left")
	peer := link.PeerGroup(group)
	if !a.graph.allowed(group, peer) {
		return
	}
	a.inherit(a.createLink(link.SourceGroup, link.DestGroup, link.SourceNode), link)
}

// sibling draws a node of the same group that can take links over.
func (a *applier) sibling(node *Node) string {
	candidates := a.candidates(node.Group)
	candidates = slices.DeleteFunc(candidates, func(n *Node) bool { return n.ID == node.ID })
	if len(candidates) == 0 {
		return ""
	}
	return candidates[a.pick(len(candidates))].ID
}

// moveSource gives an outgoing link to another node of its group: same id, and
// an end that must be claimed anew.
func (a *applier) moveSource(old *Link, source string) {
	link := *old
	link.SourceNode, link.DestNode = source, ""
	link.Status, link.StatusMessage, link.Acked = LinkPending, "moved from "+old.SourceNode, false
	link.Failures, link.ClaimMessage, link.DisputedBy = 0, "", ""
	a.restamp(&link)
	a.setLink(&link)
}

// moveUnmadeLinks gives the links that a silent node has not made to a sibling
// (protocol C9).
func (a *applier) moveUnmadeLinks(node *Node) {
	heir := a.sibling(node)
	if heir == "" {
		return
	}
	for _, link := range slices.Collect(a.LinksOf(node.ID)) {
		if link.Live() && link.SourceNode == node.ID && link.Status != LinkApplied {
			a.moveSource(link, heir)
		}
	}
}
