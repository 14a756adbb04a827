//go:build interop

package interop_test

import (
	"context"
	"fmt"
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
	other.wantOnce(t, "hello carol")
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

func TestScenario04ChainIsReachedFromEndToEnd(t *testing.T) {
	l := startLab(t, `links: [{group: a, neighbors: [b]}, {group: b, neighbors: [c]}, {group: c, neighbors: [d]}]`)
	nodes := l.startGroup(t, "a", "b", "c", "d")
	a, d := nodes[0], nodes[3]
	for _, hop := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "d"}} {
		l.WaitLink(t, hop[0], hop[1])
	}
	l.wantLinks(t, 3)
	one, other := startApp(t, a, alice), startApp(t, d, dave)
	for _, hop := range nodes[:3] {
		l.WaitRoute(t, hop.fullID(), d.fullID(), dave)
	}
	for _, hop := range nodes[1:] {
		l.WaitRoute(t, hop.fullID(), a.fullID(), alice)
	}
	converse(t, one, other, "hello")

	other.leave(t)
	l.wantGone(t, dave, nodes...)
	l.wantRouted(t, d, a, alice)
}

// The name of the participants, and during the session that of the channel, are
// announced in two groups and more. Every message must reach every participant,
// and none may get it over two ways.
func TestScenario05GroupSessionReachesEachParticipantOnce(t *testing.T) {
	const (
		messages = 10
		channel  = "org/ns/channel"
	)
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b", "c")
	a, b, c := nodes[0], nodes[1], nodes[2]
	listeners := []*app{startApp(t, a, carol, "--quiet"), startApp(t, b, carol, "--quiet")}
	moderator := startApp(t, c, alice)
	for _, to := range []*node{a, b} {
		l.wantReached(t, to, carol, "c")
		l.wantReached(t, c, alice, to.group)
	}

	command := fmt.Sprintf("group %s %d", channel, messages)
	for _, listener := range listeners {
		command += " " + listener.name + "/" + listener.id
	}
	moderator.do(t, command)
	for _, listener := range listeners {
		for i := 1; i <= messages; i++ {
			text := fmt.Sprintf("%s %d", channel, i)
			listener.wantOnce(t, text)
		}
	}
	// The members announce the channel too.
	for _, name := range []string{carol, channel} {
		l.wantReached(t, a, name, "b", "c")
		l.wantReached(t, b, name, "a", "c")
	}
	for _, name := range []string{alice, carol, channel} {
		l.wantEachPairOnce(t, name)
	}
	moderator.do(t, "disband")
	l.WaitDeleted(t, channel)
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

func TestScenario12NameStaysWhileOneOfTwoApplicationsHasIt(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b")
	a, b := nodes[0], nodes[1]
	leaver, stayer := startApp(t, a, alice), startApp(t, a, alice)
	other := startApp(t, b, bob)
	l.wantInstances(t, b, a, alice, leaver.id, stayer.id)
	l.wantRouted(t, a, b, bob)

	leaver.leave(t)
	l.wantInstances(t, b, a, alice, stayer.id)
	other.send(t, alice, "hello")
	stayer.wantOnce(t, "hello")
}

func TestScenario13SecondAnnouncerTakesTheNameOver(t *testing.T) {
	t.Parallel()
	first := func(t *testing.T, l *lab, spec nodeSpec, leave func(*testing.T, *node, *app)) {
		t.Helper()
		nodes := l.start(t, spec, l.spec(t, "b", "node-b"), l.spec(t, "c", "node-c"))
		a, b, c := nodes[0], nodes[1], nodes[2]
		leaver := startApp(t, a, carol)
		l.wantReached(t, a, carol, "b", "c")
		stayer := startApp(t, b, carol)
		l.wantReached(t, b, carol, "a", "c")

		leave(t, a, leaver)
		l.wantAnnouncedBy(t, carol, b)
		l.wantReached(t, b, carol, "c")
		other := startApp(t, c, bob)
		l.wantReached(t, c, bob, "b")
		other.send(t, carol, "hello")
		stayer.wantOnce(t, "hello")
		if !a.Exited() {
			l.wantReached(t, b, carol, "a")
			startApp(t, a, alice).send(t, carol, "hello from a")
		}
	}
	t.Run("withdrawn", func(t *testing.T) {
		l := startLab(t, mesh)
		first(t, l, l.spec(t, "a", "node-a"), func(t *testing.T, _ *node, leaver *app) { leaver.leave(t) })
	})
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		first(t, l, leave.spec(t, l, l.spec(t, "a", "node-a")), func(t *testing.T, a *node, leaver *app) { leave.of(t, l, a, leaver) })
	})
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

// wantInstances waits until exactly these instances of a name are routed from one
// node to another.
func (l *lab) wantInstances(t *testing.T, from, to *node, name string, ids ...string) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("routes %s -> %s for %d instances of %s", from.fullID(), to.fullID(), len(ids), name), func(ctx context.Context) error {
		routes, err := l.Routes(ctx, from.fullID(), to.fullID())
		if err != nil {
			return err
		}
		routed := map[string]bool{}
		for _, route := range routes {
			if observer.NameOf(route.GetName()) == name && route.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED {
				routed[observer.InstanceOf(route.GetName())] = true
			}
		}
		for _, id := range ids {
			if !routed[id] || len(routed) != len(ids) {
				return fmt.Errorf("routed are %v, want %v", routed, ids)
			}
		}
		return nil
	})
}

// wantEachPairOnce checks that no two live routes of one instance of a name have
// the same source and destination.
func (l *lab) wantEachPairOnce(t *testing.T, name string) {
	t.Helper()
	routes, err := l.RoutesTo(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, route := range routes {
		if observer.Deleted(route) {
			continue
		}
		pair := fmt.Sprintf("%s/%s: %s -> %s", name, observer.InstanceOf(route.GetName()), route.GetSourceNodeId(), route.GetDestNodeId())
		if seen[pair] {
			t.Errorf("listed twice: %s", pair)
		}
		seen[pair] = true
	}
}
