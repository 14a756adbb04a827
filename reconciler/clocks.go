package reconciler

import (
	"context"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// The clocks queue wakes for one thing at a time: its keys are a kind and the id
// of a node or a link. A key that waits already only moves forward, never back:
// whoever needs a later time as well looks at the clock when it is woken and
// waits for the rest.
const (
	clockSoon     = "soon"     // read them shortly after a registration
	clockLater    = "later"    // and once more
	clockSilence  = "silence"  // look whether a node still owes an answer
	clockFailures = "failures" // try a node's refused routes again
	clockMark     = "mark"     // compare all of a node's routes
	clockDoubled  = "doubled"  // read them when the older of two connections has ended
	clockSweep    = "sweep"    // look at a node once a period
	clockLeftover = "leftover" // find the source of a connection that no link has
	clockDoubts   = "doubts"   // look through the doubted withdrawals of a node
	clockSource   = "source"   // read the lists of a link's source
	clockLink     = "link"     // look at a link that nobody has claimed
	clockNode     = "node"     // look at a node without a session, or leaving
)

const (
	// unclaimedLook and unclaimedReplace are how long a dialled link may go
	// without a claim until its source's list is read, and until it is replaced
	// (protocol L2).
	unclaimedLook    = 2 * time.Second
	unclaimedReplace = 30 * time.Second
	// insistDelay is the wait before what must happen is proposed again.
	insistDelay = time.Second
	// leavingPatience bounds how long the streams of a leaving node may take to
	// end (protocol D5).
	leavingPatience = 5 * time.Second
)

func clockKey(kind, id string) string { return kind + "|" + id }

func (l *leadership) tick(key string) {
	kind, id, _ := strings.Cut(key, "|")
	switch kind {
	case clockLink:
		l.checkLink(id)
		return
	case clockNode:
		l.checkNode(id)
		return
	case clockLeftover:
		l.dropLeftovers(id)
		return
	case clockSource:
		if link, ok := l.view().Link(id); ok {
			l.listSource(link)
		}
		return
	}
	d, ok := l.driver(id)
	if !ok {
		return
	}
	switch kind {
	case clockSweep:
		d.swept()
		l.enqueue(id)
	case clockSoon, clockLater:
		d.wantConnections()
		l.links.Add(id)
	case clockDoubled:
		d.wantLists()
		l.links.Add(id)
	case clockSilence:
		d.checkSilence()
	case clockFailures:
		d.markFailures()
		l.routes.Add(id)
	case clockDoubts:
		d.settleDoubts()
	case clockMark:
		d.markAll(0) // the state has not changed
		l.routes.Add(id)
	}
}

// dial is how long a link has been connecting in one of its revisions, by this
// leader's own clock. The stamps in the state may be those of another leader,
// whose clock is another one (protocol D6).
type dial struct {
	revision uint64
	since    time.Time
}

// scheduleLinks starts the clocks of links that were dialled and are not
// confirmed, and forgets those of the others.
func (l *leadership) scheduleLinks(changes fsm.Changes, view *fsm.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if changes.All {
		before := l.dials
		l.dials = map[string]dial{}
		for link := range view.Links() {
			l.scheduleLink(link, before[link.ID])
		}
		return
	}
	for _, change := range changes.Links {
		before := l.dials[change.LinkID]
		delete(l.dials, change.LinkID)
		if link, ok := view.Link(change.LinkID); ok {
			l.scheduleLink(link, before)
		}
	}
}

// scheduleLink starts a link's clock, or lets it run on if it is the same dial as
// before. l.mu is held.
func (l *leadership) scheduleLink(link *fsm.Link, before dial) {
	if link.Status != fsm.LinkConnecting {
		return
	}
	if before.since.IsZero() || before.revision != link.SourceRevision {
		before = dial{revision: link.SourceRevision, since: time.Now()}
	}
	l.dials[link.ID] = before
	l.clocks.AddAfter(clockKey(clockLink, link.ID), unclaimedLook)
}

// checkLink looks at a link some time after its source acknowledged the dial.
func (l *leadership) checkLink(id string) {
	link, ok := l.view().Link(id)
	if !ok || link.Status != fsm.LinkConnecting {
		return
	}
	l.mu.Lock()
	dial, known := l.dials[id]
	l.mu.Unlock()
	if !known || dial.revision != link.SourceRevision {
		return // the view is newer: its changes are about to be scheduled
	}
	waited := time.Since(dial.since)
	if waited >= unclaimedReplace {
		l.replaceLink(link, "nobody claimed the connection", clockKey(clockLink, id))
		return
	}
	l.listSource(link)
	l.clocks.AddAfter(clockKey(clockLink, id), unclaimedReplace-waited)
}

// proposeWithRetry proposes what nothing else would ask for again: when the log does not
// take it, the clock of the key looks at the matter anew.
func (l *leadership) proposeWithRetry(command *slimcppb.Command, key string) {
	l.outbox.send(outgoing{command: command, done: func(result fsm.Result, err error) {
		if err != nil && result.Err == nil {
			l.Logger.Debug("not in the log yet", "key", key, "error", err)
			l.clocks.AddAfter(key, insistDelay)
		}
	}})
}

// replaceLink proposes a new link for a pair. The change of the state wakes who
// is concerned; without one the key's clock does.
func (l *leadership) replaceLink(link *fsm.Link, reason, key string) {
	l.Logger.Info("replacing a link", "link", link.ID, "source", link.SourceNode, "destination", link.DestGroup, "reason", reason)
	l.proposeWithRetry(&slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, Reason: reason,
	}}}, key)
}

