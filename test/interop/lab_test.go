//go:build interop

package interop_test

import (
	"fmt"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	mesh = `links: [{group: "*", neighbors: ["*"]}]`
	star = `links: [{group: platform, neighbors: ["*"]}]`
)

// lab is one replica under test, with whatever nodes a scenario starts.
type lab struct {
	*process.Replica
	*observer.Observer
}

// startLab runs a replica without a periodic sweep, on which convergence must
// not lean, and with graces short enough to wait for.
func startLab(t *testing.T, topology string) *lab {
	t.Helper()
	replica := process.StartReplica(t, binaries, fmt.Sprintf(`database: {type: raft, path: %q}
reconciler: {reconcile_period: 0s}
sessions: {failover_grace: 1s, departure_grace: 2s, tombstone_retention: 2s}
topology:
  %s
`, t.TempDir(), topology))
	return &lab{Replica: replica, Observer: observer.Dial(t, replica.Northbound)}
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
