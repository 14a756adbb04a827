package load_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// hub is the group that all others are linked with.
const hub = "group-1"

const (
	// pollInterval is the pause between two looks at a fleet that converges.
	pollInterval = 100 * time.Millisecond
	// testPatience and benchmarkPatience bound a run on a busy machine; an idle
	// one needs a small part of it.
	testPatience      = 30 * time.Second
	benchmarkPatience = 10 * time.Minute
)

// fleetSize is what a run registers.
type fleetSize struct {
	groups, nodesPerGroup, names int // names in each group
}

// routes is the number of routes that listings show when a star of this size
// has converged: one template for each name, and one route for each name and
// direction of a link.
func (s fleetSize) routes() int {
	templates := s.groups * s.names
	fromHub := (s.groups - 1) * s.names
	fromOthers := (s.groups - 1) * (s.groups - 1) * s.names
	return templates + fromHub + fromOthers
}

// converge starts a replica and a fleet, and returns how long it takes from the
// start of the first node until every route is applied and every message
// arrives. It stops both.
func converge(tb testing.TB, size fleetSize, within time.Duration) time.Duration {
	tb.Helper()
	r := startReplica(tb, &slimcppb.Topology{Segments: []*slimcppb.Segment{{
		Name:  fsm.DefaultSegment,
		Links: []*slimcppb.Adjacency{{Group: hub, Neighbors: []string{fsm.Wildcard}}},
	}}})
	defer r.stop(tb)
	fleet, err := dataplane.NewFleet(dataplane.FleetOptions{
		Groups: size.groups, NodesPerGroup: size.nodesPerGroup, Names: size.names,
		Node: dataplane.NodeOptions{Servers: []dataplane.Server{{r.address}}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	defer fleet.Close()

	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	begin := time.Now()
	if err := fleet.Start(); err != nil {
		tb.Fatal(err)
	}
	if err := fleet.WaitRegistered(ctx); err != nil {
		tb.Fatal(err)
	}
	tb.Logf("registered after %v", time.Since(begin))
	waitFor(ctx, tb, "every route is applied", func() error { return routesApplied(r.View(), size.routes()) })
	tb.Logf("routes applied after %v", time.Since(begin))
	waitFor(ctx, tb, "every message arrives", func() error { return delivered(fleet) })
	complete := time.Since(begin)
	tb.Logf("delivery checked after %v", complete)
	return complete
}

// routesApplied returns nil if as many routes as wanted are listed, all of them
// applied. Listing a million takes a second of what the replica needs itself, so
// that waits until the nodes have confirmed them.
func routesApplied(view *fsm.View, want int) error {
	if err := confirmed(view); err != nil {
		return err
	}
	count, applied := 0, 0
	for route := range view.Routes(fsm.RouteFilter{}) {
		count++
		if route.Status == fsm.RouteApplied {
			applied++
		}
	}
	if count != want || applied != want {
		return fmt.Errorf("%d routes, %d applied, want %d", count, applied, want)
	}
	return nil
}

// confirmed returns nil if every node has confirmed what it forwards. It stops at
// the first route that is not.
func confirmed(view *fsm.View) error {
	for node := range view.Nodes() {
		for link, record := range view.NodeRoutes(node.ID) {
			if view.RouteRevision(link, node.ID, record) > node.Acked {
				return fmt.Errorf("node %s has not confirmed %s", node.ID, record.Name)
			}
		}
	}
	return nil
}

// delivered returns nil if a message from every node to every name arrives
// exactly once. One node of each group goes first: that is quick, and shows most
// defects.
func delivered(fleet *dataplane.Fleet) error {
	for _, senders := range []dataplane.Senders{dataplane.OneNode, dataplane.EveryNode} {
		if defects := fleet.Network.MatrixFrom(senders).Complete(dataplane.Everything); len(defects) > 0 {
			return fmt.Errorf("%d defects, such as %v", len(defects), defects[0])
		}
	}
	return nil
}

// waitFor looks until the condition holds, and fails the test with its last
// error when the context ends first.
func waitFor(ctx context.Context, tb testing.TB, what string, condition func() error) {
	tb.Helper()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not in time: %v", what, err)
		}
	}
}

// The generator itself works, with two names on some nodes and none on others.
func TestConvergeSmallFleet(t *testing.T) {
	converge(t, fleetSize{groups: 5, nodesPerGroup: 4, names: 6}, testPatience)
}

// BenchmarkConverge2000Nodes starts the fleet of a large operator at once: 100
// groups in a star, with 20 nodes and 100 names each. The memory is that of the
// replica and the nodes together.
func BenchmarkConverge2000Nodes(b *testing.B) {
	size := fleetSize{groups: 100, nodesPerGroup: 20, names: 100}
	var total time.Duration
	for b.Loop() {
		total += converge(b, size, benchmarkPatience)
	}
	b.ReportMetric(total.Seconds()/float64(b.N), "s-to-converge")
	b.ReportMetric(float64(size.routes()), "routes")
	if peak, ok := peakMemory(); ok {
		b.ReportMetric(float64(peak)/1e6, "peak-RSS-MB")
	}
}
