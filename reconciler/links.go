package reconciler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// retry is when a failed link may be dialled again.
type retry struct {
	failures uint32 // that the wait belongs to
	due      time.Time
}

// linkPlan is one command about links (protocol C4).
type linkPlan struct {
	deletes []string
	creates []*fsm.Link
	// gone are deleted links that the node does not hold.
	gone []string
}

// reconcileLinks sends the next difference between the links that the node dialled
// and those that it should have dialled. Called with the lock held and the slot
// free.
func (d *driver) reconcileLinks(view *fsm.View, node *fsm.Node) {
	plan := d.planLinks(view)
	// Only in an increment can a dial be bounded, so what fits into one goes first
	// and what needs credentials follows alone.
	var secure []*fsm.Link
	plan.creates, secure = splitLinks(plan.creates)
	if wait := d.l.deletionsWait(view); wait > 0 && len(secure) > 0 && d.mirror.routed() {
		secure = nil // a full state takes from the node what it does not name
		d.l.links.AddAfter(d.id, wait)
	}
	switch {
	case len(plan.deletes)+len(plan.creates) > 0:
		d.sendLinks(view, plan)
	case len(secure) > 0:
		plan.creates = secure
		d.sendFullState(view, node, plan)
	case len(plan.gone) > 0:
		d.linksReconciled(nil, plan.gone)
	}
}

func (d *driver) planLinks(view *fsm.View) linkPlan {
	var plan linkPlan
	var unproven []*fsm.Link
	for link := range view.LinksOf(d.id) {
		if link.SourceNode != d.id {
			continue
		}
		if !link.Live() {
			if _, held := d.mirror.links[link.ID]; !held && !link.Gone {
				plan.gone = append(plan.gone, link.ID)
			}
			continue
		}
		switch {
		case !d.due(view, link):
		case southbound.Proven(view, link):
			plan.creates = append(plan.creates, link)
		default:
			unproven = append(unproven, link)
		}
	}
	if len(unproven) > 0 {
		// At most one endpoint that nobody has reached, and it last: a dead one
		// delays everything behind it.
		slices.SortFunc(unproven, func(a, b *fsm.Link) int {
			return cmp.Or(cmp.Compare(a.Failures, b.Failures), strings.Compare(a.ID, b.ID))
		})
		plan.creates = append(plan.creates, unproven[0])
	}
	plan.deletes = d.superfluous(view)
	return plan
}

// due reports whether a link is to be dialled now.
func (d *driver) due(view *fsm.View, link *fsm.Link) bool {
	if !connected(view, link.DestGroup) {
		return false // protocol C7; the group's next registration wakes us
	}
	if link.NeedsCredentials() {
		if !d.l.endpointLives(view, link) {
			return false
		}
		if !d.l.nodeReached(view, link.EndpointNode) {
			d.l.links.AddAfter(d.id, reachPause)
			return false
		}
	}
	switch link.Status {
	case fsm.LinkPending:
		return true
	case fsm.LinkFailed:
		waiting, ok := d.retries[link.ID]
		if !ok || waiting.failures != link.Failures {
			waiting = retry{failures: link.Failures, due: time.Now().Add(dialDelay(link.Failures))}
			d.retries[link.ID] = waiting
			if link.Failures%rerouteAfter == 0 {
				d.l.reroute(view, link)
			}
		}
		wait := time.Until(waiting.due)
		if wait > 0 {
			d.l.links.AddAfter(d.id, wait)
		}
		return wait <= 0
	}
	return false
}

// endpointLives reports whether the node whose endpoint a link dials is there.
// The dial of a full state cannot be bounded: to an address at which nobody
// listens any more it would hold up its node for ever. A link to a node that is
// gone for good is made anew.
func (l *leadership) endpointLives(view *fsm.View, link *fsm.Link) bool {
	node, ok := view.Node(link.EndpointNode)
	if !ok || node.State != fsm.NodePresent {
		if link.Status == fsm.LinkPending || link.Status == fsm.LinkFailed {
			l.replaceLink(link, "the node that it dials has left", clockKey(clockSource, link.ID))
		}
		return false
	}
	return node.Connected() // its next registration wakes us
}

// reachPause is the wait before it is looked again whether a replica is reached.
const reachPause = time.Second

// nodeReached reports whether the replica that holds the newest session of a node was
// reached a moment ago. If not, nobody would notice the node's end, and a dial of a
// full state to it cannot be bounded (protocol C7).
func (l *leadership) nodeReached(view *fsm.View, nodeID string) bool {
	node, ok := view.Node(nodeID)
	if !ok {
		return false
	}
	session, ok := node.CommandSession()
	return ok && l.Nodes.Reached(session.Name.ReplicaID)
}