// scheduleNode starts the clock of a node that lost its session or is leaving.
func (l *leadership) scheduleNode(node *fsm.Node) {
	leaving := node.State == fsm.NodeLeaving
	if !leaving && (node.Connected() || node.State != fsm.NodePresent) {
		return
	}
	if leaving {
		for _, session := range node.Sessions {
			l.Nodes.End(l.term, session.Name, true, func(error) {})
		}
	}
	l.mu.Lock()
	if known, ok := l.absences[node.ID]; !ok || known.session != node.LastSession.Name || known.leaving != leaving {
		l.absences[node.ID] = absence{session: node.LastSession.Name, leaving: leaving, since: time.Now()}
	}
	l.mu.Unlock()
	l.clocks.Add(clockKey(clockNode, node.ID))
}

// scheduleAbsent looks again at a group's absent nodes: one of theirs that just
// connected may be able to take their links over.
func (l *leadership) scheduleAbsent(group string, view *fsm.View) {
	if record, ok := view.Group(group); !ok || record.Present == record.Connected {
		return
	}
	for id := range view.Members(group) {
		if node, ok := view.Node(id); ok && !node.Connected() && node.State == fsm.NodePresent {
			l.clocks.Add(clockKey(clockNode, id))
		}
	}
}

// absence is the time that a node has been without a session, by this leader's
// own clock. It ends with the session that comes next.
type absence struct {
	session fsm.SessionName // the last one
	leaving bool
	since   time.Time
}

// holdDepartures: a replica was reached, whose nodes may be about to come back. For
// a while nobody departs, then every clock runs in full (protocol D3).
func (l *leadership) holdDepartures() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heldUntil = time.Now().Add(l.DepartureHold)
}

// dueAt is when an absence has lasted for its grace. l.mu is held.
func (l *leadership) dueAt(absence absence, grace time.Duration) time.Time {
	since := absence.since
	if since.Before(l.heldUntil) && !absence.leaving {
		since = l.heldUntil
	}
	return since.Add(grace)
}

// grace is how long a node may be absent (protocol D2), as the state stands now:
// a sibling may come or go meanwhile.
func (l *leadership) grace(node *fsm.Node) time.Duration {
	if node.State == fsm.NodeLeaving {
		if !node.Connected() {
			return 0
		}
		return leavingPatience
	}
	graces := l.view().Fleet().GetGraces()
	switch node.LastSession.Reason {
	case slimcppb.LossReason_LOSS_REASON_ENDED:
		if l.canTakeOver(node) {
			return milliseconds(graces.GetFailoverMs())
		}
	case slimcppb.LossReason_LOSS_REASON_UNREACHABLE:
		if l.canTakeOver(node) {
			return 0
		}
		return milliseconds(graces.GetDetachedMs())
	}
	return milliseconds(graces.GetDepartureMs())
}

// canTakeOver reports whether the node holds links that a connected sibling
// could hold.
func (l *leadership) canTakeOver(node *fsm.Node) bool {
	view := l.view()
	holds := false
	for link := range view.LinksOf(node.ID) {
		holds = holds || link.Live()
	}
	if !holds {
		return false
	}
	for id := range view.ConnectedMembers(node.Group) {
		if sibling, ok := view.Node(id); ok && id != node.ID && !sibling.Silent {
			return true
		}
	}
	return false
}

func milliseconds(count uint64) time.Duration { return time.Duration(count) * time.Millisecond }

// checkNode departs a node that did not come back in time, or removes one that
// has left.
func (l *leadership) checkNode(id string) {
	node, ok := l.view().Node(id)
	leaving := ok && node.State == fsm.NodeLeaving
	absent := ok && node.State == fsm.NodePresent && !node.Connected()
	l.mu.Lock()
	absence, known := l.absences[id]
	if !leaving && !absent {
		delete(l.absences, id)
	}
	l.mu.Unlock()
	if !known || !leaving && !absent {
		return
	}
	grace := l.grace(node)
	l.mu.Lock()
	due := l.dueAt(absence, grace)
	l.mu.Unlock()
	if wait := time.Until(due); wait > 0 {
		l.clocks.AddAfter(clockKey(clockNode, id), wait)
		return
	}
	if absent {
		l.depart(node)
		return
	}
	l.proposeWithRetry(&slimcppb.Command{Payload: &slimcppb.Command_NodeLeft{NodeLeft: &slimcppb.NodeLeft{NodeId: id}}}, clockKey(clockNode, id))
}

func (l *leadership) depart(node *fsm.Node) {
	l.Logger.Info("node departs", "node", node.ID, "session", node.LastSession.Name, "reason", node.LastSession.Reason)
	l.proposeWithRetry(&slimcppb.Command{Payload: &slimcppb.Command_DepartNode{DepartNode: &slimcppb.DepartNode{
		NodeId: node.ID, LastSession: node.LastSession.Name.Proto(),
	}}}, clockKey(clockNode, node.ID))
}

// sweep looks at every connected node once a period, spread over it. It catches
// what no event told.
func (l *leadership) sweep(ctx context.Context) {
	if l.ReconcilePeriod <= 0 {
		return
	}
	ticker := time.NewTicker(l.ReconcilePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.mu.Lock()
		count, at := time.Duration(len(l.drivers)), time.Duration(0)
		for id := range l.drivers {
			l.clocks.AddAfter(clockKey(clockSweep, id), l.ReconcilePeriod*at/count)
			at++
		}
		l.mu.Unlock()
	}
}
