//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	erin  = "org/ns/erin"
	frank = "org/ns/frank"
)

// The nodes of a follower that is killed come back on another replica, with the
// links and ids that they had, and before a sibling takes over. Nodes on the
// survivors are not disturbed.
func TestScenario25FollowerIsKilled(t *testing.T) {
	c := formCluster(t, mesh)
	waitTolerance(t, c.replicas[0], 1)
	leading, others := c.leader(t)
	victim, survivor := others[0], others[1]
	l := c.ask(t, survivor)
	a, b := c.startOn(t, l, "a", leading), c.startOn(t, l, "b", survivor)
	first, second := c.spec(t, "c", "c-1", victim, survivor), c.spec(t, "c", "c-2", survivor)
	first.peers, second.peers = []nodeSpec{second}, []nodeSpec{first}
	gateway := l.start(t, first)[0] // alone at first, it holds the links of its group
	d := c.startOn(t, l, "d", victim, leading)
	for _, link := range [][2]string{{"a", "b"}, {"a", "c"}, {"a", "d"}, {"b", "c"}, {"b", "d"}, {"c", "d"}} {
		l.WaitLink(t, link[0], link[1])
	}
	l.start(t, second)

	talks := map[*node]*exchange{}
	for moved, ends := range map[*node][4]any{nil: {a, alice, b, bob}, gateway: {gateway, carol, a, erin}, d: {d, dave, b, frank}} {
		from, to := ends[0].(*node), ends[2].(*node)
		one, other := startApp(t, from, ends[1].(string), "--quiet"), startApp(t, to, ends[3].(string), "--quiet")
		l.wantReached(t, from, one.name, to.group)
		l.wantReached(t, to, other.name, from.group)
		talks[moved] = startExchange(t, one, other)
	}
	before := l.linkEnds(t)
	talks[nil].waitTicks(t, 10)

	victim.Kill(t)
	l.WaitConnected(t, gateway.fullID(), d.fullID())
	// Long enough for every grace, so that a takeover would show.
	talks[nil].waitSent(t, 70)
	l.WaitConnected(t, a.fullID(), b.fullID(), gateway.fullID(), second.fullID(), d.fullID())
	if after := l.linkEnds(t); !maps.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}
	heard := talks[nil].stop(t)
	t.Logf("nodes on survivors: %v", heard)
	if err := heard.undisturbed(); err != nil {
		t.Error(err)
	}
	for _, n := range []*node{gateway, d} {
		t.Logf("%s, which moved over %v: %v", n.fullID(), n.balancer.connections(), talks[n].stop(t))
	}
	for _, n := range []*node{a, b} {
		if opened := n.balancer.connections(); len(opened) != 1 {
			t.Errorf("%s connected to %v", n.fullID(), opened)
		}
	}
}

// Without TLS a node that finds the dying process's listener gives up for good.
// How many come back is not for a replica to decide.
func TestScenario25PlaintextNodesAreCounted(t *testing.T) {
	t.Parallel()
	const fleet = 20
	for _, way := range []string{"directly", "over balancers"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := formPlaintextCluster(t, managed)
			waitTolerance(t, c.replicas[0], 1)
			_, others := c.leader(t)
			victim, survivor := others[0], others[1]
			l := c.ask(t, survivor)
			specs := make([]nodeSpec, fleet)
			for i := range specs {
				specs[i] = c.spec(t, "a", fmt.Sprintf("node-%d", i), victim, survivor)
				if way == "directly" {
					specs[i].controlPlane = victim.Southbound
				}
			}
			nodes := l.start(t, specs...)
			victim.Kill(t)
			if way == "directly" {
				for _, spec := range specs {
					l.WaitDisconnected(t, spec.fullID())
				}
				victim.Start(t)
			}
			t.Logf("%d of %d nodes that connect %s survived a SIGKILL of their replica without TLS", l.waitSettled(t, nodes), fleet, way)
		})
	}
}

// waitSettled waits until each node has come back after the loss of its stream, or
// has given up, and returns how many are back.
func (l *lab) waitSettled(t *testing.T, nodes []*node) (back int) {
	t.Helper()
	observer.Eventually(t, "the end of all attempts to come back", func(ctx context.Context) error {
		listed, err := l.Nodes(ctx)
		if err != nil {
			return err
		}
		back = 0
		for _, n := range nodes {
			switch {
			case n.said("failed to reconnect to control plane"), n.said("registration handshake"):
			case n.said("control plane stream closed") && n.said("reconnected to control plane") && connected(listed, n):
				back++
			default:
				return errors.New(n.fullID() + " has neither come back nor given up")
			}
		}
		return nil
	})
	return back
}

func connected(nodes []*controlplanepb.NodeEntry, n *node) bool {
	return slices.ContainsFunc(nodes, func(entry *controlplanepb.NodeEntry) bool {
		return entry.GetId() == n.fullID() && entry.GetStatus() == controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
	})
}

// said tells whether a node has written a line with the text.
func (n *node) said(text string) bool {
	return slices.ContainsFunc(n.Lines(), func(line process.Line) bool { return strings.Contains(line.Text, text) })
}
