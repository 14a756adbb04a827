//go:build interop

package interop_test

import (
	"maps"
	"testing"
	"time"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	// exitRemoved is how a replica ends that was removed from its cluster.
	exitRemoved = 10
	// removalTime bounds the end of a replica that is removed.
	removalTime = 30 * time.Second
)

// Replicas join, leave and are replaced while operators work and applications
// talk.
func TestScenario28ReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	c := formCluster(t, managed)
	waitTolerance(t, c.replicas[0], 1)
	first, second := c.replicas[0], c.replicas[1]
	l := c.ask(t, first)
	for _, group := range []string{"b", "c", "d"} {
		l.mustAddLink(t, "", "a", group)
	}
	a, b := c.startOn(t, l, "a", first), c.startOn(t, l, "b", second)
	l.WaitLink(t, "a", "b")
	one, other := startApp(t, a, alice, "--quiet"), startApp(t, b, bob, "--quiet")
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)
	work := startOperators(t, []*process.Replica{first, second})
	talk := startExchange(t, one, other)

	fourth := c.join(t, "cp-4", second)
	fifth := c.join(t, "cp-5", first)
	waitTolerance(t, first, 2)
	onFourth, onFifth := c.startOn(t, l, "c", fourth, second), c.startOn(t, l, "d", fifth, first)
	l.WaitLink(t, "a", "c")
	l.WaitLink(t, "a", "d")
	startApp(t, onFourth, carol)
	startApp(t, onFifth, dave)
	l.wantReached(t, onFourth, carol, "a")
	l.wantReached(t, onFifth, dave, "a")
	before := l.linkEnds(t)

	second.MustOperate(t, "cluster", "remove", "cp-5")
	if code := fifth.Wait(t, removalTime); code != exitRemoved {
		t.Errorf("the removed replica ended with exit code %d, want %d", code, exitRemoved)
	}
	waitTolerance(t, first, 1)
	fourth.Kill(t)
	first.MustOperate(t, "cluster", "remove", "cp-4")
	sixth := c.join(t, "cp-6", second)
	waitTolerance(t, sixth, 1)
	if status := sixth.Status(t); len(status.GetReplicas()) != clusterSize+1 || roleOf(status, "cp-4") != slimcppb.ReplicaRole_REPLICA_ROLE_UNSPECIFIED {
		t.Errorf("the replicas are %v", status.GetReplicas())
	}

	l = c.ask(t, sixth)
	l.WaitConnected(t, onFourth.fullID(), onFifth.fullID())
	l.WaitLink(t, "a", "c")
	l.WaitLink(t, "a", "d")
	l.wantReached(t, onFourth, carol, "a")
	l.wantReached(t, onFifth, dave, "a")
	t.Logf("nodes of replicas that went: over %v and %v", onFourth.balancer.connections(), onFifth.balancer.connections())
	if after := l.linkEnds(t); !maps.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}
	heard := talk.stop(t)
	t.Logf("nodes on replicas that stayed: %v", heard)
	if err := heard.complete(); err != nil {
		t.Error(err)
	}
	work.finish(t, l)
}

// join runs a further replica and makes it a member.
func (c *cluster) join(t *testing.T, name string, through *process.Replica) *process.Replica {
	t.Helper()
	r := process.StartMember(t, binaries, c.member(t, name))
	r.MustOperate(t, "cluster", "join", through.Cluster)
	c.replicas = append(c.replicas, r)
	return r
}
