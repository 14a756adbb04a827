package reconciler

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// routeWire is what a route adds to a command beside its own size.
const routeWire = 6

// step is one command about routes: of the names up to a place in the batch,
// either what to delete or what to set. Deletions go first, in a command of
// their own, so that no route is in both (protocol C4).
type step struct {
	deletes []routeKey
	sets    []routeKey
	upTo    int // the batch is done up to here once the sets are answered
}

// reconcileRoutes sends the next difference between what the node holds and what
// it should hold. Called with the lock held and the slot free.
func (d *driver) reconcileRoutes(view *fsm.View, node *fsm.Node) {
	fan := view.Fan(d.id)
	if d.voided(view) {
		d.needLists()
		d.routesNoted = true
		d.l.links.Add(d.id)
		return
	}
	if !d.batch.open {
		if !d.batch.waiting() {
			return
		}
		d.batch.start(view.Index(), func() ([]fsm.Name, bool) { return d.differing(view, node, fan) })
	}
	next := d.nextStep(view, node, fan)
	switch {
	case len(next.deletes) > 0:
		d.sendDeletes(next.deletes)
	case len(next.sets) > 0:
		d.sendSets(view, node, next)
	default:
		d.confirm(view, node, fan)
	}
}

// voided reports whether a link over which the node holds routes was made again
// since they were known: then they must be listed before they are set (protocol
// L1). It brings the others up to date.
func (d *driver) voided(view *fsm.View) bool {
	for id, held := range d.mirror.links {
		link, ok := view.Link(id)
		if !ok || !link.Live() {
			continue
		}
		revision := link.RevisionAt(d.id)
		if revision == held.revision {
			continue
		}
		if len(held.routes) > 0 {
			return true
		}
		held.revision = revision
	}
	return false
}

// differing returns every name of which the node holds too many or too few
// routes, and whether something was stamped since the node's last confirmation.
func (d *driver) differing(view *fsm.View, node *fsm.Node, fan fsm.Fan) ([]fsm.Name, bool) {
	differ := map[fsm.Name]struct{}{}
	kept := map[string]int{} // routes that the node holds and should, by link
	stamped := false
	for link, record := range view.NodeRoutes(node.ID) {
		stamped = stamped || view.RouteRevision(link, node.ID, record) > node.Acked
		switch {
		case d.mirror.holds(link.ID, unique.Make(record.Name)):
			kept[link.ID]++
		case link.Status == fsm.LinkApplied:
			differ[record.Name] = struct{}{}
		}
	}
	for tombstone := range view.Tombstones() {
		stamped = stamped || tombstone.Revision > node.Acked
	}
	for id, held := range d.mirror.links {
		if kept[id] == len(held.routes) {
			continue
		}
		for handle := range held.routes {
			if !wanted(view, fan, id, handle.Value()) {
				differ[handle.Value()] = struct{}{}
			}
		}
	}
	names := make([]fsm.Name, 0, len(differ))
	for name := range differ {
		names = append(names, name)
	}
	return names, stamped
}

// wanted reports whether the node should hold a route, whatever the state of its
// link.
func wanted(view *fsm.View, fan fsm.Fan, linkID string, name fsm.Name) bool {
	record, ok := view.NameRecord(name)
	if !ok {
		return false
	}
	for link := range fan.Links(record) {
		if link.ID == linkID {
			return true
		}
	}
	return false
}

// nextStep compares names of the batch until a command is full.
func (d *driver) nextStep(view *fsm.View, node *fsm.Node, fan fsm.Fan) step {
	var next step
	size := 0
	for i, name := range d.batch.rest() {
		deletes, sets := d.compare(view, node, fan, name)
		for _, key := range slices.Concat(deletes, sets) {
			size += proto.Size(southbound.Route(name, key.linkID)) + routeWire
		}
		full := size > southbound.MaxCommandBytes ||
			max(len(next.deletes)+len(deletes), len(next.sets)+len(sets)) > southbound.MaxCommandRoutes
		if full && (len(next.deletes) > 0 || len(next.sets) > 0) {
			return next
		}
		next.deletes = append(next.deletes, deletes...)
		next.sets = append(next.sets, sets...)
		next.upTo = d.batch.at + i + 1
	}
	return next
}

