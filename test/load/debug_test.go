package load_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestDebugScale(t *testing.T) {
	g, _ := strconv.Atoi(os.Getenv("LG"))
	n, _ := strconv.Atoi(os.Getenv("LN"))
	k, _ := strconv.Atoi(os.Getenv("LK"))
	secs, _ := strconv.Atoi(os.Getenv("LS"))
	if g == 0 {
		t.Skip()
	}
	size := fleetSize{g, n, k}
	r := startReplica(t, &slimcppb.Topology{Segments: []*slimcppb.Segment{{
		Name:  fsm.DefaultSegment,
		Links: []*slimcppb.Adjacency{{Group: hub, Neighbors: []string{fsm.Wildcard}}},
	}}})
	defer r.stop(t)
	fleet, err := dataplane.NewFleet(dataplane.FleetOptions{
		Groups: size.groups, NodesPerGroup: size.nodesPerGroup, Names: size.names,
		Node: dataplane.NodeOptions{Servers: []string{r.address}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Close()
	begin := time.Now()
	fleet.Start()
	for i := 0; i < secs*2; i++ {
		<-time.After(500 * time.Millisecond)
		reg := 0
		for _, n := range fleet.Nodes() {
			if n.Phase() == dataplane.Registered {
				reg++
			}
		}
		v := r.View()
		states := map[string]int{}
		for l := range v.Links() {
			states[l.Status.String()]++
		}
		silent, conn, names := 0, 0, 0
		for nd := range v.Nodes() {
			if nd.Silent {
				silent++
			}
			if nd.Connected() {
				conn++
			}
		}
		for range v.Names() {
			names++
		}
		err := routesApplied(v, size.routes())
		fmt.Fprintf(os.Stderr, "%6.2fs reg=%d conn=%d silent=%d names=%d links=%v idx=%d: %v stats=%+v\n", time.Since(begin).Seconds(), reg, conn, silent, names, states, v.Index(), err, r.nodes.Stats())
		if err == nil {
			break
		}
	}
	fmt.Fprintln(os.Stderr, "matrix", delivered(fleet), time.Since(begin)); dump(r, fleet)
}
