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
)

// tombstoneID tells tombstones apart, also of one name and node.
type tombstoneID struct {
	name     fsm.Name
	nodeID   string
	linkID   string
	revision uint64
}

// purge drops tombstones whose removal is confirmed and that have been listed
// for the retention, by this leader's clock (protocol N9).
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
		command := l.purgeable(seen, retention)
		if len(command.GetKeys())+len(command.GetLinkIds()) == 0 {
			continue
		}
		payload := &slimcppb.Command_PurgeTombstones{PurgeTombstones: command}
		if _, err := l.propose(ctx, &slimcppb.Command{Payload: payload}); err != nil {
			l.Logger.Debug("tombstones were not purged", "error", err)
		}
	}
}

// purgeable returns what may go, and keeps in seen when the rest was first seen.
func (l *leadership) purgeable(seen map[tombstoneID]time.Time, retention time.Duration) *slimcppb.PurgeTombstones {
	view := l.view()
	command := &slimcppb.PurgeTombstones{}
	now := time.Now()
	present := map[tombstoneID]struct{}{}
	ripe := func(id tombstoneID) bool {
		present[id] = struct{}{}
		first, ok := seen[id]
		if !ok {
			seen[id] = now
			return retention == 0
		}
		return now.Sub(first) >= retention
	}
	for tombstone := range view.Tombstones() {
		id := tombstoneID{name: tombstone.Name, nodeID: tombstone.Announcer.NodeID, revision: tombstone.Revision}
		if ripe(id) && len(command.Keys) < purgeLimit && view.RemovalConfirmed(tombstone) {
			command.Keys = append(command.Keys, &slimcppb.TombstoneKey{
				Name: tombstone.Name.Proto(), NodeId: tombstone.Announcer.NodeID, Revision: tombstone.Revision,
			})
		}
	}
	for link := range view.Links() {
		if !link.Gone {
			continue
		}
		if ripe(tombstoneID{linkID: link.ID, revision: link.SourceRevision}) && len(command.LinkIds) < purgeLimit {
			command.LinkIds = append(command.LinkIds, link.ID)
		}
	}
	for id := range seen {
		if _, ok := present[id]; !ok {
			delete(seen, id)
		}
	}
	return command
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
