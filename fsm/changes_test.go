package fsm

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// routeKey is a route as a node holds it, with the nodes at the link's ends:
// another node there means another connection.
type routeKey struct {
	node, link, source, destination string
	name                            Name
}

// wantedRoutes are the routes of all nodes, with their revisions.
func wantedRoutes(view *View) map[routeKey]uint64 {
	routes := map[routeKey]uint64{}
	for node := range view.Nodes() {
		for link, record := range view.NodeRoutes(node.ID) {
			key := routeKey{node.ID, link.ID, link.SourceNode, link.DestNode, record.Name}
			routes[key] = view.RouteRevision(link, node.ID, record)
		}
	}
	return routes
}

// told says which of the things that decide about a route the feed has named.
type told struct {
	all, trees          bool
	nodes, links, names map[string]bool
}

func toldBy(changes Changes) told {
	named := told{
		all: changes.All, trees: changes.Trees,
		nodes: map[string]bool{}, links: map[string]bool{}, names: map[string]bool{},
	}
	for _, id := range changes.Nodes {
		named.nodes[id] = true
	}
	for _, change := range changes.Links {
		named.links[change.LinkID] = true
	}
	for _, change := range changes.Names {
		named.names[change.Name.String()] = true
	}
	return named
}

// checkTold compares two views: whatever differs was named by the feed between
// them.
func checkTold(named told, before, after *View) error {
	if named.all {
		return nil
	}
	if before.meta.TreesRevision != after.meta.TreesRevision && !named.trees {
		return fmt.Errorf("trees changed untold")
	}
	brief := func(view *View) map[string]any {
		all := map[string]any{}
		for node := range view.Nodes() {
			var sessions []SessionName
			for _, session := range node.Sessions {
				sessions = append(sessions, session.Name)
			}
			all["node "+node.ID] = []any{node.State, sessions, node.Details, node.Silent}
		}
		for link := range view.Links() {
			all["link "+link.ID] = *link
		}
		for record := range view.Names() {
			var announcers []string
			for _, announcer := range record.Announcers {
				announcers = append(announcers, announcer.NodeID)
			}
			all["name "+record.Name.String()] = announcers
		}
		return all
	}
	was, is := brief(before), brief(after)
	isTold := func(key string) bool {
		switch key[:5] {
		case "node ":
			return named.nodes[key[5:]]
		case "link ":
			return named.links[key[5:]]
		}
		return named.names[key[5:]]
	}
	for key, record := range is {
		if !reflect.DeepEqual(was[key], record) && !isTold(key) {
			return fmt.Errorf("%s changed untold, from %+v to %+v", key, was[key], record)
		}
	}
	for key := range was {
		if _, ok := is[key]; !ok && !isTold(key) {
			return fmt.Errorf("%s went untold", key)
		}
	}
	return nil
}

// TestNoChangeGoesUnnoticed draws command sequences. After each entry, the feed has
// named what changed; a route that a node did not have before has the entry's
// index as its revision, so that what the node confirmed earlier does not count
// for it; and a route comes or goes only with a change of its name, its link or
// the trees.
func TestNoChangeGoesUnnoticed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		feed := f.store.Subscribe()
		defer feed.Close()
		next := func() Changes {
			changes, _, err := feed.Next(t.Context())
			if err != nil {
				t.Fatalf("feed: %v", err)
			}
			return changes
		}
		next()
		before := f.view()
		routes := wantedRoutes(before)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			commands := []*slimcppb.Command{f.draw(t)}
			if rapid.IntRange(0, 3).Draw(t, "shared entry") == 0 {
				commands = append(commands, f.draw(t))
			}
			f.apply(commands...)
			after := f.view()
			named := toldBy(next())
			if err := checkTold(named, before, after); err != nil {
				t.Fatalf("after %v: %v", commands, err)
			}
			wanted := wantedRoutes(after)
			for key, revision := range wanted {
				_, known := routes[key]
				if !known && revision != after.Index() {
					t.Fatalf("after %v: %+v is new, but its revision is %d", commands, key, revision)
				}
				if !known && !named.all && !named.trees && !named.links[key.link] && !named.names[key.name.String()] {
					t.Fatalf("after %v: %+v is new untold", commands, key)
				}
			}
			for key := range routes {
				if _, still := wanted[key]; still || named.all || named.trees || named.links[key.link] {
					continue
				}
				if !named.names[key.name.String()] {
					t.Fatalf("after %v: %+v is gone untold", commands, key)
				}
			}
			before, routes = after, wanted
		}
	})
}