// dialDelay is the back-off of a link that failed: 1 s x 2^(failures-1), up to
// 60 s (protocol C11).
func dialDelay(failures uint32) time.Duration {
	const longest = time.Minute
	if failures > 6 {
		return longest
	}
	return min(time.Second<<(max(failures, 1)-1), longest)
}

func connected(view *fsm.View, group string) bool {
	record, ok := view.Group(group)
	return ok && record.Connected > 0
}

// superfluous returns the outgoing connections that the node should not have:
// ours that are no longer wanted, and with orphan detection also those of others.
func (d *driver) superfluous(view *fsm.View) []string {
	var ids []string
	for id, held := range d.mirror.links {
		if !held.outgoing {
			continue // the accepting end cannot end a connection (protocol C12)
		}
		if link, ok := view.Link(id); ok && link.Live() && link.SourceNode == d.id {
			continue
		}
		if time.Now().Before(d.retries[id].due) {
			continue
		}
		if view.OwnLinkID(id) || d.l.OrphanDetection {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// splitLinks tells links that can be dialled by an increment from those that
// need a full state.
func splitLinks(links []*fsm.Link) (plain, secure []*fsm.Link) {
	for _, link := range links {
		if link.NeedsCredentials() {
			secure = append(secure, link)
		} else {
			plain = append(plain, link)
		}
	}
	return plain, secure
}

func (d *driver) sendLinks(view *fsm.View, plan linkPlan) {
	command := &controllerpb.ConfigurationCommand{ConnectionsToDelete: plan.deletes}
	for _, link := range plan.creates {
		config := southbound.ClientConfig(link, view.Fleet().GetEnforcedConnection())
		command.ConnectionsToCreate = append(command.ConnectionsToCreate, southbound.Connection(link, config))
	}
	d.call(southbound.Call{Command: command}, func(answer southbound.Answer) {
		acks := connectionAcks(answer.Ack)
		gone := append(plan.gone, d.linksDeleted(view, plan.deletes, acks)...)
		d.linksReconciled(d.linksDialled(plan.creates, acks), gone)
	})
}

func connectionAcks(ack *controllerpb.ConfigurationCommandAck) map[string]*controllerpb.ConnectionAck {
	acks := map[string]*controllerpb.ConnectionAck{}
	for _, status := range ack.GetConnectionsStatus() {
		acks[status.GetLinkId()] = status
	}
	return acks
}

// linksDeleted takes the answers to deletions and returns the ids of links that
// the state still lists as deleted.
func (d *driver) linksDeleted(view *fsm.View, ids []string, acks map[string]*controllerpb.ConnectionAck) []string {
	var gone []string
	for _, id := range ids {
		ack := acks[id]
		if !ack.GetSuccess() && !connectionMissing(ack.GetErrorMsg()) {
			d.logger.Warn("node refused to end a link", "link", id, "error", ack.GetErrorMsg())
			again := retry{failures: d.retries[id].failures + 1}
			again.due = time.Now().Add(dialDelay(again.failures))
			d.retries[id] = again
			d.l.links.AddAfter(d.id, dialDelay(again.failures))
			continue
		}
		delete(d.mirror.links, id)
		if link, ok := view.Link(id); ok && !link.Live() && !link.Gone {
			gone = append(gone, id)
		}
	}
	return gone
}

// linksDialled takes the answers to dials.
func (d *driver) linksDialled(links []*fsm.Link, acks map[string]*controllerpb.ConnectionAck) []*slimcppb.LinkAck {
	var outcome []*slimcppb.LinkAck
	for _, link := range links {
		ack := acks[link.ID]
		told := &slimcppb.LinkAck{LinkId: link.ID, Revision: link.SourceRevision, Success: ack.GetSuccess(), Error: ack.GetErrorMsg()}
		if ack == nil {
			told.Error = "the node's answer does not mention the link"
		}
		if told.Success {
			d.linkHeld(link)
		} else {
			delete(d.mirror.links, link.ID)
			// A claim of an older connection may have made the link stand again.
			d.connectionsWanted = true
			d.logger.Warn("link failed", "link", link.ID, "endpoint", link.Endpoint, "error", told.Error)
		}
		outcome = append(outcome, told)
	}
	return outcome
}

// linkHeld notes a dialled link. If routes are known over an older connection of
// it, what the new one has must be listed (protocol L1).
func (d *driver) linkHeld(link *fsm.Link) {
	held := d.mirror.link(link.ID)
	held.outgoing = true
	if len(held.routes) == 0 {
		held.revision = link.SourceRevision
	}
}

// linksReconciled reports the outcome of a push of links.
func (d *driver) linksReconciled(acks []*slimcppb.LinkAck, gone []string) {
	d.linksNoted = true
	if len(acks)+len(gone) == 0 {
		d.release()
		return
	}
	view := d.l.view()
	command := &slimcppb.NodeReconciled{NodeId: d.id, Session: d.session.Name.Proto(), Links: acks, GoneLinks: gone}
	command.Failures = d.currentFailures(view, view.Fan(d.id))
	if len(command.Failures) > fsm.MaxFailures {
		command.Failures = command.Failures[:fsm.MaxFailures]
	}
	d.propose(&slimcppb.Command{Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: command}})
}

// firstAnswered takes the answer to the first command. Whatever it was, the lists
// are read next (protocol C3).
func (d *driver) firstAnswered(flight *flight, first southbound.First, answer southbound.Answer) {
	d.answered(flight, answer, func(answer southbound.Answer) {
		d.linksNoted, d.routesNoted = true, true
		d.needLists()
		if first.Command == nil {
			d.release()
			return
		}
		d.linksReconciled(d.linksDialled(first.Links, connectionAcks(answer.Ack)), nil)
	})
}

// disagreeAfter is how often in a row a node may say that it has no connection
// of a link which its other end lists (protocol C10).
const disagreeAfter = 3

// connectionMissing handles an answer in which a node says, once or more often,
// that it has no connection of a link. The answer is about the connection of the
// view by which the command was made. The lists of both ends tell what is left of
// it; the routes over it wait.
func (d *driver) connectionMissing(sent *fsm.View, linkID string) {
	view := d.l.view()
	dialled := sourceSession(sent, linkID)
	link, ok := view.Link(linkID)
	if ok && dialled != sourceSession(view, linkID) {
		// The source has registered again since, and dials the link anew: of that
		// connection nothing was said. The routes are compared when the lists are read.
		delete(d.missing, linkID)
		d.listsWanted = true
		return
	}
	if ok && !d.l.hasSession(link.SourceNode) {
		// The ends do not disagree. The source comes back, or who takes over from
		// it dials the same link.
		d.holdRoutes(linkID, time.Second, dialled)
		return
	}
	d.missing[linkID]++
	d.holdRoutes(linkID, min(time.Second<<(min(d.missing[linkID], 6)-1), 30*time.Second), dialled)
	if !ok {
		return
	}
	d.logger.Info("node has no connection of a link", "link", linkID, "times", d.missing[linkID])
	if d.missing[linkID] >= disagreeAfter {
		delete(d.missing, linkID)
		d.l.replaceLink(link, fmt.Sprintf("ends disagree: %s lists no connection, %s does", d.id, link.PeerOf(d.id)), clockKey(clockMark, d.id))
		return
	}
	if link.SourceNode != d.id {
		d.l.clocks.Add(clockKey(clockSource, linkID))
	}
}

// hold keeps the routes over a link back: for some time, but not once the link is
// dialled by another session of its source, or by another node. After the end of
// a replica that would be the longest part of the outage.
type hold struct {
	until   time.Time
	dialled fsm.SessionName
}

// sourceSession returns the session that a link was dialled on, by a view; none if
// the link or its source has none.
func sourceSession(view *fsm.View, linkID string) fsm.SessionName {
	link, ok := view.Link(linkID)
	if !ok {
		return fsm.SessionName{}
	}
	source, ok := view.Node(link.SourceNode)
	if !ok {
		return fsm.SessionName{}
	}
	session, _ := source.CommandSession()
	return session.Name
}

// waits reports whether routes over a link are held back after the node said
// that it has no such connection (protocol C10).
func (d *driver) waits(view *fsm.View, linkID string) bool {
	held, ok := d.held[linkID]
	return ok && time.Now().Before(held.until) && held.dialled == sourceSession(view, linkID)
}

// holdRoutes keeps routes over a link back for a while. The lists come first.
func (d *driver) holdRoutes(linkID string, delay time.Duration, dialled fsm.SessionName) {
	d.held[linkID] = hold{until: time.Now().Add(delay), dialled: dialled}
	d.l.clocks.AddAfter(clockKey(clockMark, d.id), delay)
	d.needLists()
}

func (l *leadership) hasSession(nodeID string) bool {
	node, ok := l.view().Node(nodeID)
	return ok && node.Connected()
}
