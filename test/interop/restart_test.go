//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

// A replica that is stopped and started on its disk, with all nodes alive,
// changes no link id: the nodes cut their links when the stream ends, and get
// the same ones again. Group a has two nodes, so that a takeover by the sibling
// would show.
func TestRestartOfTheReplicaKeepsLinks(t *testing.T) {
	l := startLab(t, mesh)
	b, c := l.spec(t, "b", "node-b"), l.spec(t, "c", "node-c")
	first, second := l.siblings(t, "a")
	nodes := l.start(t, first, second, b, c)
	l.WaitLink(t, "a", "b")
	l.WaitLink(t, "a", "c")
	l.WaitLink(t, "b", "c")
	one, other := startApp(t, nodes[1], alice), startApp(t, nodes[2], bob)
	l.wantReached(t, nodes[1], alice, "b", "c")
	l.wantReached(t, nodes[2], bob, "a", "c")
	converse(t, one, other, "before")
	before := l.linkEnds(t)

	l.Stop(t)
	l.Start(t)
	l.WaitConnected(t, first.fullID(), second.fullID(), b.fullID(), c.fullID())
	for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
		l.WaitLink(t, pair[0], pair[1])
	}
	l.wantReached(t, nodes[1], alice, "b", "c")
	l.wantReached(t, nodes[2], bob, "a", "c")
	converse(t, one, other, "after")
	if after := l.linkEnds(t); !maps.Equal(before, after) {
		t.Errorf("the links were %v, and are %v after the restart", before, after)
	}
}

// linkEnds returns the ends of each live link by its id.
func (l *lab) linkEnds(t *testing.T) map[string]string {
	t.Helper()
	links, err := l.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]string{}
	for _, link := range links {
		ends[link.GetLinkId()] = link.GetSourceNodeId() + " -> " + link.GetDestNodeId()
	}
	return ends
}

// wantReached waits until a name on a node is routed from each of the groups,
// by whichever of their nodes.
func (l *lab) wantReached(t *testing.T, to *node, name string, groups ...string) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("%s on %s routed from %v", name, to.fullID(), groups), func(ctx context.Context) error {
		routes, err := l.RoutesTo(ctx, name)
		if err != nil {
			return err
		}
		for _, group := range groups {
			reached := slices.ContainsFunc(routes, func(route *controlplanepb.RouteEntry) bool {
				return observer.Group(route.GetSourceNodeId()) == group && route.GetDestNodeId() == to.fullID() &&
					route.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED
			})
			if !reached {
				return fmt.Errorf("not from %s: %v", group, routes)
			}
		}
		return nil
	})
}