// compare returns what of a name the node must delete and set.
func (d *driver) compare(view *fsm.View, node *fsm.Node, fan fsm.Fan, name fsm.Name) (deletes, sets []routeKey) {
	handle := unique.Make(name)
	record, announced := view.NameRecord(name)
	if !announced || record.Revision > node.Acked {
		d.batch.relevant = true
	}
	if announced {
		for link := range fan.Links(record) {
			if link.Status != fsm.LinkApplied || d.mirror.holds(link.ID, handle) {
				continue
			}
			d.batch.relevant = true
			if d.waits(view, link.ID) {
				d.batch.blocked = true
				d.l.clocks.AddAfter(clockKey(clockMark, d.id), time.Until(d.held[link.ID].until))
				continue
			}
			if held, ok := d.mirror.links[link.ID]; ok && held.doubled {
				d.batch.blocked = true // the lists are read again soon
				continue
			}
			sets = append(sets, routeKey{linkID: link.ID, name: handle})
		}
	}
	for id, held := range d.mirror.links {
		route, ok := held.routes[handle]
		if !ok || wanted(view, fan, id, name) {
			continue
		}
		d.batch.relevant = true
		link, live := view.Link(id)
		if !live || !link.Live() || (link.SourceNode != node.ID && link.DestNode != node.ID) {
			continue // it goes with its connection
		}
		if wait := d.l.deletionsWait(view); wait > 0 {
			d.batch.blocked = true // the name may be one that the state has yet to learn of
			d.l.clocks.AddAfter(clockKey(clockMark, d.id), wait)
			continue
		}
		if route.ghost {
			d.exorcise(view, link, announced)
		} else {
			deletes = append(deletes, routeKey{linkID: id, name: handle})
		}
	}
	return deletes, sets
}

// exorcise removes a route that the node cannot delete: only the end of the
// connection does. If the name lives elsewhere the route misleads messages and
// must go now; if it is gone it does little harm. A source that is not reached ends
// the connection when it comes back, or when it departs.
func (d *driver) exorcise(view *fsm.View, link *fsm.Link, moved bool) {
	wait := reachPause
	if d.l.nodeReached(view, link.SourceNode) {
		wait = d.l.ghosts.allow(link, moved)
	}
	if wait > 0 {
		d.l.clocks.AddAfter(clockKey(clockMark, d.id), wait)
		return
	}
	d.l.replaceLink(link, "a route over it can no longer be deleted", clockKey(clockMark, d.id))
}

func (d *driver) sendDeletes(keys []routeKey) {
	command := &controllerpb.ConfigurationCommand{}
	for _, key := range keys {
		command.RoutesToDelete = append(command.RoutesToDelete, southbound.Route(key.name.Value(), key.linkID))
	}
	d.call(southbound.Call{Command: command}, func(answer southbound.Answer) {
		acks := routeAcks(answer.Ack)
		for _, key := range keys {
			d.deleted(key, acks[key])
		}
		d.routesNoted = true
		d.release()
	})
}

func (d *driver) sendSets(view *fsm.View, node *fsm.Node, next step) {
	command := &controllerpb.ConfigurationCommand{}
	for _, key := range next.sets {
		command.RoutesToSet = append(command.RoutesToSet, southbound.Route(key.name.Value(), key.linkID))
	}
	d.call(southbound.Call{Command: command}, func(answer southbound.Answer) {
		acks := routeAcks(answer.Ack)
		missing := map[string]struct{}{}
		for _, key := range next.sets {
			ack := acks[key]
			if connectionMissing(ack.GetErrorMsg()) {
				missing[key.linkID] = struct{}{}
				continue
			}
			d.set(view, node, key, ack)
		}
		for linkID := range missing {
			d.connectionMissing(view, linkID)
			d.batch.blocked = true
		}
		d.batch.at = next.upTo
		d.routesNoted = true
		d.release()
	})
}

// routeAcks reads an answer. Acks without a link are of routes that the node
// dropped by itself.
func routeAcks(ack *controllerpb.ConfigurationCommandAck) map[routeKey]*controllerpb.RouteAck {
	acks := map[routeKey]*controllerpb.RouteAck{}
	for _, status := range ack.GetRoutesStatus() {
		name, err := fsm.ParseName(status.GetRoute().GetName())
		if err != nil || status.GetRoute().GetLinkId() == "" {
			continue
		}
		acks[routeKey{linkID: status.GetRoute().GetLinkId(), name: unique.Make(name)}] = status
	}
	return acks
}

// deleted takes the answer to a deletion; nil if the node did not mention it.
func (d *driver) deleted(key routeKey, ack *controllerpb.RouteAck) {
	held, ok := d.mirror.links[key.linkID]
	if !ok {
		return
	}
	text := ack.GetErrorMsg()
	if ack.GetSuccess() || !strings.Contains(text, "subscription") && connectionMissing(text) {
		if route := held.routes[key.name]; route.repeated || route.doubtful {
			d.needLists() // the answer proves nothing if the node set it twice
		}
		delete(held.routes, key.name)
		return
	}
	// The node will not delete it: only the end of the connection will.
	held.routes[key.name] = heldRoute{ghost: true}
	d.logger.Info("node cannot delete a route", "route", key.name.Value(), "link", key.linkID, "error", text)
}

// set takes the answer to a route that was set; nil if the node did not mention
// it.
func (d *driver) set(view *fsm.View, node *fsm.Node, key routeKey, ack *controllerpb.RouteAck) {
	switch text := ack.GetErrorMsg(); {
	case ack.GetSuccess():
		held := d.mirror.link(key.linkID)
		if link, ok := view.Link(key.linkID); ok && len(held.routes) == 0 {
			held.revision = link.RevisionAt(d.id)
		}
		held.routes[key.name] = heldRoute{}
		delete(d.failures, key)
		delete(d.missing, key.linkID)
	case ack == nil:
		d.routeFailed(view, node, key, "the node's answer does not mention the route")
	default:
		d.routeFailed(view, node, key, text)
	}
}

