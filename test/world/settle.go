package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// settlePatience is longer than every back-off and grace that may run one
	// after the other.
	settlePatience = 20 * time.Minute
	// restFor is longer than what a converged fleet may have to confirm yet: the
	// last lists after a registration are read within it.
	restFor = 15 * time.Second
	// quietFor is how long a settled world must not change by itself; two sweeps
	// fall into it.
	quietFor = 2*time.Minute + time.Second
)

// Settle waits until there is no defect and nothing happens any more, and then
// makes sure that an idle world stays as it is: no command in the log, only
// lists asked of nodes.
func (w *World) Settle() {
	w.t.Helper()
	w.Eventually("the world settles", settlePatience, func() error {
		if defects := w.Defects(); len(defects) > 0 {
			return fmt.Errorf("%d defects:\n  %s", len(defects), strings.Join(defects, "\n  "))
		}
		return nil
	})
	var index uint64
	w.Eventually("the log comes to rest", settlePatience, func() error {
		before := w.View().Index()
		time.Sleep(restFor)
		synctest.Wait()
		if index = w.View().Index(); index != before {
			return fmt.Errorf("%d commands in %v", index-before, restFor)
		}
		return nil
	})
	commands := w.Taps.commands()
	time.Sleep(quietFor)
	synctest.Wait()
	if now := w.Taps.commands(); now != commands {
		w.t.Fatalf("an idle control plane sent %d commands", now-commands)
	}
	if now := w.View().Index(); now != index {
		w.t.Fatalf("an idle control plane wrote %d commands to its log", now-index)
	}
	if defects := w.Defects(); len(defects) > 0 {
		w.t.Fatalf("a settled world has %d defects:\n  %s", len(defects), strings.Join(defects, "\n  "))
	}
}

// Eventually waits until the check returns nil, and fails the test with its last
// error if that takes longer than the patience.
func (w *World) Eventually(what string, patience time.Duration, check func() error) {
	w.t.Helper()
	start, step := time.Now(), time.Millisecond
	for {
		synctest.Wait()
		err := check()
		if err == nil {
			return
		}
		if time.Since(start) > patience {
			w.t.Fatalf("not within %v: %s: %v", patience, what, err)
		}
		time.Sleep(step)
		step = min(step*2, time.Second)
	}
}

// Converge waits until messages arrive where they should and everything wanted
// is applied; tombstones may be there yet.
func (w *World) Converge() {
	w.t.Helper()
	w.Eventually("the world converges", settlePatience, func() error {
		if defects := w.converging(); len(defects) > 0 {
			return fmt.Errorf("%d defects:\n  %s", len(defects), strings.Join(defects, "\n  "))
		}
		return nil
	})
}

// Defects returns everything that is not as it must be once the control plane
// has had the time it needs.
func (w *World) Defects() []string {
	defects := w.converging()
	view := w.View()
	for tombstone := range view.Tombstones() {
		defects = append(defects, fmt.Sprintf("tombstone of %s at %s", tombstone.Name, tombstone.Announcer.NodeID))
	}
	for link := range view.Links() {
		if !link.Live() {
			defects = append(defects, fmt.Sprintf("deleted link %s of %s is still listed", link.ID, link.SourceNode))
		}
	}
	return defects
}

func (w *World) converging() []string {
	var defects []string
	reach := w.reach()
	for _, defect := range w.Network.Matrix().Complete(reach.Reaches) {
		defects = append(defects, defect.String())
	}
	for _, leftover := range w.Network.Leftovers() {
		defects = append(defects, fmt.Sprintf("node %s still forwards %s, which nobody announces", leftover.Node, leftover.Name))
	}
	view := w.View()
	if err := view.Check(); err != nil {
		defects = append(defects, err.Error())
	}
	for _, check := range []func(*fsm.View, *reachability) []string{w.nodeDefects, w.linkDefects, w.routeDefects} {
		defects = append(defects, check(view, reach)...)
	}
	return defects
}

