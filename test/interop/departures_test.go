//go:build interop

package interop_test

import (
	"fmt"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

func TestScenario06SiblingTakesTheSameLinkOver(t *testing.T) {
	t.Parallel()
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		b := l.startGroup(t, "b")[0]
		first, second := l.siblings(t, "a")
		gateway := l.start(t, leave.spec(t, l, first))[0]
		// Both ends accept links, so the node that comes later dials.
		link := l.WaitLink(t, "a", "b", observer.From(gateway.fullID()), observer.To(b.fullID()))
		sibling := l.start(t, second)[0]
		one, other := startApp(t, sibling, alice), startApp(t, b, bob)
		l.WaitRoute(t, gateway.fullID(), b.fullID(), bob)
		l.WaitRoute(t, b.fullID(), sibling.fullID(), alice)
		converse(t, one, other, "before")

		leave.of(t, l, gateway)
		taken := l.WaitLink(t, "a", "b", observer.From(sibling.fullID()), observer.To(b.fullID()))
		if taken.GetLinkId() != link.GetLinkId() {
			t.Errorf("the sibling has link %s, want the gateway's %s", taken.GetLinkId(), link.GetLinkId())
		}
		l.WaitRoute(t, sibling.fullID(), b.fullID(), bob)
		l.WaitRoute(t, b.fullID(), sibling.fullID(), alice)
		converse(t, one, other, "after")
	})
}

func TestScenario07LinkMovesToTheDestinationsSibling(t *testing.T) {
	t.Parallel()
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		first, second := l.siblings(t, "b")
		siblings := l.start(t, leave.spec(t, l, first), leave.spec(t, l, second))
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

		leave.of(t, l, end)
		l.WaitLink(t, "a", "b", observer.From(a.fullID()), observer.To(sibling.fullID()))
		l.wantRouted(t, a, sibling, bob)
		l.wantRouted(t, sibling, a, alice)
		converse(t, one, other, "after")
	})
}

func TestScenario08NamesOfAKilledNodeGoAway(t *testing.T) {
	t.Parallel()
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		nodes := l.start(t, l.spec(t, "a", "node-a"), leave.spec(t, l, l.spec(t, "b", "node-b")))
		a, b := nodes[0], nodes[1]
		other := startApp(t, b, bob)
		l.wantRouted(t, a, b, bob)
		leave.of(t, l, b, other)
		l.WaitDeleted(t, bob)
		l.WaitForgotten(t, bob)
	})
}

func TestScenario09RestartedNodeIsServedAgain(t *testing.T) {
	t.Parallel()
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		nodes := l.start(t, l.spec(t, "a", "node-a"), leave.spec(t, l, l.spec(t, "b", "node-b")))
		a, b := nodes[0], nodes[1]
		l.WaitLink(t, "a", "b")
		one, other := startApp(t, a, alice), startApp(t, b, bob)
		l.wantRouted(t, a, b, bob)
		l.wantRouted(t, b, a, alice)
		converse(t, one, other, "before")

		// On the same port. An application whose node is killed may not find it
		// again, so each new node gets one with a name of its own.
		leave.of(t, l, b)
		b = l.start(t, leave.spec(t, l, b.nodeSpec))[0]
		l.WaitLink(t, "a", "b")
		l.wantLinks(t, 1)
		other = startApp(t, b, carol)
		l.wantRouted(t, a, b, carol)
		l.wantRouted(t, b, a, alice)
		l.wantAnnouncedBy(t, carol, b)
		converse(t, one, other, "same port")

		leave.of(t, l, b)
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
	})
}

func TestScenario11LastNodeTakesItsLinksAlong(t *testing.T) {
	t.Parallel()
	eachDeparture(t, func(t *testing.T, leave departure) {
		l := startLab(t, mesh)
		nodes := l.start(t, l.spec(t, "a", "node-a"), l.spec(t, "b", "node-b"), leave.spec(t, l, l.spec(t, "c", "node-c")))
		a, b, c := nodes[0], nodes[1], nodes[2]
		untouched := l.WaitLink(t, "a", "b")
		links := []*controlplanepb.LinkEntry{l.WaitLink(t, "a", "c"), l.WaitLink(t, "b", "c")}
		one, other := startApp(t, a, alice), startApp(t, b, bob)
		l.wantRouted(t, a, b, bob)
		l.wantRouted(t, b, a, alice)

		leave.of(t, l, c)
		l.WaitNoLink(t, "c")
		l.WaitNoConnection(t, a.fullID(), links[0].GetLinkId())
		l.WaitNoConnection(t, b.fullID(), links[1].GetLinkId())
		if left := l.WaitLink(t, "a", "b"); left.GetLinkId() != untouched.GetLinkId() || left.GetLastUpdated() != untouched.GetLastUpdated() {
			t.Errorf("the other groups' link was %v and is %v", untouched, left)
		}
		converse(t, one, other, "hello")
	})
}
