package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxEnded bounds the names of sessions that ended before they were registered.
const maxEnded = 10_000

// registerNode opens a session, checks the node's links against its report and
// makes the links that its group lacks (protocol S2, A9).
func (a *applier) registerNode(command *slimcppb.RegisterNode) Result {
	name := sessionNameFromProto(command.GetSession())
	if node, ok := a.SessionNode(name); ok {
		at := slices.IndexFunc(node.Sessions, func(s Session) bool { return s.Name == name })
		return Result{NodeID: node.ID, Epoch: node.Sessions[at].Epoch}
	}
	if a.ended.has(endedSession{name: name}) {
		return Result{Err: ErrSessionEnded}
	}
	if name.IsZero() {
		return Result{Err: fmt.Errorf("%w: no session name", ErrInvalid)}
	}
	if a.ReplicaRemoved(name.ReplicaID) {
		return Result{Err: ErrReplicaRemoved} // nobody would end the session
	}
	if err := a.checkNodeID(command.GetGroup(), command.GetNode()); err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	if err := a.admit(name, command); err != nil {
		return Result{Err: err}
	}
	session := Session{
		Name:         name,
		Epoch:        cmp.Or(command.GetProvisionalEpoch(), a.index()),
		Details:      a.details(command),
		PeerAddress:  command.GetPeerAddress(),
		Resumed:      command.GetResumed() && command.GetProvisionalEpoch() == 0,
		RegisteredAt: a.now(),
	}
	node, detailsBefore := a.openSession(command, session)
	if newest, _ := node.CommandSession(); newest.Name == name {
		if !command.GetResumed() {
			a.syncLinks(node, command.GetLinks())
		}
		if !slices.Equal(detailsBefore, node.Details) {
			a.refreshEndpoint(node)
		}
	}
	a.ensureLinks(node.Group, node.ID)
	return Result{NodeID: node.ID, Epoch: session.Epoch}
}

// details returns what a registration says of how the node can be reached.
func (a *applier) details(command *slimcppb.RegisterNode) []ConnectionDetail {
	details := detailsFromProto(command.GetDetails())
	for i := range details {
		details[i].Malformed = details[i].Malformed && a.meta.ActiveSchema >= 2
	}
	return details
}

// openSession stores the node with its new session and returns it, with the
// details that it had before.
func (a *applier) openSession(command *slimcppb.RegisterNode, session Session) (*Node, []ConnectionDetail) {
	id := NodeID(command.GetGroup(), command.GetNode())
	old, known := a.Node(id)
	if known && old.State == NodeLeaving {
		// The node is back before its old streams have ended: it is judged afresh
		// (protocol D5).
		a.removeNode(old)
		known = false
	}
	node := &Node{ID: id, Group: command.GetGroup(), LocalID: command.GetNode(), CreatedAt: a.now()}
	var detailsBefore []ConnectionDetail
	if known {
		*node = *old
		detailsBefore = old.Details
	}
	node.Sessions = append(slices.Clone(node.Sessions), session)
	slices.SortFunc(node.Sessions, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), a.Name.Compare(b.Name))
	})
	node.State = NodePresent
	node.LastSession = LostSession{}
	if newest, _ := node.CommandSession(); newest.Name == session.Name {
		newCommandSession(node, newest)
	}
	a.setNode(node)
	a.nodeChanged(id)
	return node, detailsBefore
}

// newCommandSession makes a session the one that is pushed to: what an older one
// confirmed does not count for it (protocol S4).
func newCommandSession(node *Node, session Session) {
	node.Details = session.Details
	node.Acked = 0
	node.Failures = nil
	node.Silent = false
}

// sessionLost ends a session and bars its name, since a registration of it may
// still be under way (protocol S2).
func (a *applier) sessionLost(command *slimcppb.SessionLost) Result {
	name := sessionNameFromProto(command.GetSession())
	if name.IsZero() {
		return Result{Err: fmt.Errorf("%w: no session name", ErrInvalid)}
	}
	a.endSession(name, command.GetReason())
	a.bar(endedSession{name: name, index: a.index()})
	return Result{}
}

// bar remembers that a session is over, so that a registration of its name that
// comes behind does not revive it. The oldest are forgotten: a proposal is not
// under way for ever.
func (a *applier) bar(ended endedSession) {
	if a.ended.has(ended) {
		return
	}
	if a.ended.len() >= maxEnded {
		for oldest := range a.endedOrder.all() {
			a.unbar(oldest)
			break
		}
	}
	a.ended.set(ended)
	a.endedOrder.set(ended)
}

func (a *applier) unbar(ended endedSession) {
	a.ended.delete(ended)
	a.endedOrder.delete(ended)
}

func (a *applier) endSession(name SessionName, reason slimcppb.LossReason) {
	old, ok := a.SessionNode(name)
	if !ok {
		return
	}
	before, _ := old.CommandSession()
	node := *old
	node.Sessions = withoutSession(old.Sessions, name)
	if newest, ok := node.CommandSession(); !ok {
		node.LastSession = LostSession{Name: name, Reason: reason, At: a.now(), Index: a.index()}
		node.Silent = false
	} else if newest.Name != before.Name {
		newCommandSession(&node, newest)
	}
	a.setNode(&node)
	a.nodeChanged(node.ID)
	if !node.Connected() {
		a.confirmDeleted(node.ID)
	}
	if node.State == NodePresent && !slices.Equal(old.Details, node.Details) {
		a.refreshEndpoint(&node)
	}
	if old.Silent && !node.Silent {
		a.ensureLinks(node.Group, node.ID) // it is a candidate again
	}
}

