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
	// doubled: the node has two connections with this link's id.
	doubled bool
}

// heldRoute is a route that the node holds.
type heldRoute struct {
	// doubtful: the node may have forgotten it, and could not delete it then. Only its
	// answer to a deletion tells: what it says of itself comes through the log, and
	// may be older than what it acknowledged since.
	doubtful bool
	// ghost: the node has refused to delete it (protocol N6).
	ghost bool
	// found: it was there before the driver was, which does not know whether the
	// node can still delete it.
	found bool
	// repeated: a full state set it although it was found, so there may be two, and
	// an acknowledged deletion proves nothing.
	repeated bool
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

// repeat notes that a full state is about to set a route, and reports whether it
// may. A route that the node has forgotten it would set a second time, and then
// could delete only one of the two.
func (m *mirror) repeat(linkID string, name nameHandle) bool {
	held, ok := m.links[linkID]
	if !ok {
		return true
	}
	route, ok := held.routes[name]
	if ok && route.found {
		route.repeated = true
		held.routes[name] = route
	}
	return !route.ghost && !route.doubtful
}

// forget notes that the node sent a withdrawal of a name: what it held of that name
// then it can no longer delete, on any link (protocol N6).
func (m *mirror) forget(name nameHandle) {
	for _, held := range m.links {
		if route, ok := held.routes[name]; ok {
			route.doubtful = true
			held.routes[name] = route
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
	// forgotten reports whether a route over an incoming connection that is there
	// when the node is first listed seems to be from before its stream began.
	forgotten func(linkID string, name fsm.Name) bool
}

// load replaces the mirror by the node's own lists.
//
// It returns the ids of links over which routes have gone that the mirror knew,
// though the connection is the same.
func (m *mirror) load(connections []*controllerpb.ConnectionEntry, routes []*controllerpb.RouteEntry, known knowledge) (drifted []string) {
	fresh := m.loadConnections(connections, known)
	m.loadRoutes(fresh, routes, known)
	for id, before := range m.links {
		after, ok := fresh[id]
		if !ok || after.connection != before.connection || after.revision != before.revision {
			continue
		}
		for name := range before.routes {
			if _, ok := after.routes[name]; !ok {
				drifted = append(drifted, id)
				break
			}
		}
	}
	m.links, m.listed = fresh, true
	return drifted
}

// differs reports whether a connection list shows other links than the mirror.
func (m *mirror) differs(connections []*controllerpb.ConnectionEntry, known knowledge) bool {
	fresh := m.loadConnections(connections, known)
	if len(fresh) != len(m.links) {
		return true
	}
	for id, held := range fresh {
		before, ok := m.links[id]
		if !ok || before.outgoing != held.outgoing || before.peer != "" && before.peer != held.peer ||
			before.connection != held.connection || held.doubled {
			return true
		}
	}
	return false
}

// routed reports whether the node holds any route.
func (m *mirror) routed() bool {
	for _, held := range m.links {
		if len(held.routes) > 0 {
			return true
		}
	}
	return false
}

func (m *mirror) doubled() bool {
	for _, held := range m.links {
		if held.doubled {
			return true
		}
	}
	return false
}

func (m *mirror) loadConnections(connections []*controllerpb.ConnectionEntry, known knowledge) map[string]*heldLink {
	fresh := map[string]*heldLink{}
	for _, entry := range connections {
		id := entry.GetLinkId()
		if id == "" || entry.GetConnectionType() != controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
			continue
		}
		other, twice := fresh[id]
		if twice && other.peer == known.peer(id) {
			other.doubled = true
			continue // of two connections with one id, the present source's counts (protocol C12)
		}
		fresh[id] = &heldLink{
			doubled:    twice,
			connection: entry.GetId(),
			outgoing:   entry.GetDirection() == controllerpb.ConnectionDirection_CONNECTION_DIRECTION_OUTGOING,
			peer:       entry.GetPeerNodeId(),
			revision:   known.revision(id),
			routes:     map[nameHandle]heldRoute{},
		}
	}
	return fresh
}

func (m *mirror) loadRoutes(fresh map[string]*heldLink, routes []*controllerpb.RouteEntry, known knowledge) {
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
			var route heldRoute
			if before, ok := m.links[connection.GetLinkId()]; ok {
				route = before.routes[handle]
			}
			if !m.listed {
				route.found = true
				route.doubtful = !held.outgoing && known.forgotten(connection.GetLinkId(), name)
			}
			held.routes[handle] = route
		}
	}
}
