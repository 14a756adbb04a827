package reconciler

import (
	"slices"
	"strings"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// rerouteAfter is how often in a row a dial may fail until another one is tried
// (protocol C11).
const rerouteAfter = 3

// reroute lets somebody else make a link that keeps failing: another node of the
// dialling group, another endpoint of the other group, the other direction, and
// when all have failed the node's own settings in a full state, since an
// increment ignores them.
func (l *leadership) reroute(view *fsm.View, link *fsm.Link) {
	command := &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision,
		Reason: "dialling failed: " + link.StatusMessage,
	}
	source, dialled, found := nextAttempt(view, link)
	switch {
	case found:
		command.SourceNodeId, command.DialledNodeId = source, dialled
		l.Logger.Info("another way to make a link is tried", "link", link.ID, "source", source, "destination", dialled)
	case !link.FullState && l.endpointLives(view, link):
		command.FullState = true
		l.Logger.Info("a link is dialled with the node's own settings", "link", link.ID, "source", link.SourceNode)
	default:
		return // only time can help
	}
	l.outbox.send(outgoing{command: &slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: command}}})
}

// nextAttempt returns who dials whom next, of those that have not failed.
func nextAttempt(view *fsm.View, link *fsm.Link) (source, dialled string, found bool) {
	ours, theirs := candidates(view, link.SourceGroup), candidates(view, link.DestGroup)
	var attempts [][2]string
	for _, node := range ours {
		attempts = append(attempts, [2]string{node.ID, link.EndpointNode})
	}
	for _, node := range theirs {
		attempts = append(attempts, [2]string{link.SourceNode, node.ID})
	}
	for _, dialling := range ours {
		for _, node := range theirs {
			attempts = append(attempts, [2]string{dialling.ID, node.ID})
		}
	}
	for _, dialling := range theirs {
		for _, node := range ours {
			attempts = append(attempts, [2]string{dialling.ID, node.ID})
		}
	}
	for _, attempt := range attempts {
		name := fsm.Attempt(attempt[0], attempt[1])
		if name != fsm.Attempt(link.SourceNode, link.EndpointNode) && !slices.Contains(link.Tried, name) &&
			available(view, attempt[0]) && available(view, attempt[1]) && hasEndpoint(view, attempt[1]) {
			return attempt[0], attempt[1], true
		}
	}
	return "", "", false
}

func candidates(view *fsm.View, group string) []*fsm.Node {
	var nodes []*fsm.Node
	for id := range view.ConnectedMembers(group) {
		if node, ok := view.Node(id); ok && !node.Silent {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func available(view *fsm.View, id string) bool {
	node, ok := view.Node(id)
	return ok && node.Connected() && node.State == fsm.NodePresent && !node.Silent
}

func hasEndpoint(view *fsm.View, id string) bool {
	node, ok := view.Node(id)
	if !ok {
		return false
	}
	_, ok = node.ExternalDetail()
	return ok
}

// dropLeftovers reads the lists of the nodes with an own id that another node's
// list names as the source of a connection which no link has any more. Only its
// source can end a connection (protocol L4).
func (l *leadership) dropLeftovers(peer string) {
	l.mu.Lock()
	var sources []*driver
	for id, d := range l.drivers {
		if id == peer || strings.HasSuffix(id, "/"+peer) {
			sources = append(sources, d)
		}
	}
	l.mu.Unlock()
	for _, d := range sources {
		d.wantLists()
		l.links.Add(d.id)
	}
}
