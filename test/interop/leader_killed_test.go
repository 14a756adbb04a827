//go:build interop

package interop_test

import (
	"maps"
	"slices"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// pair is two linked nodes on the followers of a cluster, with an application on
// each.
type pair struct {
	*cluster
	*lab
	leading    *process.Replica
	nodes      []*node
	one, other *app
}

// startPair lets operators make the topology.
func startPair(t *testing.T) *pair {
	t.Helper()
	c := formCluster(t, managed)
	waitTolerance(t, c.replicas[0], 1)
	leading, others := c.leader(t)
	l := c.ask(t, others[0])
	l.mustAddLink(t, "", "a", "b")
	p := &pair{cluster: c, lab: l, leading: leading}
	p.nodes = l.start(t, c.spec(t, "a", "node-a", others...), c.spec(t, "b", "node-b", others[1], others[0]))
	l.WaitLink(t, "a", "b")
	p.one, p.other = startApp(t, p.nodes[0], alice, "--quiet"), startApp(t, p.nodes[1], bob, "--quiet")
	l.wantRouted(t, p.nodes[0], p.nodes[1], bob)
	l.wantRouted(t, p.nodes[1], p.nodes[0], alice)
	return p
}

// The death of the leader is nothing that the applications of nodes on the
// survivors could notice: the nodes keep their streams, and so their links.
func TestScenario24LeaderIsKilled(t *testing.T) {
	p := startPair(t)
	before := p.linkEnds(t)
	talk := startExchange(t, p.one, p.other)
	talk.waitTicks(t, 10)
	p.leading.Kill(t)
	p.waitLeader(t)
	talk.waitTicks(t, 10)
	// The new one brings about what operators and nodes want.
	p.other.do(t, "subscribe "+carol)
	p.wantRouted(t, p.nodes[0], p.nodes[1], carol)
	p.mustAddSegment(t, "after")
	talk.waitTicks(t, 30)

	heard := talk.stop(t)
	t.Log(heard)
	if err := heard.undisturbed(); err != nil {
		t.Error(err)
	}
	if after := p.linkEnds(t); !maps.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}
	for _, n := range p.nodes {
		if opened := n.balancer.connections(); len(opened) != 1 {
			t.Errorf("%s connected to %v", n.fullID(), opened)
		}
	}
}

// The measure of the scenarios above and below sees a link that is cut.
func TestScenario24LinkIsCutByHand(t *testing.T) {
	p := startPair(t)
	link := p.WaitLink(t, "a", "b")
	talk := startExchange(t, p.one, p.other)
	talk.waitTicks(t, 10)
	if _, err := p.API().RemoveTopologyLink(t.Context(), &controlplanepb.RemoveTopologyLinkRequest{DomainA: "a", DomainB: "b"}); err != nil {
		t.Fatal(err)
	}
	for _, n := range p.nodes {
		p.WaitNoConnection(t, n.fullID(), link.GetLinkId())
	}
	talk.waitSent(t, 10)
	p.mustAddLink(t, "", "a", "b")
	p.WaitLink(t, "a", "b")
	talk.waitTicks(t, 10)
	heard := talk.stop(t)
	t.Log(heard)
	if err := heard.undisturbed(); err == nil {
		t.Error("no message was lost or late")
	}
	if ids := slices.Collect(maps.Keys(p.linkEnds(t))); slices.Contains(ids, link.GetLinkId()) {
		t.Errorf("the link is back as %v", ids)
	}
}
