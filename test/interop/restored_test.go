//go:build interop

package interop_test

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// What was saved comes back, on the nodes too, but for what these say of
// themselves: they announce what they have now.
func TestScenario29SnapshotIsRestored(t *testing.T) {
	t.Parallel()
	c := formCluster(t, managed)
	waitTolerance(t, c.replicas[0], 1)
	_, others := c.leader(t)
	l := c.ask(t, others[0])
	l.mustAddSegment(t, "saved")
	l.mustAddLink(t, "", "a", "b")
	l.mustAddLink(t, "", "b", "d")
	a, b := c.startOn(t, l, "a", c.replicas[0]), c.startOn(t, l, "b", c.replicas[1])
	unlinked, leaver := c.startOn(t, l, "c", c.replicas[2]), c.startOn(t, l, "d", c.replicas[0])
	kept := l.WaitLink(t, "a", "b")
	l.WaitLink(t, "b", "d")
	one, other, goes := startApp(t, a, alice), startApp(t, b, bob), startApp(t, b, dave)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, a, b, dave)
	l.wantRouted(t, b, a, alice)
	file := filepath.Join(t.TempDir(), "state.snapshot")
	others[1].MustOperate(t, "snapshot", "save", file)

	if _, err := l.API().RemoveSegment(t.Context(), &controlplanepb.RemoveSegmentRequest{Name: "saved"}); err != nil {
		t.Fatal(err)
	}
	l.mustAddSegment(t, "later")
	if _, err := l.API().RemoveTopologyLink(t.Context(), &controlplanepb.RemoveTopologyLinkRequest{DomainA: "a", DomainB: "b"}); err != nil {
		t.Fatal(err)
	}
	l.mustAddLink(t, "", "a", "c")
	made := l.WaitLink(t, "a", "c")
	l.WaitNoConnection(t, a.fullID(), kept.GetLinkId())
	other.do(t, "subscribe "+carol)
	l.WaitRoute(t, "*", b.fullID(), carol)
	goes.leave(t)
	l.WaitDeleted(t, dave)
	leaver.Kill(t)
	l.WaitNoLink(t, "d")

	if said := others[1].MustOperate(t, "snapshot", "restore", file); !strings.Contains(said, "generation: 2") {
		t.Errorf("restore says\n%s", said)
	}
	back := l.WaitLink(t, "a", "b")
	if back.GetLinkId() != kept.GetLinkId() || back.GetSourceNodeId() != kept.GetSourceNodeId() {
		t.Errorf("the link was %v, and is %v", kept, back)
	}
	for _, n := range []*node{a, unlinked} {
		l.WaitNoConnection(t, n.fullID(), made.GetLinkId())
	}
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, a, b, carol)
	l.wantRouted(t, b, a, alice)
	l.wantUnrouted(t, a, dave)
	l.WaitNoLink(t, "c")
	l.WaitNoLink(t, "d")
	l.WaitDisconnected(t, leaver.fullID())
	converse(t, one, other, "after")
	one.send(t, carol, "hello carol")
	for _, r := range c.replicas {
		list := r.MustOperate(t, "segment", "list")
		if !strings.Contains(list, "saved") || strings.Contains(list, "later") {
			t.Errorf("the segments of %s are\n%s", r.Member.Name, list)
		}
	}
	for _, n := range []*node{a, b, unlinked} {
		if opened := n.balancer.connections(); len(opened) != 1 {
			t.Errorf("%s connected to %v", n.fullID(), opened)
		}
	}
}

// A cluster that was stopped as a whole finds its nodes again.
func TestScenario30AllReplicasAreRestarted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *process.Replica){
		"stopped": func(t *testing.T, r *process.Replica) { r.Stop(t) },
		"killed":  func(t *testing.T, r *process.Replica) { r.Kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := formCluster(t, mesh)
			waitTolerance(t, c.replicas[0], 1)
			l := c.ask(t, c.replicas[0])
			a, b, third := c.startOn(t, l, "a", c.replicas...), c.startOn(t, l, "b", c.replicas[1], c.replicas[2]), c.startOn(t, l, "c", c.replicas[2])
			for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
				l.WaitLink(t, pair[0], pair[1])
			}
			one, other := startApp(t, a, alice), startApp(t, b, bob)
			applied := func() {
				t.Helper()
				l.WaitConnected(t, a.fullID(), b.fullID(), third.fullID())
				for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
					l.WaitLink(t, pair[0], pair[1])
				}
				l.wantReached(t, a, alice, "b", "c")
				l.wantReached(t, b, bob, "a", "c")
			}
			applied()
			before := l.linkEnds(t)
			for _, r := range c.replicas {
				end(t, r)
			}
			for _, r := range c.replicas {
				r.Launch(t)
			}
			for _, r := range c.replicas {
				r.WaitStdout(t, process.StartedLine, nodeStart)
			}
			applied()
			if after := l.linkEnds(t); !maps.Equal(before, after) {
				t.Errorf("the links were %v, and are %v", before, after)
			}
			converse(t, one, other, "after")
		})
	}
}
