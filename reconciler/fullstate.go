package reconciler

import (
	"unique"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// maxFullState is the largest full state that is sent; nodes take 4 MiB in one
// message. The routes beyond it are cut by the push and set again by the
// increments that follow (protocol C5).
const maxFullState = 3_500_000

// sendFullState pushes everything the node should hold in one command: the only
// form in which the node dials with its own credentials (protocol C5).
func (d *driver) sendFullState(view *fsm.View, node *fsm.Node, plan linkPlan) {
	command := d.fullState(view, node, plan.creates)
	d.call(southbound.Call{Command: command}, func(answer southbound.Answer) {
		acks := connectionAcks(answer.Ack)
		var gone []string
		for id, held := range d.mirror.links {
			link, ok := view.Link(id)
			if ok && !link.Live() && !link.Gone && held.outgoing {
				gone = append(gone, id)
			}
		}
		// What the node kept of its routes its list tells.
		d.needLists()
		d.linksReconciled(d.linksDialled(plan.creates, acks), append(plan.gone, gone...))
	})
}

// fullState names links that are only kept without a configuration, so that a
// dead one is refused at once instead of dialled (protocol C6).
func (d *driver) fullState(view *fsm.View, node *fsm.Node, dial []*fsm.Link) *controllerpb.ConfigurationCommand {
	command := &controllerpb.ConfigurationCommand{Reconcile: true}
	named := map[string]bool{}
	for _, link := range dial {
		named[link.ID] = true
		config := southbound.ServerConfig(link, view.Fleet().GetEnforcedConnection())
		command.ConnectionsToCreate = append(command.ConnectionsToCreate, southbound.Connection(link, config))
	}
	var kept []*controllerpb.Connection
	for id, held := range d.mirror.links {
		if !held.outgoing || named[id] {
			continue
		}
		link, ok := view.Link(id)
		wanted := ok && link.Live() && link.SourceNode == node.ID
		foreign := !view.OwnLinkID(id) && !d.l.OrphanDetection
		if wanted || foreign {
			kept = append(kept, &controllerpb.Connection{LinkId: id, ConfigData: southbound.KeepConfig})
		}
	}
	command.ConnectionsToCreate = append(kept, command.ConnectionsToCreate...)
	fan := view.Fan(node.ID)
	size, left := proto.Size(command), 0
	for record := range view.Names() {
		for link := range fan.Links(record) {
			if link.Status != fsm.LinkApplied || !d.mirror.repeat(link.ID, unique.Make(record.Name)) {
				continue
			}
			route := southbound.Route(record.Name, link.ID)
			if size += proto.Size(route) + routeWire; size > maxFullState {
				left++
				continue
			}
			command.RoutesToSet = append(command.RoutesToSet, route)
		}
	}
	if left > 0 {
		d.logger.Warn("full state is too large: routes are cut until increments set them again", "routes", left)
	}
	return command
}
