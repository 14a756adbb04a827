package northbound

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slim-cp/slim-cp/fsm"
)

// routeCounts are the routes of a fleet by their status.
type routeCounts struct {
	total, applied uint64
	nodes          map[string]*nodeRoutes // those with routes that are not applied; looked up only
}

type nodeRoutes struct {
	pending, failed uint64
	// The first of each, in words.
	firstPending, firstFailed string
}

func (c *routeCounts) node(id string) *nodeRoutes {
	count, ok := c.nodes[id]
	if !ok {
		count = &nodeRoutes{}
		c.nodes[id] = count
	}
	return count
}

// nameClass are the names that the same groups announce in the same order of age:
// the same nodes forward them over the same links.
type nameClass struct {
	groups  []string
	records []*fsm.NameRecord // by revision
}

// nameClasses returns the classes by their first name.
func nameClasses(view *fsm.View) []*nameClass {
	var classes []*nameClass
	known := map[string]*nameClass{} // looked up only
	for record := range view.Names() {
		groups := record.Groups()
		key := strings.Join(groups, "\x00")
		class, ok := known[key]
		if !ok {
			class = &nameClass{groups: groups}
			known[key] = class
			classes = append(classes, class)
		}
		class.records = append(class.records, record)
	}
	for _, class := range classes {
		slices.SortStableFunc(class.records, func(a, b *fsm.NameRecord) int { return cmp.Compare(a.Revision, b.Revision) })
	}
	return classes
}

// newer returns the names of the class whose revision is above an index.
func (c *nameClass) newer(index uint64) []*fsm.NameRecord {
	at, _ := slices.BinarySearchFunc(c.records, index+1, func(r *fsm.NameRecord, index uint64) int {
		return cmp.Compare(r.Revision, index)
	})
	return c.records[at:]
}

// countRoutes counts a million routes of ten thousand names without looking at
// each: of a class of names those are not applied that are newer than what their
// node confirmed, or all.
func (e *explainer) countRoutes() *routeCounts {
	counts := &routeCounts{nodes: map[string]*nodeRoutes{}}
	for _, class := range nameClasses(e.view) {
		for id, link := range e.view.Carriers(class.groups) {
			node, ok := e.view.Node(id)
			if !ok {
				continue
			}
			pending := e.pendingNames(class, link, node)
			counts.total += uint64(len(class.records))
			counts.applied += uint64(len(class.records) - len(pending))
			if len(pending) == 0 {
				continue
			}
			count := counts.node(id)
			if count.firstPending == "" {
				count.firstPending = e.firstPending(pending, link, node)
			}
			count.pending += uint64(len(pending))
		}
	}
	e.countFailures(counts)
	return counts
}

// pendingNames returns the names of a class that the node has not confirmed for a
// link. Refused ones are among them, or not.
func (e *explainer) pendingNames(class *nameClass, link *fsm.Link, node *fsm.Node) []*fsm.NameRecord {
	// The revision of a name so old that only the link and the trees count.
	floor := e.view.RouteRevision(link, node.ID, &fsm.NameRecord{})
	if link.Status != fsm.LinkApplied || floor > node.Acked {
		return class.records
	}
	return class.newer(node.Acked)
}

// firstPending describes the first route that is not refused, empty if all are.
func (e *explainer) firstPending(names []*fsm.NameRecord, link *fsm.Link, node *fsm.Node) string {
	for _, record := range names {
		if status, reason := e.routeStatus(link, node, record); status == fsm.RoutePending {
			return fmt.Sprintf("%v over link %s: %s", record.Name, link.ID, reason)
		}
	}
	return ""
}

// countFailures moves refused routes to where they belong.
func (e *explainer) countFailures(counts *routeCounts) {
	for node := range e.view.Nodes() {
		for _, failure := range node.Failures {
			link, record := e.failedRoute(node, failure)
			if record == nil {
				continue
			}
			count := counts.node(node.ID)
			if count.failed++; count.failed == 1 {
				count.firstFailed = fmt.Sprintf("%v over link %s: %s", failure.Name, failure.LinkID, failure.Error)
			}
			if link.Status == fsm.LinkApplied && e.view.RouteRevision(link, node.ID, record) <= node.Acked {
				counts.applied--
			} else {
				count.pending--
			}
		}
	}
}

// failedRoute returns the link and the name of a refused route that the node
// should still hold in the revision that it refused; no name if it should not.
func (e *explainer) failedRoute(node *fsm.Node, failure fsm.RouteFailure) (*fsm.Link, *fsm.NameRecord) {
	link, linked := e.view.Link(failure.LinkID)
	record, announced := e.view.NameRecord(failure.Name)
	if !linked || !announced || !link.Live() || link.DestNode == "" || link.End(node.Group) != node.ID ||
		!e.view.Forwards(link, node.Group, record) ||
		failure.Revision < e.view.RouteRevision(link, node.ID, record) {
		return nil, nil
	}
	return link, record
}
