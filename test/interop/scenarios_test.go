//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

const (
	alice = "org/ns/alice"
	bob   = "org/ns/bob"
	carol = "org/ns/carol"
	dave  = "org/ns/dave"
)

func TestScenario01MeshLinksEachPairOnce(t *testing.T) {
	l := startLab(t, mesh)
	l.startGroup(t, "a", "b", "c")
	l.WaitLink(t, "a", "b")
	l.WaitLink(t, "a", "c")
	l.WaitLink(t, "b", "c")
	l.wantLinks(t, 3)
}

func TestScenario02MessagesCrossALinkEachWay(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b")
	a, b := nodes[0], nodes[1]
	l.WaitLink(t, "a", "b")
	one, other := startApp(t, a, alice), startApp(t, b, bob)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)
	converse(t, one, other, "hello")

	other.do(t, "subscribe "+carol)
	l.wantRouted(t, a, b, carol)
	one.send(t, carol, "hello carol")
	if got := other.received("hello carol"); got != 1 {
		t.Errorf("the further name received the message %d times, want once", got)
	}
	// Nothing leaked back over the link: each name is announced by one node only.
	for name, node := range map[string]*node{alice: a, bob: b, carol: b} {
		l.wantAnnouncedBy(t, name, node)
	}
}

func TestScenario03StarReachesSpokesOverTheHub(t *testing.T) {
	l := startLab(t, star)
	nodes := l.startGroup(t, "platform", "spoke-a", "spoke-b")
	hub, spokeA, spokeB := nodes[0], nodes[1], nodes[2]
	linkA := l.WaitLink(t, "platform", "spoke-a")
	linkB := l.WaitLink(t, "platform", "spoke-b")
	l.wantLinks(t, 2)
	one, other := startApp(t, spokeA, alice), startApp(t, spokeB, bob)
	for _, hop := range []struct {
		from *node
		link string
	}{{spokeB, linkB.GetLinkId()}, {hub, linkA.GetLinkId()}} {
		route := l.WaitRoute(t, hop.from.fullID(), spokeA.fullID(), alice)
		if route.GetLinkId() != hop.link {
			t.Errorf("the route from %s uses link %s, want %s", hop.from.fullID(), route.GetLinkId(), hop.link)
		}
	}
	l.WaitRoute(t, spokeA.fullID(), spokeB.fullID(), bob)
	l.WaitRoute(t, hub.fullID(), spokeB.fullID(), bob)
	converse(t, one, other, "hello")
}

func TestScenario06SiblingTakesTheSameLinkOver(t *testing.T) {
	l := startLab(t, mesh)
	b := l.startGroup(t, "b")[0]
	first, second := l.siblings(t, "a")
	gateway := l.start(t, first)[0]
	// Both ends accept links, so the node that comes later dials.
	link := l.WaitLink(t, "a", "b", observer.From(gateway.fullID()), observer.To(b.fullID()))
	sibling := l.start(t, second)[0]
	one, other := startApp(t, sibling, alice), startApp(t, b, bob)
	l.WaitRoute(t, gateway.fullID(), b.fullID(), bob)
	l.WaitRoute(t, b.fullID(), sibling.fullID(), alice)
	converse(t, one, other, "before")

	gateway.Kill(t)
	taken := l.WaitLink(t, "a", "b", observer.From(sibling.fullID()), observer.To(b.fullID()))
	if taken.GetLinkId() != link.GetLinkId() {
		t.Errorf("the sibling has link %s, want the gateway's %s", taken.GetLinkId(), link.GetLinkId())
	}
	l.WaitRoute(t, sibling.fullID(), b.fullID(), bob)
	l.WaitRoute(t, b.fullID(), sibling.fullID(), alice)
	converse(t, one, other, "after")
}

func TestScenario07LinkMovesToTheDestinationsSibling(t *testing.T) {
	l := startLab(t, mesh)
	first, second := l.siblings(t, "b")
	siblings := l.start(t, first, second)
	a := l.startGroup(t, "a")[0]
	link := l.WaitLink(t, "a", "b", observer.From(a.fullID()))
	end, sibling := siblings[0], siblings[1]
	if link.GetDestNodeId() == sibling.fullID() {
		end, sibling = sibling, end
	}
	one, other := startApp(t, a, alice), startApp(t, sibling, bob)
	l.WaitRoute(t, a.fullID(), sibling.fullID(), bob)
	l.WaitRoute(t, end.fullID(), a.fullID(), alice)
	converse(t, one, other, "before")

	end.Kill(t)
	l.WaitLink(t, "a", "b", observer.From(a.fullID()), observer.To(sibling.fullID()))
	l.wantRouted(t, a, sibling, bob)
	l.wantRouted(t, sibling, a, alice)
	converse(t, one, other, "after")
}

