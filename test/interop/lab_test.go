//go:build interop

package interop_test

import (
	"crypto/tls"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/slim-cp/slim-cp/test/authority"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	mesh = `links: [{group: "*", neighbors: ["*"]}]`
	star = `links: [{group: platform, neighbors: ["*"]}]`
	// managed is the topology of a file without one: operators make it.
	managed = `links: []`
)

// followers has the scenarios of one replica run with three, with the nodes on
// those that follow, over TLS.
var followers = flag.Bool("followers", false, "run the nodes on the followers of a cluster of three")

// releases are those of the nodes and applications, in turn.
var releases = flag.String("releases", "2", "releases of SLIM that nodes and applications have, in turn: 2, 3 or both (2,3)")

var started atomic.Uint32

// nextRelease returns the release of the next node or application.
func nextRelease() int {
	choice := strings.Split(*releases, ",")
	release, _ := strconv.Atoi(choice[int(started.Add(1))%len(choice)]) // prepare has checked them
	return release
}

// lab is what a scenario looks at, a replica, with whatever nodes it starts.
type lab struct {
	*process.Replica
	*observer.Observer
	southbound []string             // where nodes connect, in turn
	authority  *authority.Authority // nil for plaintext southbound
	nodes      int                  // described so far
}

// startLab is openLab for a test that from then on runs beside others.
func startLab(t *testing.T, topology string, settings ...string) *lab {
	t.Helper()
	t.Parallel()
	return openLab(t, topology, settings...)
}

// openLab runs a replica for a test, or three.
func openLab(t *testing.T, topology string, settings ...string) *lab {
	t.Helper()
	if *followers {
		c := formCluster(t, topology, settings...)
		_, others := c.leader(t)
		l := c.ask(t, others[0])
		l.southbound = []string{others[0].Southbound, others[1].Southbound}
		return l
	}
	replica := process.StartReplica(t, binaries, loneConfig(t, topology, settings...))
	return &lab{Replica: replica, Observer: observer.Dial(t, replica.Northbound), southbound: []string{replica.Southbound}}
}

func loneConfig(t *testing.T, topology string, settings ...string) string {
	t.Helper()
	return fmt.Sprintf("database: {type: raft, path: %q}\n%s", t.TempDir(), replicaConfig(topology, settings...))
}

// replicaConfig has no periodic sweep, on which convergence must not lean, and
// graces short enough to wait for. The topology is indented by two, further
// settings are not.
func replicaConfig(topology string, settings ...string) string {
	return fmt.Sprintf(`reconciler: {reconcile_period: 0s}
sessions: {failover_grace: 1s, departure_grace: 2s, replica_grace: 2s, tombstone_retention: 2s}
topology:
  %s
%s
`, topology, strings.Join(settings, "\n"))
}

// spec describes a node that registers with the lab's replica, or with one of them.
func (l *lab) spec(t *testing.T, group, id string) nodeSpec {
	t.Helper()
	spec := nodeSpec{
		group: group, id: id, port: process.FreePort(t), controlPlane: l.southbound[l.nodes%len(l.southbound)],
		release: nextRelease(),
	}
	if l.authority != nil {
		spec.ca = l.authority.CA()
	}
	l.nodes++
	return spec
}

// trust returns the settings of a southbound client, nil for plaintext.
func (l *lab) trust() *tls.Config {
	if l.authority == nil {
		return nil
	}
	return l.authority.Trust()
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
	of func(t *testing.T, l *lab, n *node, apps ...*app)
}

// eachDeparture runs a scenario with a killed node and with one that said
// farewell. Nodes do not say it by themselves: for them it comes from a relay on
// their stream, or from a simulated node that takes their place.
func eachDeparture(t *testing.T, scenario func(t *testing.T, leave departure)) {
	t.Helper()
	plain := func(_ *testing.T, _ *lab, spec nodeSpec) nodeSpec { return spec }
	t.Run("killed", func(t *testing.T) {
		scenario(t, departure{spec: plain, of: func(t *testing.T, _ *lab, n *node, _ ...*app) { n.Kill(t) }})
	})
	t.Run("deregistered", func(t *testing.T) {
		scenario(t, departure{spec: behindRelay, of: func(t *testing.T, _ *lab, n *node, _ ...*app) {
			n.relay.deregister(t, n.nodeSpec)
			n.Kill(t)
		}})
	})
	t.Run("deregistered by a stand-in", func(t *testing.T) {
		scenario(t, departure{spec: plain, of: func(t *testing.T, l *lab, n *node, apps ...*app) {
			n.Kill(t)
			standIn(t, l, n.nodeSpec, apps)
		}})
	})
}

// behindRelay puts a relay between a node and the replica, in place of the one
// that the spec has already.
func behindRelay(t *testing.T, l *lab, spec nodeSpec) nodeSpec {
	t.Helper()
	target := spec.controlPlane
	if spec.relay != nil {
		target = spec.relay.target
	}
	spec.relay = startRelay(t, target, l.trust())
	spec.controlPlane, spec.ca = spec.relay.endpoint, ""
	return spec
}

// converse sends a message each way between two applications and checks that
// each arrived once.
func converse(t *testing.T, one, other *app, text string) {
	t.Helper()
	one.send(t, other.name, text)
	other.send(t, one.name, text)
	for _, a := range []*app{one, other} {
		a.wantOnce(t, text)
	}
}
