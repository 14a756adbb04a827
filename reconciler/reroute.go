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
// increment ignores them. From then on names are led around the pair where
// another path exists. There is no full state then: its dial has no bound, and a
// node that waits in it could not be told of any other path.
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
	case !link.FullState && l.endpointLives(view, link) && !view.WayAround(link.SourceGroup, link.DestGroup):
		command.FullState, command.Exhausted = true, true
		l.Logger.Info("a link is dialled with the node's own settings", "link", link.ID, "source", link.SourceNode)
	case !link.Exhausted || len(link.Tried) > 0:
		command.Exhausted = true
		l.Logger.Info("every way to make a link failed, names are led around it if they can be", "link", link.ID,
			"groups", []string{link.SourceGroup, link.DestGroup})
	default:
		return // only time can help
	}
	l.outbox.send(outgoing{command: &slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: command}}})
}

// maxTried bounds the ways that are tried before the full state, and with it what
// the state remembers of them.
const maxTried = 8

// nextAttempt returns who dials whom next, of those that have not failed. The
// kinds of ways take turns, so that a large group does not use the tries up with
// one of them.
func nextAttempt(view *fsm.View, link *fsm.Link) (source, dialled string, found bool) {
	if len(link.Tried) >= maxTried {
		return "", "", false
	}
	ours, theirs := candidates(view, link.SourceGroup), candidates(view, link.DestGroup)
	kinds := []func() (string, string, bool){
		func() (string, string, bool) { // another node of the dialling group
			return firstUntried(link, ours, dialable(theirs, link.EndpointNode))
		},
		func() (string, string, bool) { // another endpoint
			return firstUntried(link, ours, dialable(theirs, ""))
		},
		func() (string, string, bool) { // the other direction
			return firstUntried(link, theirs, dialable(ours, ""))
		},
	}
	for i := range kinds {
		if source, dialled, found = kinds[(len(link.Tried)+i)%len(kinds)](); found {
			return source, dialled, true
		}
	}
	return "", "", false
}

// firstUntried returns the first pair that has not failed since the link last
// stood.
func firstUntried(link *fsm.Link, dialling, dialled []*fsm.Node) (string, string, bool) {
	for _, to := range dialled {
		for _, from := range dialling {
			attempt := fsm.Attempt(from.ID, to.ID)
			if attempt != fsm.Attempt(link.SourceNode, link.EndpointNode) && !slices.Contains(link.Tried, attempt) {
				return from.ID, to.ID, true
			}
		}
	}
	return "", "", false
}

// dialable returns the nodes with an external endpoint, or the one of them that
// is named.
func dialable(nodes []*fsm.Node, only string) []*fsm.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(node *fsm.Node) bool {
		_, ok := node.ExternalDetail()
		return !ok || only != "" && node.ID != only
	})
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
