package reconciler

import (
	"context"
	"strings"
	"unique"

	"github.com/slim-cp/slim-cp/fsm"
)

// follow hands the changes of the state to the drivers that they concern.
func (l *leadership) follow(ctx context.Context, feed *fsm.Feed) {
	for {
		changes, view, err := feed.Next(ctx)
		if err != nil {
			return
		}
		l.take(changes, view)
	}
}

// take hands one batch of changes over.
func (l *leadership) take(changes fsm.Changes, view *fsm.View) {
	for _, forgotten := range changes.Forgotten {
		if d, ok := l.driver(forgotten.NodeID); ok {
			d.forget(unique.Make(forgotten.Name))
		}
	}
	var marked map[string]struct{}
	if changes.All {
		marked = l.followAll(view)
	} else {
		marked = l.followSome(changes, view)
	}
	// Only now may a driver take the view for complete.
	l.current.Store(view)
	for id := range marked {
		l.enqueue(id)
	}
	l.wake(changes, view)
	l.noteUnlinked(view)
}

// followAll makes every driver compare everything. It returns the ids of the
// nodes to be looked at.
func (l *leadership) followAll(view *fsm.View) map[string]struct{} {
	for node := range view.Nodes() {
		l.followNode(node.ID, view)
	}
	l.mu.Lock()
	var gone []string
	for id := range l.drivers {
		if _, ok := view.Node(id); !ok {
			gone = append(gone, id)
		}
	}
	l.mu.Unlock()
	for _, id := range gone {
		l.followNode(id, view)
	}
	return l.markAll(view)
}

func (l *leadership) markAll(view *fsm.View) map[string]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	marked := make(map[string]struct{}, len(l.drivers))
	for id, d := range l.drivers {
		d.markAll(view.Index())
		marked[id] = struct{}{}
	}
	return marked
}

// followSome makes the drivers that changes concern compare what changed. It
// costs the change, not the fleet, and returns the ids of the nodes to be looked
// at.
func (l *leadership) followSome(changes fsm.Changes, view *fsm.View) map[string]struct{} {
	for _, id := range changes.Nodes {
		l.followNode(id, view)
	}
	marked := map[string]struct{}{}
	if changes.Trees {
		marked = l.markAll(view)
	}
	for _, change := range changes.Links {
		for _, id := range ends(change, view) {
			if d, ok := l.driver(id); ok {
				d.markAll(view.Index())
				marked[id] = struct{}{}
			}
		}
	}
	carriers := newCarrierCache(view)
	for _, change := range changes.Names {
		var after []string
		if record, ok := view.NameRecord(change.Name); ok {
			after = record.Groups()
		}
		for _, groups := range [][]string{change.GroupsBefore, after} {
			for _, id := range carriers.of(groups) {
				if d, ok := l.driver(id); ok {
					d.mark(change.Name, view.Index())
					marked[id] = struct{}{}
				}
			}
		}
	}
	return marked
}

// wake starts what the changes ask for beside a comparison, once the view is in
// place.
func (l *leadership) wake(changes fsm.Changes, view *fsm.View) {
	l.wakeNodes(changes, view)
	for _, id := range changes.Suspects {
		if d, ok := l.driver(id); ok {
			d.wantLists()
			l.links.Add(id)
		}
	}
	for _, id := range changes.Doubts {
		if d, ok := l.driver(id); ok {
			d.wantLists()
			l.links.Add(id)
			l.clocks.AddAfter(clockKey(clockDoubts, id), doubtInterval)
		}
	}
	for _, id := range changes.Disputes {
		if link, ok := view.Link(id); ok {
			l.listSource(link)
		}
	}
	l.scheduleLinks(changes, view)
}

// wakeNodes looks after nodes that lost their session, came back or are leaving.
func (l *leadership) wakeNodes(changes fsm.Changes, view *fsm.View) {
	if changes.All {
		for node := range view.Nodes() {
			l.scheduleNode(node)
		}
		return
	}
	for _, id := range changes.Nodes {
		node, ok := view.Node(id)
		if !ok {
			continue
		}
		l.scheduleNode(node)
		if node.Connected() {
			l.scheduleAbsent(node.Group, view)
		}
	}
}

// listSource asks for the lists of a link's source: they are the truth about
// its other end (protocol L2).
func (l *leadership) listSource(link *fsm.Link) {
	if d, ok := l.driver(link.SourceNode); ok {
		d.wantLists()
		l.links.Add(link.SourceNode)
	}
}

// ends returns the nodes that hold or held an end of a changed link.
func ends(change fsm.LinkChange, view *fsm.View) []string {
	var ids []string
	add := func(link *fsm.Link) {
		for _, id := range []string{link.SourceNode, link.DestNode} {
			if id != "" {
				ids = append(ids, id)
			}
		}
	}
	if change.Before != nil {
		add(change.Before)
	}
	if link, ok := view.Link(change.LinkID); ok {
		add(link)
	}
	return ids
}

// carrierCache remembers who carries the names of a list of groups: a batch of
// announcements mostly has few such lists.
type carrierCache struct {
	view  *fsm.View
	known map[string][]string
}

func newCarrierCache(view *fsm.View) *carrierCache {
	return &carrierCache{view: view, known: map[string][]string{}}
}

func (c *carrierCache) of(groups []string) []string {
	if len(groups) == 0 {
		return nil
	}
	key := strings.Join(groups, "\x00")
	ids, ok := c.known[key]
	if !ok {
		for id := range c.view.Carriers(groups) {
			ids = append(ids, id)
		}
		c.known[key] = ids
	}
	return ids
}

// followNode makes, renews or ends the driver of a node, and looks after a node
// that lost its session.
func (l *leadership) followNode(id string, view *fsm.View) {
	node, known := view.Node(id)
	session, wanted := fsm.Session{}, false
	if known && node.State == fsm.NodePresent {
		session, wanted = node.CommandSession()
	}
	l.mu.Lock()
	old, had := l.drivers[id]
	over := had && (!wanted || old.session.Name != session.Name)
	if over {
		delete(l.drivers, id)
	}
	var created *driver
	if wanted && (!had || over) {
		created = newDriver(l, node, session, view.Index())
		l.drivers[id] = created
	}
	l.driving.Store(int64(len(l.drivers)))
	l.mu.Unlock()
	if over {
		old.stop(ErrSessionOver)
	}
	if created != nil {
		created.start()
		l.wakePeers(node, view)
	}
}

// wakePeers looks again at links that wait for a connected node of the group
// (protocol C7).
func (l *leadership) wakePeers(node *fsm.Node, view *fsm.View) {
	for peer := range view.LinkedGroups(node.Group) {
		if link, ok := view.LinkBetween(node.Group, peer); ok && link.DestGroup == node.Group {
			l.links.Add(link.SourceNode)
		}
	}
}
