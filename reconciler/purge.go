package reconciler

import (
	"context"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// purgePeriod is how often tombstones are looked at, at most.
	purgePeriod = 5 * time.Second
	// purgeLimit bounds one command.
	purgeLimit = 1000
	// confirmLimit is how long a tombstone waits for the nodes that forwarded its
	// name. One of them may keep its stream and obey nothing.
	confirmLimit = time.Minute
)

// tombstoneID tells tombstones apart, also of one name and node.
type tombstoneID struct {
	name     fsm.Name
	nodeID   string
	linkID   string
	revision uint64
}

// purge drops tombstones that have been listed for the retention, by this leader's
// clock, and whose removal is confirmed or was waited for long enough (protocol N9).
func (l *leadership) purge(ctx context.Context) {
	seen := map[tombstoneID]time.Time{}
	for {
		retention := milliseconds(l.view().Fleet().GetGraces().GetTombstoneMs())
		timer := time.NewTimer(min(max(retention/4, 100*time.Millisecond), purgePeriod))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		l.expire(ctx)
		for l.purgeSome(ctx, seen, retention) { // until less than a full command is left
		}
	}
}

// purgeSome drops what may go, up to the limit of one command, and reports whether
// there may be more.
func (l *leadership) purgeSome(ctx context.Context, seen map[tombstoneID]time.Time, retention time.Duration) (more bool) {
	view := l.Store.View()
	command := l.purgeable(view, seen, retention)
	if len(command.GetKeys())+len(command.GetLinkIds()) == 0 {
		return false
	}
	payload := &slimcppb.Command_PurgeTombstones{PurgeTombstones: command}
	if _, err := l.propose(ctx, &slimcppb.Command{Payload: payload}); err != nil {
		l.Logger.Debug("tombstones were not purged", "error", err)
		return false
	}
	return len(command.GetKeys()) == purgeLimit || len(command.GetLinkIds()) == purgeLimit
}

// purgeable returns what may go, and keeps in seen when the rest was first seen.
func (l *leadership) purgeable(view *fsm.View, seen map[tombstoneID]time.Time, retention time.Duration) *slimcppb.PurgeTombstones {
	command := &slimcppb.PurgeTombstones{}
	now := time.Now()
	present := map[tombstoneID]struct{}{}
	age := func(id tombstoneID) time.Duration {
		present[id] = struct{}{}
		if _, ok := seen[id]; !ok {
			seen[id] = now
		}
		return now.Sub(seen[id])
	}
	overdue := map[string]struct{}{}
	for tombstone := range view.Tombstones() {
		id := tombstoneID{name: tombstone.Name, nodeID: tombstone.Announcer.NodeID, revision: tombstone.Revision}
		listed := age(id)
		if listed < retention || len(command.Keys) == purgeLimit {
			continue
		}
		if listed >= confirmLimit {
			for nodeID := range view.Unconfirmed(tombstone) {
				overdue[nodeID] = struct{}{}
			}
		} else if !view.RemovalConfirmed(tombstone) {
			continue
		}
		command.Keys = append(command.Keys, &slimcppb.TombstoneKey{
			Name: tombstone.Name.Proto(), NodeId: tombstone.Announcer.NodeID, Revision: tombstone.Revision,
		})
	}
	for link := range view.Links() {
		if !link.Gone {
			continue
		}
		listed := age(tombstoneID{linkID: link.ID, revision: link.SourceRevision})
		if listed >= retention && len(command.LinkIds) < purgeLimit {
			command.LinkIds = append(command.LinkIds, link.ID)
		}
	}
	for id := range seen {
		if _, ok := present[id]; !ok {
			delete(seen, id)
		}
	}
	l.compareAll(overdue, view)
	return command
}

// compareAll makes nodes that did not confirm a removal in time compare everything
// when they answer again: then no tombstone tells of it any more.
func (l *leadership) compareAll(nodeIDs map[string]struct{}, view *fsm.View) {
	for id := range nodeIDs {
		if d, ok := l.driver(id); ok {
			d.markAll(view.Index())
			l.routes.Add(id)
		}
	}
}

// expire removes the records of nodes that departed long ago. Days are counted by
// stamped time (protocol D6).
func (l *leadership) expire(ctx context.Context) {
	view := l.view()
	retention := milliseconds(view.Fleet().GetGraces().GetNodeRetentionMs())
	if retention == 0 {
		return // for ever
	}
	var expired []string
	for node := range view.Nodes() {
		if node.State == fsm.NodeDeparted && !node.Connected() && len(expired) < purgeLimit &&
			time.Since(node.LastSession.At) > retention {
			expired = append(expired, node.ID)
		}
	}
	if len(expired) == 0 {
		return
	}
	l.Logger.Info("forgetting nodes that departed long ago", "nodes", len(expired))
	payload := &slimcppb.Command_ExpireNodes{ExpireNodes: &slimcppb.ExpireNodes{NodeIds: expired}}
	if _, err := l.propose(ctx, &slimcppb.Command{Payload: payload}); err != nil {
		l.Logger.Debug("nodes were not forgotten", "error", err)
	}
}
