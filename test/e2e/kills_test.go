//go:build e2e

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

var (
	kills      = flag.Int("kills", 4, "how often replicas are killed under a fleet")
	killGroups = flag.Int("kills.groups", 4, "groups of that fleet")
	killNodes  = flag.Int("kills.nodes", 2, "nodes of each group")
	killNames  = flag.Int("kills.names", 5, "names of each group")
)

const (
	// recovery is the longest that it may take after a kill until every name is
	// reached from every group, those included that were announced meanwhile.
	recovery = time.Minute
	// settleTime bounds each wait; a large fleet takes a while at first.
	settleTime = 10 * time.Minute
	// watchPeriod is how often the links and the list of nodes are looked at.
	watchPeriod = 250 * time.Millisecond
)

// Whichever replicas are killed or stand still while names are announced, every link
// keeps its id, and every name is reached again.
func TestKilledProcessesChangeNoLinkID(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, mesh)
	f := startKillFleet(t, replicas)
	f.settle(t, "at first")
	links := f.linkIDs(t)
	for kill := range *kills {
		f.announce(t, kill)
		leader, followers := leaderOf(t, replicas)
		began := time.Now()
		what := f.fault(t, kill, leader, followers)
		f.settle(t, what)
		waitTolerance(t, replicas[0], 1)
		changed := difference(links, f.linkIDs(t))
		t.Logf("%3d %-24s complete after %.1f s, link ids changed %d", kill, what, time.Since(began).Seconds(), len(changed))
		if len(changed) > 0 {
			t.Fatalf("links with another id: %v", changed)
		}
	}
}

// The leader dies again and again while another replica has all streams: no node is
// taken for silent or departs, no link is cut, and all names are reached in time.
func TestKilledLeaderLosesNoNode(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, star)
	home := replicas[2] // of the streams
	f := startKillFleet(t, []*process.Replica{home})
	f.settle(t, "at first")
	waitTolerance(t, home, 1)
	links := f.linkIDs(t)
	for kill := range *kills {
		leader, survivors := leaderOf(t, replicas)
		if leader == home {
			home.MustOperate(t, "cluster", "transfer-leader", replicas[kill%2].Member.Name)
			leader, survivors = leaderOf(t, replicas)
		}
		watch := f.watch(t, survivors)
		leader.Kill(t)
		began := time.Now()
		f.announce(t, kill)
		f.settle(t, "after the leader's end")
		took := time.Since(began)
		seen := watch()
		leader.Start(t)
		waitTolerance(t, home, 1)
		changed := difference(links, f.linkIDs(t))
		t.Logf("%3d complete after %.1f s: %d silent, %d departed, %d links cut, %d link ids changed",
			kill, took.Seconds(), seen.silent, len(seen.departed), len(seen.cut), len(changed))
		if seen.silent+len(seen.departed)+len(seen.cut)+len(changed) > 0 || took > recovery {
			t.Errorf("kill %d: want none of these within %s", kill, recovery)
		}
	}
}

// killFleet is a fleet of this process under replicas that are killed.
type killFleet struct {
	*dataplane.Fleet
	operator *observer.Observer // at the first of the replicas
}

