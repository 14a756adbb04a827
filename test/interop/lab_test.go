//go:build interop

package interop_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	mesh = `links: [{group: "*", neighbors: ["*"]}]`
	star = `links: [{group: platform, neighbors: ["*"]}]`
	// managed is the topology of a file without one: operators make it.
	managed = `links: []`
)

// lab is one replica under test, with whatever nodes a scenario starts.
type lab struct {
	*process.Replica
	*observer.Observer
}

// startLab runs a replica for a test, which from then on runs beside others.
func startLab(t *testing.T, topology string, settings ...string) *lab {
	t.Helper()
	t.Parallel()
	replica := process.StartReplica(t, binaries, replicaConfig(t, topology, settings...))
	return &lab{Replica: replica, Observer: observer.Dial(t, replica.Northbound)}
}

// replicaConfig has no periodic sweep, on which convergence must not lean, and
// graces short enough to wait for. The topology is indented by two, further
// settings are not.
func replicaConfig(t *testing.T, topology string, settings ...string) string {
	t.Helper()
	return fmt.Sprintf(`database: {type: raft, path: %q}
reconciler: {reconcile_period: 0s}
sessions: {failover_grace: 1s, departure_grace: 2s, tombstone_retention: 2s}
topology:
  %s
%s
`, t.TempDir(), topology, strings.Join(settings, "\n"))
}

// spec describes a node that registers with the lab's replica.
func (l *lab) spec(t *testing.T, group, id string) nodeSpec {
	t.Helper()
	return nodeSpec{group: group, id: id, port: process.FreePort(t), controlPlane: l.Southbound}
}

// start runs nodes, all at once, and returns when they are connected.
func (l *lab) start(t *testing.T, specs ...nodeSpec) []*node {
	t.Helper()
	nodes := make([]*node, len(specs))
	ids := make([]string, len(specs))
	for i, spec := range specs {
		nodes[i], ids[i] = launchNode(t, spec), spec.fullID()
	}
	for _, n := range nodes {
		n.waitReady(t)
	}
	l.WaitConnected(t, ids...)
	return nodes
}

// startGroup runs one node per group, named after its group.
func (l *lab) startGroup(t *testing.T, groups ...string) []*node {
	t.Helper()
	specs := make([]nodeSpec, len(groups))
	for i, group := range groups {
		specs[i] = l.spec(t, group, "node-"+group)
	}
	return l.start(t, specs...)
}

// siblings describes two nodes of one group that peer with each other.
func (l *lab) siblings(t *testing.T, group string) (first, second nodeSpec) {
	t.Helper()
	first, second = l.spec(t, group, group+"-1"), l.spec(t, group, group+"-2")
	first.peers, second.peers = []nodeSpec{second}, []nodeSpec{first}
	return first, second
}

// departure is a way in which a node leaves for good.
type departure struct {
	// spec makes a node able to leave in this way.
	spec func(t *testing.T, l *lab, spec nodeSpec) nodeSpec
	// of ends a node made by spec. The names that it takes along are those of the
	// applications given, which are on it.
	of func(t *testing.T, n *node, apps ...*app)
}

// eachDeparture runs a scenario with a killed node and with one that said
// farewell. Nodes do not say it by themselves: for them it comes from a relay on
// their stream, or from a simulated node that takes their place.
func eachDeparture(t *testing.T, scenario func(t *testing.T, leave departure)) {
	t.Helper()
	plain := func(_ *testing.T, _ *lab, spec nodeSpec) nodeSpec { return spec }
	t.Run("killed", func(t *testing.T) {
		scenario(t, departure{spec: plain, of: func(t *testing.T, n *node, _ ...*app) { n.Kill(t) }})
	})
	t.Run("deregistered", func(t *testing.T) {
		scenario(t, departure{spec: behindRelay, of: func(t *testing.T, n *node, _ ...*app) {
			n.relay.deregister(t, n.nodeSpec)
			n.Kill(t)
		}})
	})
	t.Run("deregistered by a stand-in", func(t *testing.T) {
		scenario(t, departure{spec: plain, of: func(t *testing.T, n *node, apps ...*app) {
			n.Kill(t)
			standIn(t, n.nodeSpec, apps)
		}})
	})
}

// behindRelay puts a relay between a node and the replica.
func behindRelay(t *testing.T, l *lab, spec nodeSpec) nodeSpec {
	t.Helper()
	spec.relay = startRelay(t, l.Southbound)
	spec.controlPlane = spec.relay.endpoint
	return spec
}

// converse sends a message each way between two applications and checks that
// each arrived once.
func converse(t *testing.T, one, other *app, text string) {
	t.Helper()
	one.send(t, other.name, text)
	other.send(t, one.name, text)
	for _, a := range []*app{one, other} {
		if got := a.received(text); got != 1 {
			t.Errorf("%s received %q %d times, want once", a.name, text, got)
		}
	}
}
