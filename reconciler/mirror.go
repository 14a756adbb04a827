package reconciler

import (
	"unique"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// nameHandle stands for a name in eight bytes: a hub holds as many routes as the
// fleet has names, and a mirror holds each.
type nameHandle = unique.Handle[fsm.Name]

// mirror is what a node holds in one session, from its lists and from what it
// acknowledged since (protocol C2).
type mirror struct {
	// listed: the node's lists were read in this session.
	listed bool
	links  map[string]*heldLink
}

// heldLink is a remote connection that the node holds.
type heldLink struct {
	// connection is the node's own number for it.
	connection uint64
	outgoing   bool
	// peer is the other end's own id, as the connection's negotiation told it.
	peer string
	// revision of the link at this end when the routes were last known. A raised
	// one means another connection: its routes are listed before they are set.
	revision uint64
	routes   map[nameHandle]heldRoute
}

// heldRoute is a route that the node holds.
type heldRoute struct {
	// ghost routes cannot be deleted any more (protocol N6).
	ghost bool
}

func newMirror() *mirror { return &mirror{links: map[string]*heldLink{}} }

// link returns what the node holds of a link, adding it if need be.
func (m *mirror) link(id string) *heldLink {
	held, ok := m.links[id]
	if !ok {
		held = &heldLink{routes: map[nameHandle]heldRoute{}}
		m.links[id] = held
	}
	return held
}

func (m *mirror) holds(linkID string, name nameHandle) bool {
	held, ok := m.links[linkID]
	if !ok {
		return false
	}
	_, ok = held.routes[name]
	return ok
}

// forget notes that the node sent a withdrawal of a name: it can no longer
// delete its routes of that name, on any link (protocol N6).
func (m *mirror) forget(name nameHandle) {
	for _, held := range m.links {
		if _, ok := held.routes[name]; ok {
			held.routes[name] = heldRoute{ghost: true}
		}
	}
}

// knowledge is what the state says of the links in a node's lists.
type knowledge struct {
	// revision of a link at the node's end.
	revision func(linkID string) uint64
	// peer is the own id of the node that should be at the other end, empty if
	// that is not known.
	peer func(linkID string) string
	// resumed: the session goes on on the stream of an older one.
	resumed bool
}

// load replaces the mirror by the node's own lists. Routes over an incoming
// connection that are there before we set any were set before this session, so
// the node has forgotten how to delete them (protocol N6); a resumed session is
// the same stream as before, which has forgotten nothing.
func (m *mirror) load(connections []*controllerpb.ConnectionEntry, routes []*controllerpb.RouteEntry, known knowledge) {
	fresh := map[string]*heldLink{}
	for _, entry := range connections {
		id := entry.GetLinkId()
		if id == "" || entry.GetConnectionType() != controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
			continue
		}
		if other, ok := fresh[id]; ok && other.peer == known.peer(id) {
			continue // of two connections with one id, the present source's counts (protocol C12)
		}
		fresh[id] = &heldLink{
			connection: entry.GetId(),
			outgoing:   entry.GetDirection() == controllerpb.ConnectionDirection_CONNECTION_DIRECTION_OUTGOING,
			peer:       entry.GetPeerNodeId(),
			revision:   known.revision(id),
			routes:     map[nameHandle]heldRoute{},
		}
	}
	for _, entry := range routes {
		name, err := fsm.ParseName(entry.GetName())
		if err != nil {
			continue
		}
		handle := unique.Make(name)
		for _, connection := range entry.GetConnections() {
			held, ok := fresh[connection.GetLinkId()]
			if !ok || held.connection != connection.GetId() {
				continue
			}
			ghost := !held.outgoing && !m.listed && !known.resumed
			if before, ok := m.links[connection.GetLinkId()]; ok && before.routes[handle].ghost {
				ghost = true
			}
			held.routes[handle] = heldRoute{ghost: ghost}
		}
	}
	m.links, m.listed = fresh, true
}