func TestScenario08NamesOfAKilledNodeGoAway(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b")
	a, b := nodes[0], nodes[1]
	startApp(t, b, bob)
	l.wantRouted(t, a, b, bob)
	b.Kill(t)
	l.WaitDeleted(t, bob)
	l.WaitForgotten(t, bob)
}

func TestScenario09RestartedNodeIsServedAgain(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b")
	a, b := nodes[0], nodes[1]
	l.WaitLink(t, "a", "b")
	one, other := startApp(t, a, alice), startApp(t, b, bob)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)
	converse(t, one, other, "before")

	// On the same port. An application whose node is killed may not find it
	// again, so each new node gets one with a name of its own.
	b.Kill(t)
	b = l.start(t, b.nodeSpec)[0]
	l.WaitLink(t, "a", "b")
	l.wantLinks(t, 1)
	other = startApp(t, b, carol)
	l.wantRouted(t, a, b, carol)
	l.wantRouted(t, b, a, alice)
	l.wantAnnouncedBy(t, carol, b)
	converse(t, one, other, "same port")

	b.Kill(t)
	b = l.start(t, l.spec(t, b.group, b.id))[0]
	l.WaitLink(t, "a", "b", func(link *controlplanepb.LinkEntry) error {
		if !strings.HasSuffix(link.GetDestEndpoint(), b.endpoint()) && link.GetDestNodeId() == b.fullID() {
			return fmt.Errorf("it leads to %s, not %s", link.GetDestEndpoint(), b.endpoint())
		}
		return nil
	})
	l.wantLinks(t, 1)
	other = startApp(t, b, dave)
	l.wantRouted(t, a, b, dave)
	l.wantRouted(t, b, a, alice)
	l.wantAnnouncedBy(t, dave, b)
	converse(t, one, other, "other port")
}

func TestScenario10NameOfAnEndedApplicationIsWithdrawn(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b")
	a, b := nodes[0], nodes[1]
	other := startApp(t, b, bob)
	other.do(t, "subscribe "+carol)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, a, b, carol)

	other.do(t, "unsubscribe "+carol)
	l.wantGone(t, carol, a, b)
	l.wantRouted(t, a, b, bob) // its other name stays
	other.leave(t)
	l.wantGone(t, bob, a, b)
}

// wantRouted waits for the announcement of a name on one node and for the route
// to it on another.
func (l *lab) wantRouted(t *testing.T, from, to *node, name string) {
	t.Helper()
	l.WaitRoute(t, observer.AnyNode, to.fullID(), name)
	l.WaitRoute(t, from.fullID(), to.fullID(), name)
}

// wantLinks checks how many live links there are, of whatever groups.
func (l *lab) wantLinks(t *testing.T, want int) {
	t.Helper()
	links, err := l.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != want {
		t.Errorf("there are %d links, want %d: %v", len(links), want, links)
	}
}

// wantAnnouncedBy checks that one node and no other announces a name.
func (l *lab) wantAnnouncedBy(t *testing.T, name string, n *node) {
	t.Helper()
	observer.Eventually(t, "one announcement of "+name, func(ctx context.Context) error {
		routes, err := l.RoutesTo(ctx, name)
		if err != nil {
			return err
		}
		announcers := map[string]int{}
		for _, route := range routes {
			if route.GetSourceNodeId() == observer.AnyNode && !observer.Deleted(route) {
				announcers[route.GetDestNodeId()]++
			}
		}
		if len(announcers) != 1 || announcers[n.fullID()] != 1 {
			return fmt.Errorf("announced by %v, want one announcement by %s", announcers, n.fullID())
		}
		return nil
	})
}

// wantGone waits until all routes of a name are listed as deleted, then not at
// all, and the nodes themselves have none.
func (l *lab) wantGone(t *testing.T, name string, nodes ...*node) {
	t.Helper()
	l.WaitDeleted(t, name)
	for _, n := range nodes {
		l.WaitUnlisted(t, n.fullID(), name)
	}
	l.WaitForgotten(t, name)
}
