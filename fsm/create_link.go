package fsm

import (
	"slices"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// endpoint is what a source dials; a link is replaced when it changes.
type endpoint struct {
	address     string
	tlsRequired bool
	authMethod  slimcppb.AuthMethod
	trustDomain string
}

func (l *Link) endpoint() endpoint {
	return endpoint{address: l.Endpoint, tlsRequired: l.TLSRequired, authMethod: l.AuthMethod, trustDomain: l.TrustDomain}
}

// renderEndpoint returns what others dial to reach a node.
func renderEndpoint(node *Node) (endpoint, bool) {
	detail, ok := node.ExternalDetail()
	if !ok {
		return endpoint{}, false
	}
	rendered := endpoint{address: detail.ExternalEndpoint, tlsRequired: detail.TLSRequired, authMethod: detail.AuthMethod}
	if detail.AuthMethod == slimcppb.AuthMethod_AUTH_METHOD_SPIRE {
		rendered.trustDomain = detail.TrustDomain
		if rendered.trustDomain == "" {
			rendered.trustDomain = node.Group
		}
	}
	return rendered, true
}

// ensureLinks makes the links that the topology asks for and a group lacks. The
// preferred node, if any, dials; it is the one that just registered.
func (a *applier) ensureLinks(group, prefer string) {
	if record, ok := a.Group(group); group == "" || !ok || record.Connected == 0 {
		return
	}
	if a.meta.ActiveSchema >= 2 {
		a.compareLinks(UnlinkedGroup{Group: group}, prefer)
		return
	}
	for _, peer := range a.graph.neighbors(group) {
		if _, linked := a.LinkBetween(group, peer); !linked {
			a.createLink(group, peer, prefer)
		}
	}
}

// createLink makes the link of a pair, or none if neither side can be dialled.
// The group dials the peer; if no node of the peer has an external endpoint, the
// peer dials the group.
func (a *applier) createLink(group, peer, prefer string) *Link {
	ours, theirs := a.candidates(group), a.candidates(peer)
	if len(ours) == 0 || len(theirs) == 0 {
		return nil
	}
	if dialled := reachable(theirs); len(dialled) > 0 {
		return a.newLink(a.choose(ours, prefer), a.choose(dialled, prefer))
	}
	if dialled := reachable(ours); len(dialled) > 0 {
		return a.newLink(a.choose(theirs, prefer), a.choose(dialled, prefer))
	}
	return nil
}

// canLink reports whether createLink would make a link.
func (a *applier) canLink(group, peer string) bool {
	ours, theirs := a.candidates(group), a.candidates(peer)
	return len(ours) > 0 && len(theirs) > 0 && len(reachable(ours))+len(reachable(theirs)) > 0
}

// candidates returns the nodes of a group that may be given new links, by id.
func (a *applier) candidates(group string) []*Node {
	var candidates []*Node
	for id := range a.ConnectedMembers(group) {
		if node, ok := a.Node(id); ok && !node.Silent {
			candidates = append(candidates, node)
		}
	}
	return candidates
}

func reachable(nodes []*Node) []*Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool {
		_, ok := n.ExternalDetail()
		return !ok
	})
}

func (a *applier) choose(nodes []*Node, prefer string) *Node {
	for _, node := range nodes {
		if node.ID == prefer {
			return node
		}
	}
	return nodes[a.pick(len(nodes))]
}

func (a *applier) newLink(source, dialled *Node) *Link {
	rendered, ok := renderEndpoint(dialled)
	if !ok {
		return nil
	}
	link := &Link{
		ID:           a.newLinkID(),
		SourceNode:   source.ID,
		SourceGroup:  source.Group,
		DestGroup:    dialled.Group,
		Endpoint:     rendered.address,
		EndpointNode: dialled.ID,
		TLSRequired:  rendered.tlsRequired,
		AuthMethod:   rendered.authMethod,
		TrustDomain:  rendered.trustDomain,
		Status:       LinkPending,
		CreatedAt:    a.now(),
	}
	a.restamp(link)
	a.setLink(link)
	return link
}