// deregisterNode begins the end of a node that says goodbye (protocol D5).
func (a *applier) deregisterNode(command *slimcppb.DeregisterNode) Result {
	node, ok := a.SessionNode(sessionNameFromProto(command.GetSession()))
	if !ok {
		return Result{Err: ErrUnknownSession}
	}
	if node.State != NodeLeaving {
		a.depart(node, NodeLeaving)
	}
	return Result{NodeID: node.ID}
}

// departNode gives up a node that did not come back (protocol D1).
func (a *applier) departNode(command *slimcppb.DepartNode) Result {
	node, ok := a.Node(command.GetNodeId())
	switch {
	case !ok:
		return Result{Err: ErrUnknownNode}
	case node.Connected(), node.State != NodePresent,
		node.LastSession.Name != sessionNameFromProto(command.GetLastSession()):
		return Result{Err: ErrStale}
	}
	a.depart(node, NodeDeparted)
	return Result{NodeID: node.ID}
}

// depart takes a node's links and names away from it.
func (a *applier) depart(old *Node, state NodeState) {
	node := *old
	node.State = state
	node.Failures = nil
	a.setNode(&node)
	a.nodeChanged(node.ID)
	a.departLinks(&node)
	a.withdrawAll(node.ID)
}

// nodeLeft removes a node whose streams have ended.
func (a *applier) nodeLeft(command *slimcppb.NodeLeft) Result {
	node, ok := a.Node(command.GetNodeId())
	if !ok {
		return Result{}
	}
	if node.State != NodeLeaving {
		return Result{Err: ErrStale}
	}
	a.forgetNode(node)
	return Result{}
}

// nodeReconciled takes the outcome of a push (protocol C8).
func (a *applier) nodeReconciled(command *slimcppb.NodeReconciled) Result {
	old, err := a.commandSession(command.GetNodeId(), command.GetSession())
	if err != nil {
		return Result{Err: err}
	}
	for _, ack := range command.GetLinks() {
		a.linkAcked(old, ack)
	}
	node := *old
	if r := min(command.GetIndex(), a.index()); r > node.Acked {
		node.Acked = r
	}
	node.Failures = a.failures(old, command.GetFailures())
	a.nodes.set(&node) // no index knows these fields
	for _, id := range command.GetGoneLinks() {
		if link, ok := a.Link(id); ok && !link.Live() && !link.Gone && link.SourceNode == node.ID {
			a.markGone(link)
		}
	}
	return Result{NodeID: node.ID}
}

// commandSession returns the node if the session is the one pushed to.
func (a *applier) commandSession(nodeID string, session *slimcppb.SessionName) (*Node, error) {
	node, ok := a.Node(nodeID)
	if !ok {
		return nil, ErrUnknownNode
	}
	if newest, ok := node.CommandSession(); !ok || newest.Name != sessionNameFromProto(session) {
		return nil, ErrStale
	}
	return node, nil
}

// failures are all that the node has now; a failure keeps its time while its
// text stays the same.
func (a *applier) failures(node *Node, reported []*slimcppb.RouteFailure) []RouteFailure {
	var failures []RouteFailure
	for _, report := range reported {
		name, err := nameFromProto(report.GetName())
		if err != nil || len(failures) == MaxFailures {
			continue
		}
		failure := RouteFailure{
			LinkID: report.GetLinkId(), Name: name, Revision: report.GetRevision(),
			Error: report.GetError(), UpdatedAt: a.now(),
		}
		for _, known := range node.Failures {
			if known.LinkID == failure.LinkID && known.Name == name && known.Error == failure.Error {
				failure.UpdatedAt = known.UpdatedAt
			}
		}
		failures = append(failures, failure)
	}
	slices.SortFunc(failures, compareFailures)
	return failures
}

func compareFailures(a, b RouteFailure) int {
	return cmp.Or(cmp.Compare(a.LinkID, b.LinkID), a.Name.Compare(b.Name))
}

// observed takes what the leader read from a node's lists.
func (a *applier) observed(command *slimcppb.Observed) Result {
	node, err := a.commandSession(command.GetNodeId(), command.GetSession())
	if err != nil {
		return Result{Err: err}
	}
	if command.Silent != nil && command.GetSilent() != node.Silent {
		changed := *node
		changed.Silent = command.GetSilent()
		a.setNode(&changed)
		a.nodeChanged(changed.ID)
		if changed.Silent {
			a.moveUnmadeLinks(&changed)
		} else {
			a.ensureLinks(changed.Group, changed.ID)
		}
	}
	for _, seen := range command.GetLinks() {
		a.linkObserved(node, seen)
	}
	for _, id := range command.GetDriftedLinks() {
		// The routes are pending again until they are repaired (protocol C15).
		if link, ok := a.Link(id); ok && link.Live() && (link.SourceNode == node.ID || link.DestNode == node.ID) {
			drifted := *link
			a.restamp(&drifted)
			a.setLink(&drifted)
		}
	}
	if audit := command.GetAudit(); audit != nil {
		a.audited(node, audit)
	}
	return Result{NodeID: node.ID}
}
