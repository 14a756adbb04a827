//go:build e2e

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/test/attack"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

var attackTime = flag.Duration("attack.time", 3*time.Second, "how long each attack lasts")

const (
	attackFiles   = 256 // descriptors of each replica
	attackMemory  = 300 // MiB more than an idle replica has
	announceLimit = 5 * time.Second
)

// Whatever strangers do to one replica's port, nodes on it and on others are served,
// operators are answered, and its memory stays bounded.
func TestAttacksDisturbNobody(t *testing.T) {
	members := make([]process.Member, 3)
	for i := range members {
		members[i] = process.Member{Name: fmt.Sprintf("cp-%d", i+1), Files: attackFiles, YAML: mesh}
	}
	replicas := process.Form(t, binaries, members...)
	attacked, network := replicas[1], dataplane.NewNetwork(dataplane.NetworkOptions{})
	var nodes []*dataplane.Node
	for i, r := range replicas {
		nodes = append(nodes, startNode(t, network, fmt.Sprintf("g-%d", i), r.Southbound))
	}
	counter := uint64(0)
	latency := func() (slowest time.Duration) { // of an announcement, from each node to the next
		for i, from := range nodes {
			counter++
			name := dataplane.NewName("org", "attack", "app", 1, counter)
			began := time.Now()
			from.Announce(name)
			observer.Eventually(t, "a route of "+nodes[(i+1)%len(nodes)].ID(), func(context.Context) error {
				for _, entry := range nodes[(i+1)%len(nodes)].Table() {
					if entry.Name.GetName().GetNameId().GetId_1() == counter {
						return nil
					}
				}
				return fmt.Errorf("name %d is not there", counter)
			})
			slowest = max(slowest, time.Since(began))
		}
		return slowest
	}
	latency()
	usual, idle := latency(), residentMiB(t, attacked)
	for _, a := range attack.All() {
		t.Run(a.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), *attackTime)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx, attacked.Southbound) }()
			slowest, most := time.Duration(0), 0
			for ctx.Err() == nil {
				slowest, most = max(slowest, latency()), max(most, residentMiB(t, attacked))
				attacked.MustOperate(t, "cluster", "status")
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			t.Logf("announcement %.1f times as slow as without, memory idle + %d MiB", float64(slowest)/float64(usual), most-idle)
			if slowest > announceLimit || most > idle+attackMemory {
				t.Errorf("an announcement took %s, memory grew from %d to %d MiB", slowest, idle, most)
			}
		})
	}
	attacked.WaitFor(t, "a line about the pause", commandTime, func(line process.Line) bool {
		return strings.Contains(line.Text, "paused") && strings.Contains(line.Text, "connections")
	})
	for _, node := range nodes {
		if node.GaveUp() != nil {
			t.Errorf("%s gave up: %v", node.ID(), node.GaveUp())
		}
	}
}

// startNode runs a node with one control plane.
func startNode(t *testing.T, network *dataplane.Network, group, southbound string) *dataplane.Node {
	t.Helper()
	node, err := network.NewNode(dataplane.NodeOptions{
		ID: "node", Group: group, Endpoint: group + ".internal:46357", ExternalEndpoint: group + ".example:46357",
		Servers: []dataplane.Server{{southbound}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Kill)
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	if err := node.WaitRegistered(ctx); err != nil {
		t.Fatal(err)
	}
	return node
}

// residentMiB returns the memory of a replica.
func residentMiB(t *testing.T, r *process.Replica) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}
