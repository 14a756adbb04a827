//go:build interop

package interop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

func TestScenario20TwoListenersOfEachKindShowTheSame(t *testing.T) {
	t.Parallel()
	l, further := startLabOnTwo(t)
	other := observer.Dial(t, further)
	a, b := l.spec(t, "a", "node-a"), l.spec(t, "b", "node-b")
	nodes := l.start(t, a, b)
	l.WaitLink(t, "a", "b")
	one, two := startApp(t, nodes[0], alice), startApp(t, nodes[1], bob)
	l.wantRouted(t, nodes[0], nodes[1], bob)
	l.wantRouted(t, nodes[1], nodes[0], alice)
	converse(t, one, two, "hello")
	if first, second := lists(t, l.Observer), lists(t, other); !slices.Equal(first, second) {
		t.Errorf("one northbound listener shows\n%s\nthe other\n%s", strings.Join(first, "\n"), strings.Join(second, "\n"))
	}
}

func TestScenario20SameEndpointTwiceIsRefused(t *testing.T) {
	t.Parallel()
	twice := process.Loopback(process.FreePort(t))
	for name, listeners := range map[string]process.Listeners{
		"northbound": {Northbound: []string{twice, twice}, Southbound: []string{process.Loopback(process.FreePort(t))}},
		"southbound": {Northbound: []string{process.Loopback(process.FreePort(t))}, Southbound: []string{twice, twice}},
		"one each":   {Northbound: []string{twice}, Southbound: []string{twice}},
	} {
		file := filepath.Join(t.TempDir(), "slim-cp.yaml")
		if err := os.WriteFile(file, []byte(listeners.YAML()+loneConfig(t, mesh)), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := process.Run(t, process.Spec{Name: "slim-cp", Path: binaries.Path("slim-cp"), Args: []string{"serve", "-c", file}}, process.ReplicaStop)
		if code == 0 || !strings.Contains(stderr, twice) {
			t.Errorf("%s: exit code %d, and no word of %s in: %s", name, code, twice, stderr)
		}
	}
}

// startLabOnTwo is startLab for a replica with two listeners of each kind. It also
// returns the second northbound one.
func startLabOnTwo(t *testing.T) (l *lab, further string) {
	t.Helper()
	north, south := process.Loopback(process.FreePort(t)), process.Loopback(process.FreePort(t))
	if *followers {
		c := formCluster(t, mesh)
		_, others := c.leader(t)
		member := others[0].Member
		member.Further = process.Listeners{Northbound: []string{north}, Southbound: []string{south}}
		others[0].Stop(t)
		others[0].Configure(t, member)
		others[0].Start(t)
		l = c.ask(t, others[0])
	} else {
		listeners := process.Listeners{
			Northbound: []string{process.Loopback(process.FreePort(t)), north},
			Southbound: []string{process.Loopback(process.FreePort(t)), south},
		}
		replica := process.StartReplicaOn(t, binaries, listeners, loneConfig(t, mesh))
		l = &lab{Replica: replica, Observer: observer.Dial(t, replica.Northbound)}
	}
	l.southbound = []string{l.Southbound, south}
	return l, north
}

// lists returns a line for each node, link and route, sorted.
func lists(t *testing.T, o *observer.Observer) []string {
	t.Helper()
	nodes, err := o.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	links, err := o.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	routes, err := o.Routes(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, node := range nodes {
		lines = append(lines, fmt.Sprintf("%s %v", node.GetId(), node.GetStatus()))
	}
	for _, link := range links {
		lines = append(lines, fmt.Sprintf("%s %s %s %v", link.GetLinkId(), link.GetSourceNodeId(), link.GetDestNodeId(), link.GetStatus()))
	}
	for _, route := range routes {
		lines = append(lines, fmt.Sprintf("%s %s %s %v", route.GetSourceNodeId(), route.GetDestNodeId(), observer.NameOf(route.GetName()), route.GetStatus()))
	}
	slices.Sort(lines)
	return lines
}
