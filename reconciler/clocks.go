package reconciler

import (
	"context"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// The clocks queue wakes for one thing at a time: its keys are a kind and the id
// of a node or a link.
const (
	clockLists    = "lists"    // read a node's lists
	clockSilence  = "silence"  // look whether a node still owes an answer
	clockFailures = "failures" // try a node's refused routes again
	clockMark     = "mark"     // compare all of a node's routes
	clockSource   = "source"   // read the lists of a link's source
	clockLink     = "link"     // look at a link that nobody has claimed
	clockNode     = "node"     // look at a node without a session, or leaving
)

const (
	// holdAfterStart is how long nobody departs after a leadership began
	// (protocol D3).
	holdAfterStart = 10 * time.Second
	// unclaimedLook and unclaimedReplace are how long a dialled link may go
	// without a claim until its source's list is read, and until it is replaced
	// (protocol L2).
	unclaimedLook    = 2 * time.Second
	unclaimedReplace = 30 * time.Second
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
	case clockLists:
		d.wantLists()
		l.links.Add(id)
	case clockSilence:
		d.checkSilence()
	case clockFailures:
		d.markFailures()
		l.routes.Add(id)
	case clockMark:
		d.markAll()
		l.routes.Add(id)
	}
}

// scheduleLinks starts the clocks of links that were dialled and are not
// confirmed.
func (l *leadership) scheduleLinks(changes fsm.Changes, view *fsm.View) {
	schedule := func(link *fsm.Link) {
		if link.Status == fsm.LinkConnecting {
			l.clocks.AddAfter(clockKey(clockLink, link.ID), unclaimedLook)
		}
	}
	if changes.All {
		for link := range view.Links() {
			schedule(link)
		}
		return
	}
	for _, change := range changes.Links {
		if link, ok := view.Link(change.LinkID); ok {
			schedule(link)
		}
	}
}

// checkLink looks at a link some time after its source acknowledged the dial.
func (l *leadership) checkLink(id string) {
	link, ok := l.view().Link(id)
	if !ok || link.Status != fsm.LinkConnecting {
		return
	}
	// The state's clock stamped the acknowledgement; it runs with the leader's.
	waited := time.Since(link.UpdatedAt)
	if waited >= unclaimedReplace {
		l.replaceLink(link, "nobody claimed the connection")
		return
	}
	l.listSource(link)
	l.clocks.AddAfter(clockKey(clockLink, id), unclaimedReplace-waited)
}

// replaceLink proposes a new link for a pair. The change of the state wakes who
// is concerned.
func (l *leadership) replaceLink(link *fsm.Link, reason string) {
	l.Logger.Info("replacing a link", "link", link.ID, "source", link.SourceNode, "destination", link.DestGroup, "reason", reason)
	l.outbox.send(outgoing{command: &slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, Reason: reason,
	}}}})
}

// scheduleNode starts the clock of a node that lost its session or is leaving.
func (l *leadership) scheduleNode(node *fsm.Node) {
	switch {
	case node.State == fsm.NodeLeaving:
		for _, session := range node.Sessions {
			l.Nodes.End(l.term, session.Name, true, func(error) {})
		}
		delay := leavingPatience
		if !node.Connected() {
			delay = 0
		}
		l.clocks.AddAfter(clockKey(clockNode, node.ID), delay)
	case !node.Connected() && node.State == fsm.NodePresent:
		l.clocks.AddAfter(clockKey(clockNode, node.ID), l.grace(node))
	}
}

// grace is how long a node without a session may take to come back, from now
// (protocol D2). For a while after the leadership began the clock stands still
// (protocol D3).
func (l *leadership) grace(node *fsm.Node) time.Duration {
	graces := l.view().Fleet().GetGraces()
	wait := milliseconds(graces.GetDepartureMs())
	switch node.LastSession.Reason {
	case slimcppb.LossReason_LOSS_REASON_ENDED:
		if l.canTakeOver(node) {
			wait = milliseconds(graces.GetFailoverMs())
		}
	case slimcppb.LossReason_LOSS_REASON_UNREACHABLE:
		if wait = milliseconds(graces.GetDetachedMs()); l.canTakeOver(node) {
			wait = 0
		}
	}
	if held := holdAfterStart - time.Since(l.started); held > 0 && !l.lostHere(node) {
		wait += held
	} else if held > wait {
		wait = held
	}
	return wait
}

// lostHere reports whether the node lost its session under this leadership, not
// by its beginning.
func (l *leadership) lostHere(node *fsm.Node) bool { return node.LastSession.At.After(l.started) }

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

// checkNode departs a node that did not come back, or removes one that has left.
// A node that did come back has a session, and one that came and went again has
// another last session, whose own clock runs.
func (l *leadership) checkNode(id string) {
	node, ok := l.view().Node(id)
	switch {
	case !ok:
	case node.State == fsm.NodeLeaving:
		l.outbox.send(outgoing{command: &slimcppb.Command{Payload: &slimcppb.Command_NodeLeft{NodeLeft: &slimcppb.NodeLeft{NodeId: id}}}})
	case !node.Connected() && node.State == fsm.NodePresent:
		l.depart(node)
	}
}

func (l *leadership) depart(node *fsm.Node) {
	l.Logger.Info("node departs", "node", node.ID, "session", node.LastSession.Name, "reason", node.LastSession.Reason)
	l.outbox.send(outgoing{command: &slimcppb.Command{Payload: &slimcppb.Command_DepartNode{DepartNode: &slimcppb.DepartNode{
		NodeId: node.ID, LastSession: node.LastSession.Name.Proto(),
	}}}})
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
			l.clocks.AddAfter(clockKey(clockLists, id), l.ReconcilePeriod*at/count)
			at++
		}
		l.mu.Unlock()
	}
}