// nodeDefects compares the node records with the processes.
func (w *World) nodeDefects(view *fsm.View, _ *reachability) []string {
	var defects []string
	add := func(format string, args ...any) { defects = append(defects, fmt.Sprintf(format, args...)) }
	for _, node := range w.nodes {
		if failure := node.GaveUp(); failure != nil {
			add("node %s gave up: %v", node.ID(), failure)
		}
		record, known := view.Node(node.ID())
		running := node.Phase() != dataplane.Stopped
		var announced []fsm.Name
		if running {
			for _, name := range node.Names() {
				announced = append(announced, Key(name))
			}
			slices.SortFunc(announced, fsm.Name.Compare)
		}
		if names := slices.Collect(view.NamesOf(node.ID())); !slices.Equal(names, announced) {
			add("node %s announces %v, the state has %v", node.ID(), announced, names)
		}
		switch {
		case running && (!known || len(record.Sessions) != 1 || record.State != fsm.NodePresent):
			add("running node %s (%s) is %+v in the state", node.ID(), node.Phase(), record)
		case running && record.Silent:
			add("node %s answers and is taken for silent", node.ID())
		case !running && known && record.State != fsm.NodeDeparted:
			add("stopped node %s is %+v in the state", node.ID(), record)
		}
	}
	return defects
}

// linkDefects compares the links of the state with what the topology asks for
// and with the connections that exist.
func (w *World) linkDefects(view *fsm.View, reach *reachability) []string {
	var defects []string
	add := func(format string, args ...any) { defects = append(defects, fmt.Sprintf(format, args...)) }
	for pair := range reach.pairs {
		if pair[0] > pair[1] {
			continue
		}
		link, ok := view.LinkBetween(pair[0], pair[1])
		switch {
		case !ok:
			add("there is no link %s~%s", pair[0], pair[1])
		case link.Status != fsm.LinkApplied || link.DisputedBy != "":
			add("link %s~%s is %s (%s), disputed by %q", pair[0], pair[1], link.Status, link.StatusMessage, link.DisputedBy)
		}
	}
	held := map[string]dataplane.Link{}
	for _, connection := range w.Network.Links() {
		if other, twice := held[connection.ID]; twice {
			add("two connections %v and %v have one id", other, connection)
		}
		held[connection.ID] = connection
	}
	for link := range view.Links() {
		if !link.Live() {
			continue
		}
		if !reach.pairs[[2]string{link.SourceGroup, link.DestGroup}] {
			add("link %s of %s~%s is not wanted", link.ID, link.SourceGroup, link.DestGroup)
		}
		connection, ok := held[link.ID]
		if !ok || connection.Source != link.SourceNode || connection.Dest != link.DestNode {
			add("link %s is from %s to %s in the state, the connection is %v", link.ID, link.SourceNode, link.DestNode, connection)
		}
		delete(held, link.ID)
	}
	for _, connection := range held {
		add("orphan connection %v", connection)
	}
	slices.Sort(defects)
	return defects
}

// routeDefects compares the routes of the state with the nodes' own tables.
func (w *World) routeDefects(view *fsm.View, _ *reachability) []string {
	var defects []string
	for route := range view.Routes(fsm.RouteFilter{}) {
		if route.Status != fsm.RouteApplied && route.Status != fsm.RouteDeleted {
			defects = append(defects, fmt.Sprintf("route %s at %s over %s has status %d (%s)",
				route.Name, route.NodeID, route.LinkID, route.Status, route.Message))
		}
	}
	for _, node := range w.nodes {
		wanted := map[string]bool{}
		for link, record := range view.NodeRoutes(node.ID()) {
			wanted[record.Name.String()+" over "+link.ID] = true
		}
		held := Routes(node)
		for route := range held {
			if !wanted[route] {
				defects = append(defects, fmt.Sprintf("node %s holds route %s, which is not wanted", node.ID(), route))
			}
		}
		for _, route := range slices.Sorted(maps.Keys(wanted)) {
			if !held[route] {
				defects = append(defects, fmt.Sprintf("node %s lacks route %s", node.ID(), route))
			}
		}
	}
	return defects
}

// Routes returns the routes over links that a node holds, each as "NAME over LINK".
func Routes(node *dataplane.Node) map[string]bool {
	held := map[string]bool{}
	if node.Phase() == dataplane.Stopped {
		return held
	}
	for _, entry := range node.Table() {
		for _, connection := range entry.Connections {
			if connection.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
				held[Key(entry.Name).String()+" over "+connection.LinkID] = true
			}
		}
	}
	return held
}
