package reconciler

import (
	"errors"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// listPair gathers the two answers to a pair of list requests.
type listPair struct {
	driver *driver
	flight *flight
	// asked is the view when the lists were asked for: what changed since is not
	// in them.
	asked *fsm.View
	// connectionsOnly: the routes were not asked for.
	connectionsOnly bool

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
	if d.stopped != nil || d.flight != p.flight || p.connections == nil ||
		p.routes == nil && !p.connectionsOnly {
		return
	}
	d.endList()
	err := p.connections.Err
	if p.routes != nil {
		err = errors.Join(err, p.routes.Err)
	}
	switch {
	case errors.Is(err, southbound.ErrTimeout):
		d.overdue(p.flight)
	case err != nil:
		d.failed(err)
	default:
		d.heard()
		if p.connectionsOnly {
			d.connectionsListed(p.asked, p.connections.Connections)
		} else {
			d.listed(p.asked, p.connections.Connections, p.routes.Routes)
		}
	}
}

// listsTurn reports whether lists are wanted and have their turn: those under way are
// bounded over the whole fleet.
func (d *driver) listsTurn(view *fsm.View) bool {
	if !d.listsWanted && !d.connectionsWanted {
		return false
	}
	bytes := connectionListBytes
	if d.listsWanted {
		bytes += view.NameCount() * nameBytes
	}
	return d.l.lists.acquire(d, d.holdsLinks(view), bytes)
}

// holdsLinks reports whether the node is an end of a link.
func (d *driver) holdsLinks(view *fsm.View) bool {
	for link := range view.LinksOf(d.id) {
		if link.Live() {
			return true
		}
	}
	return false
}

// endList gives the place of a list back that was read, or is not waited for. d.mu is
// held.
func (d *driver) endList() {
	if d.flight != nil && d.flight.listing {
		d.flight.listing = false
		d.l.lists.leave(d)
	}
}

// yieldList gives a turn back that the driver cannot use now. d.mu is held.
func (d *driver) yieldList() {
	if d.flight == nil || !d.flight.listing {
		d.l.lists.yield(d)
	}
}

// askLists reads what the node holds.
func (d *driver) askLists() {
	connectionsOnly := !d.listsWanted
	d.listsWanted, d.connectionsWanted, d.listsFirst = false, false, false
	flight := d.occupy()
	flight.listing = true
	d.requestLists(flight, 0, connectionsOnly)
}

// knowledge is what a view says of the links in the node's lists.
func (d *driver) knowledge(view *fsm.View) knowledge {
	known := knowledge{forgotten: func(linkID string, name fsm.Name) bool { return d.forgotten(view, linkID, name) }}
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
	return known
}

// forgotten judges a route over an incoming connection that is there when the
// node is first listed: set before the stream began, it can no longer be deleted
// (protocol N6). A session that this leadership found may have set some itself:
// those that were not wanted before it began. Where this errs the node tells when
// it is asked to delete the route.
func (d *driver) forgotten(view *fsm.View, linkID string, name fsm.Name) bool {
	if d.continued {
		return false
	}
	// Stamps of the state do not tell: they may be of a clock that runs ahead of
	// this leader's (protocol D6).
	if _, found := d.l.found[d.session.Name]; !found {
		return true
	}
	link, linked := view.Link(linkID)
	record, announced := view.NameRecord(name)
	return linked && announced && max(link.RevisionAt(d.id), record.Revision) < d.session.Epoch
}

// connectionsListed takes the node's connections alone: enough to see which
// links stand. If they are not those that the mirror knows, the routes are
// listed too.
func (d *driver) connectionsListed(view *fsm.View, connections []*controllerpb.ConnectionEntry) {
	d.linksNoted = true
	if d.mirror.differs(connections, d.knowledge(view)) {
		d.needLists()
	}
	d.release()
}

// listed takes the node's lists: they replace the mirror, and what they say of
// the node's own links and names goes to the log.
func (d *driver) listed(view *fsm.View, connections []*controllerpb.ConnectionEntry, routes []*controllerpb.RouteEntry) {
	if !d.mirror.listed {
		d.l.deletions.unread.Add(-1)
	}
	drifted := d.mirror.load(connections, routes, d.knowledge(view))
	if d.mirror.doubled() {
		// The older of two connections with one id is about to end (protocol C12).
		d.l.clocks.AddAfter(clockKey(clockDoubled, d.id), doubledWait)
	}
	d.batch.markAll()
	d.linksNoted, d.routesNoted = true, true
	if peers := d.leftovers(view); len(peers) > 0 && time.Since(d.hunted) >= huntInterval {
		d.hunted = time.Now()
		for _, peer := range peers {
			d.l.clocks.Add(clockKey(clockLeftover, peer))
		}
	}
	observed := &slimcppb.Observed{Links: d.observe(view), DriftedLinks: d.standing(view, drifted)}
	audits := d.audit(view, routes)
	if len(observed.Links)+len(observed.DriftedLinks)+len(audits) == 0 {
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

// huntInterval is the least time between two searches for the sources of leftover
// connections: a closed one stays in its ends' lists for moments.
const huntInterval = time.Second

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

// doubledWait is how long routes wait for the older of two connections to end.
const doubledWait = time.Second

// standing returns those of the links over which routes are wanted. Routes that
// went without a word are pending until they are set again (protocol C15).
func (d *driver) standing(view *fsm.View, ids []string) []string {
	var standing []string
	for _, id := range ids {
		link, ok := view.Link(id)
		if ok && link.Status == fsm.LinkApplied {
			d.logger.Warn("routes of a node have gone without a word", "link", id)
			standing = append(standing, id)
		}
	}
	return standing
}
