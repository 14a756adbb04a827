package reconciler

import (
	"errors"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// listPair gathers the two answers to a pair of list requests.
type listPair struct {
	driver *driver
	flight *flight
	// asked is the index of the view when the lists were asked for.
	asked uint64

	// The driver's lock guards the following fields.
	connections, routes *southbound.Answer
}

func (p *listPair) gotConnections(answer southbound.Answer) {
	p.got(func() { p.connections = &answer })
}

func (p *listPair) gotRoutes(answer southbound.Answer) {
	p.got(func() { p.routes = &answer })
}

func (p *listPair) got(store func()) {
	d := p.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	store()
	if d.stopped != nil || d.flight != p.flight || p.connections == nil || p.routes == nil {
		return
	}
	err := errors.Join(p.connections.Err, p.routes.Err)
	switch {
	case errors.Is(err, southbound.ErrTimeout):
		d.overdue(p.flight)
	case err != nil:
		d.failed(err)
	default:
		d.heard()
		d.listed(p.asked, p.connections.Connections, p.routes.Routes)
	}
}

// askLists reads what the node holds (the seed's pre-flight).
func (d *driver) askLists() {
	d.listsWanted = false
	d.requestLists(d.occupy(), 0)
}

// listed takes the node's lists: they replace the mirror, and what they say of
// the node's own links goes to the log.
func (d *driver) listed(asked uint64, connections []*controllerpb.ConnectionEntry, routes []*controllerpb.RouteEntry) {
	view := d.l.view()
	known := knowledge{resumed: d.session.Resumed}
	known.revision = func(linkID string) uint64 {
		if link, ok := view.Link(linkID); ok {
			return link.RevisionAt(d.id)
		}
		return 0
	}
	known.peer = func(linkID string) string {
		if link, ok := view.Link(linkID); ok {
			if peer, ok := view.Node(link.PeerOf(d.id)); ok {
				return peer.LocalID
			}
		}
		return ""
	}
	d.mirror.load(connections, routes, known)
	d.batch.markAll()
	d.linksNoted, d.routesNoted = true, true
	if peers := d.leftovers(view); len(peers) > 0 {
		// Not from here: the leadership's lock is never taken under the driver's.
		go d.l.dropLeftovers(peers)
	}
	observed := &slimcppb.Observed{Links: d.observe(view)}
	audits := d.audit(view, asked, routes)
	if len(observed.Links)+len(audits) == 0 {
		d.release()
		return
	}
	for _, audit := range audits[min(1, len(audits)):] {
		d.l.outbox.send(outgoing{command: d.observed(&slimcppb.Observed{Audit: audit})})
	}
	if len(audits) > 0 {
		observed.Audit = audits[0]
	}
	d.propose(d.observed(observed))
}

// observe compares the links that the node dialled with its connection list,
// which is the truth about them (protocol L2).
func (d *driver) observe(view *fsm.View) []*slimcppb.LinkObservation {
	var observed []*slimcppb.LinkObservation
	for link := range view.LinksOf(d.id) {
		if link.SourceNode != d.id || !link.Live() {
			continue
		}
		seen := &slimcppb.LinkObservation{LinkId: link.ID, Revision: link.SourceRevision}
		held, live := d.mirror.links[link.ID]
		live = live && held.outgoing
		switch {
		case !live && (link.Status == fsm.LinkApplied || link.Status == fsm.LinkConnecting):
			seen.Seen = &slimcppb.LinkObservation_Down{Down: "the source no longer holds the connection"}
		case live && held.peer != "" && d.differs(view, link, held):
			seen.Seen = &slimcppb.LinkObservation_Up{Up: held.peer}
		default:
			continue
		}
		observed = append(observed, seen)
	}
	return observed
}

// differs reports whether the source's list tells more about a link that stands
// than the state knows.
func (d *driver) differs(view *fsm.View, link *fsm.Link, held *heldLink) bool {
	destination := fsm.NodeID(link.DestGroup, held.peer)
	if _, known := view.Node(destination); !known {
		return false
	}
	switch link.Status {
	case fsm.LinkConnecting:
		return true
	case fsm.LinkApplied:
		return link.DestNode != destination || link.DisputedBy != ""
	}
	return false // it is dialled first
}

// leftovers returns the own ids of nodes that hold the other end of a connection
// with an id of this cluster which no link has any more (protocol L4).
func (d *driver) leftovers(view *fsm.View) []string {
	var peers []string
	for id, held := range d.mirror.links {
		if link, ok := view.Link(id); held.outgoing || held.peer == "" || !view.OwnLinkID(id) || ok && link.Live() {
			continue
		}
		peers = append(peers, held.peer)
	}
	return peers
}