// startKillFleet runs a fleet whose nodes are at the first of the replicas that
// answers.
func startKillFleet(t *testing.T, replicas []*process.Replica) *killFleet {
	t.Helper()
	f := &killFleet{operator: observer.Dial(t, replicas[0].Northbound)}
	var server dataplane.Server
	for _, r := range replicas {
		server = append(server, r.Southbound)
	}
	var err error
	f.Fleet, err = dataplane.NewFleet(dataplane.FleetOptions{
		Groups: *killGroups, NodesPerGroup: *killNodes, Names: *killNames,
		Node: dataplane.NodeOptions{Servers: []dataplane.Server{server}, ReconnectForever: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	if err := f.WaitRegistered(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// settle waits until every name is reached from every group.
func (f *killFleet) settle(t *testing.T, when string) {
	t.Helper()
	deadline := time.Now().Add(settleTime)
	for {
		defects := f.Network.MatrixFrom(dataplane.OneNode).Complete(dataplane.Everything)
		if len(defects) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d defects, the first: %v", when, len(defects), defects[0])
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
			return
		}
	}
}

// announce has the first node of each group announce a name that no earlier kill had.
// The names of the kill before go.
func (f *killFleet) announce(t *testing.T, kill int) {
	t.Helper()
	for _, node := range f.Nodes() {
		if !strings.HasSuffix(node.ID(), "/node-1") {
			continue
		}
		node.Announce(dataplane.InstanceName("org", node.Group(), fmt.Sprintf("kill-%d", kill)))
		if kill > 0 {
			node.Withdraw(dataplane.InstanceName("org", node.Group(), fmt.Sprintf("kill-%d", kill-1)))
		}
	}
}

// fault lets one of four things happen to the replicas, which run again afterwards.
func (f *killFleet) fault(t *testing.T, kill int, leader *process.Replica, followers []*process.Replica) (what string) {
	t.Helper()
	var victims []*process.Replica
	switch kill % 4 {
	case 0:
		what, victims = "leader killed", []*process.Replica{leader}
	case 1:
		what, victims = "follower killed", followers[:1]
	case 2:
		what, victims = "both followers killed", followers
	case 3:
		leader.Signal(t, syscall.SIGSTOP)
		waitOtherLeader(t, followers)
		leader.Signal(t, syscall.SIGCONT)
		return "leader stood still"
	}
	for _, victim := range victims {
		victim.Kill(t)
	}
	for _, victim := range victims {
		victim.Start(t)
	}
	return what
}

// linkIDs returns the ends of all links by their ids.
func (f *killFleet) linkIDs(t *testing.T) map[string]string {
	t.Helper()
	ids := map[string]string{}
	observer.Eventually(t, "the links", func(ctx context.Context) error {
		clear(ids)
		links, err := f.operator.Links(ctx)
		for _, link := range links {
			ids[link.GetLinkId()] = link.GetSourceNodeId() + " > " + link.GetDestNodeId()
		}
		return err
	})
	return ids
}

// difference returns the links of before that have no entry in after.
func difference(before, after map[string]string) (gone []string) {
	for id, ends := range before {
		if _, ok := after[id]; !ok {
			gone = append(gone, ends+" "+id)
		}
	}
	slices.Sort(gone)
	return gone
}

// sight is what was seen of a fleet for a while.
type sight struct {
	silent   int             // times that a replica took a node for silent
	departed map[string]bool // nodes that were not listed as connected
	cut      map[string]bool // links that an end did not hold
}

// watch looks at the fleet, and at what the replicas say of it, until the returned
// function is called.
func (f *killFleet) watch(t *testing.T, replicas []*process.Replica) (end func() sight) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen := sight{departed: map[string]bool{}, cut: map[string]bool{}}
	links, before := f.heldLinks(), silences(replicas)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(watchPeriod)
		defer ticker.Stop()
		for {
			now := f.heldLinks()
			for link := range links {
				if !now[link] {
					seen.cut[link] = true
				}
			}
			f.noteDeparted(ctx, seen.departed)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() sight {
		cancel()
		<-done
		seen.silent = silences(replicas) - before
		return seen
	}
}

// heldLinks returns the links that the nodes hold, for each end.
func (f *killFleet) heldLinks() map[string]bool {
	held := map[string]bool{}
	for _, node := range f.Nodes() {
		for _, connection := range node.Connections() {
			if connection.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
				held[node.ID()+" "+connection.LinkID] = true
			}
		}
	}
	return held
}

// noteDeparted notes the nodes of the fleet that a replica does not list as connected.
func (f *killFleet) noteDeparted(ctx context.Context, departed map[string]bool) {
	nodes, err := f.operator.Nodes(ctx)
	if err != nil {
		return // nobody leads
	}
	connected := map[string]bool{}
	for _, node := range nodes {
		connected[node.GetId()] = node.GetStatus() == controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
	}
	for _, node := range f.Nodes() {
		if !connected[node.ID()] {
			departed[node.ID()] = true
		}
	}
}

// silences counts the lines of replicas about nodes that do not answer.
func silences(replicas []*process.Replica) (count int) {
	for _, r := range replicas {
		for _, line := range r.Lines() {
			if strings.Contains(line.Text, "node does not answer") {
				count++
			}
		}
	}
	return count
}