// connectionMissing reports whether a node's text says that it has no connection
// with the link's id. The texts differ by release and by kind of command.
func connectionMissing(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "no such connection") ||
		strings.Contains(text, "connection") && strings.Contains(text, "not found")
}

// routeFailed remembers a refused route and tries it again later.
func (d *driver) routeFailed(view *fsm.View, node *fsm.Node, key routeKey, text string) {
	link, linked := view.Link(key.linkID)
	record, announced := view.NameRecord(key.name.Value())
	if !linked || !announced {
		return
	}
	d.failures[key] = fsm.RouteFailure{
		LinkID: key.linkID, Name: key.name.Value(), Error: text,
		Revision: view.RouteRevision(link, node.ID, record),
	}
	d.batch.refused = true
	d.logger.Warn("node refused a route", "route", key.name.Value(), "link", key.linkID, "error", text)
}

// confirm ends a batch: the node holds everything that the view wanted when the
// batch was opened, apart from what it refused.
func (d *driver) confirm(view *fsm.View, node *fsm.Node, fan fsm.Fan) {
	index, relevant, refused := d.batch.index, d.batch.relevant, d.batch.refused
	if d.batch.blocked {
		index = 0
	}
	d.batch.close()
	d.routesNoted = d.routesNoted || d.batch.waiting()
	failed := d.currentFailures(view, fan)
	switch {
	case refused && len(failed) > 0:
		d.retryFailures()
	case len(failed) == 0:
		d.routeAttempts = 0
	}
	if len(failed) > fsm.MaxFailures {
		index, failed = 0, failed[:fsm.MaxFailures] // too many to tell one by one
	}
	if (index == 0 || !relevant) && sameFailures(node.Failures, failed) {
		if d.routesNoted {
			d.routesNoted = false
			d.l.routes.Add(d.id)
		}
		return // a write that changes nothing would only wake others
	}
	d.propose(&slimcppb.Command{Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: &slimcppb.NodeReconciled{
		NodeId: d.id, Session: d.session.Name.Proto(), Index: index, Failures: failed,
	}}})
}

// currentFailures are the refused routes that are still wanted, for the state to
// keep, by link and name.
func (d *driver) currentFailures(view *fsm.View, fan fsm.Fan) []*slimcppb.RouteFailure {
	var current []fsm.RouteFailure
	for key, failure := range d.failures {
		if !wanted(view, fan, key.linkID, key.name.Value()) {
			delete(d.failures, key)
			continue
		}
		current = append(current, failure)
	}
	slices.SortFunc(current, func(a, b fsm.RouteFailure) int {
		return cmp.Or(strings.Compare(a.LinkID, b.LinkID), a.Name.Compare(b.Name))
	})
	var failed []*slimcppb.RouteFailure
	for _, failure := range current {
		failed = append(failed, &slimcppb.RouteFailure{
			Name: failure.Name.Proto(), LinkId: failure.LinkID, Revision: failure.Revision, Error: failure.Error,
		})
	}
	return failed
}

func sameFailures(known []fsm.RouteFailure, failed []*slimcppb.RouteFailure) bool {
	if len(known) != len(failed) {
		return false
	}
	for i, failure := range failed {
		if known[i].LinkID != failure.GetLinkId() || known[i].Revision != failure.GetRevision() ||
			known[i].Error != failure.GetError() {
			return false
		}
	}
	return true
}

// retryFailures tries refused routes again after a back-off, until the attempts
// are used up.
func (d *driver) retryFailures() {
	d.routeAttempts++
	if d.routeAttempts > d.l.MaxRequeues {
		d.logger.Warn("giving refused routes up until the next event", "attempts", d.routeAttempts-1)
		d.routeAttempts = 0
		return
	}
	d.l.clocks.AddAfter(clockKey(clockFailures, d.id), retryDelay(d.l.BaseRetryDelay, d.routeAttempts))
}

// markFailures makes the driver try the refused routes again.
func (d *driver) markFailures() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.failures {
		d.batch.mark(key.name.Value())
	}
}

// propose commits what an answer told; the slot stays taken until it is applied
// here, so that the next look sees its effect (protocol C1).
func (d *driver) propose(command *slimcppb.Command) {
	if d.flight == nil {
		d.flight = &flight{since: time.Now()}
	}
	flight := d.flight
	flight.proposing = true
	d.l.outbox.send(outgoing{command: command, done: func(result fsm.Result, err error) {
		d.proposed(flight, result, err)
	}})
}

func (d *driver) proposed(flight *flight, result fsm.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.flight != flight {
		return
	}
	if err != nil {
		// Not the node's failure: no attempt is counted.
		d.logger.Debug("outcome was not recorded", "error", err)
		d.needLists()
		d.flight = nil
		d.l.links.AddAfter(d.id, insistDelay)
		return
	}
	d.minIndex = max(d.minIndex, result.Index)
	d.release()
}
