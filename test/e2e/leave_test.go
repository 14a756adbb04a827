//go:build e2e

package e2e_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// A replica that goes for good has its nodes connect elsewhere and costs no link,
// though their siblings elsewhere could take their links over long before: leaving is
// as gentle as stopping.
func TestAReplicaThatGoesForGoodCostsNoLink(t *testing.T) {
	const exitRemoved = 10
	for name, goes := range map[string]func(t *testing.T, leader, going *process.Replica){
		"leave": func(t *testing.T, _, going *process.Replica) {
			going.MustOperate(t, "cluster", "leave")
		},
		"remove": func(t *testing.T, leader, going *process.Replica) {
			leader.MustOperate(t, "cluster", "remove", going.Member.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			replicas := process.FormCluster(t, binaries, 3, mesh+"sessions: {shutdown_delay: 3s, failover_grace: 200ms}\n")
			waitTolerance(t, replicas[0], 1)
			leader, others := leaderOf(t, replicas)
			staying, going := others[0], others[1]
			o := observer.Dial(t, leader.Northbound)
			f := splitFleet(t, o, staying, going)
			before := linkEnds(t, o)

			goes(t, leader, going)
			if code := going.Wait(t, clusterTime); code != exitRemoved {
				t.Errorf("exit code %d: %s", code, lastLine(going.Process))
			}
			o.WaitConnected(t, f.nodes...)
			f.wantDelivery(t)
			if after := linkEnds(t, o); !maps.Equal(before, after) {
				t.Errorf("the links were\n%v\nand are\n%v", before, after)
			}
		})
	}
}

// split is a fleet on two replicas.
type split struct {
	*fleet
	nodes []string
}

// splitFleet runs three groups of two nodes on the replica that goes, and then has a
// node of one of them on the one that stays, without a link: its sibling has them
// all. It returns when nodes without a session are given up again (protocol D3).
func splitFleet(t *testing.T, o *observer.Observer, staying, going *process.Replica) split {
	t.Helper()
	staying.Stop(t) // nodes try it first
	f := split{fleet: &fleet{socket: filepath.Join(t.TempDir(), "fleet.sock")}}
	f.Process = process.Start(t, process.Spec{Name: "fleet", Path: binaries.Path("slim-node"), Args: []string{
		"fleet", "--server", staying.Southbound + "," + going.Southbound, "--control", f.socket, "--nodes-per-group", "2",
	}})
	f.WaitStdout(t, "fleet started", commandTime)
	staying.Start(t)
	waitTolerance(t, staying, 1)
	f.wantDelivery(t)
	for group := 1; group <= 3; group++ {
		f.nodes = append(f.nodes, fmt.Sprintf("group-%d/node-1", group), fmt.Sprintf("group-%d/node-2", group))
	}
	moving := ""
	for _, ends := range linkEnds(t, o) {
		moving = ends[0]
	}
	f.control(t, "kill", moving)
	eventually(t, moving+" to be given up", func() bool {
		for _, ends := range linkEnds(t, o) {
			if ends[0] == moving || ends[1] == moving {
				return false
			}
		}
		return true
	})
	f.control(t, "start", moving)
	o.WaitConnected(t, f.nodes...)
	f.wantDelivery(t)
	eventually(t, "sessions on both replicas", func() bool {
		sessions := map[string]uint32{}
		for _, replica := range staying.Status(t).GetReplicas() {
			sessions[replica.GetName()] = uint32(replica.GetSessions())
		}
		return sessions[staying.Member.Name] == 1 && sessions[going.Member.Name] == uint32(len(f.nodes)-1)
	})
	return f
}

// linkEnds are the nodes at both ends of each link, by its id.
func linkEnds(t *testing.T, o *observer.Observer) map[string][2]string {
	t.Helper()
	links, err := o.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string][2]string{}
	for _, link := range links {
		ends[link.GetLinkId()] = [2]string{link.GetSourceNodeId(), link.GetDestNodeId()}
	}
	return ends
}
