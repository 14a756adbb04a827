//go:build e2e

package e2e_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// settings are those of a lone durable replica of a full mesh, without a sweep
// on which convergence could lean.
func settings(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`database: {type: raft, path: %q}
reconciler: {reconcile_period: 0s}
sessions: {failover_grace: 1s, departure_grace: 2s, tombstone_retention: 2s}
topology:
  links: [{group: "*", neighbors: ["*"]}]
`, t.TempDir())
}

func TestReplicaStartsAndStops(t *testing.T) {
	for name, yaml := range map[string]string{
		"in memory": "database: {type: in_memory}\n",
		"on disk":   settings(t),
	} {
		t.Run(name, func(t *testing.T) {
			r := process.StartReplica(t, binaries, yaml)
			r.Stop(t)
			r.Start(t) // on the same ports
			r.Stop(t)
		})
	}
}

func TestConfigFlagAloneServes(t *testing.T) {
	file := writeConfig(t, listeners(t))
	p := process.Start(t, process.Spec{Name: "slim-cp", Path: binaries.Path("slim-cp"), Args: []string{"-c", file}})
	p.WaitStdout(t, process.StartedLine, commandTime)
	if code := p.Terminate(t, process.ReplicaStop); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestBareCommandPrintsHelp(t *testing.T) {
	if help := succeed(t, "slim-cp"); !strings.Contains(help, "serve") {
		t.Errorf("no word of \"serve\" in the help:\n%s", help)
	}
}

// A restart with all nodes alive changes no link and loses no route.
func TestRestartKeepsLinksAndRoutes(t *testing.T) {
	r := process.StartReplica(t, binaries, settings(t))
	o := observer.Dial(t, r.Northbound)
	f := startFleet(t, r, 4, 2, 5)
	f.wantDelivery(t)
	before := linkIDs(t, o)
	if len(before) != 6 {
		t.Fatalf("a mesh of 4 groups has %d links, want 6: %v", len(before), before)
	}
	r.Stop(t)
	r.Start(t)
	f.wantDelivery(t)
	if after := linkIDs(t, o); !slices.Equal(before, after) {
		t.Errorf("the links were %v, and are %v after the restart", before, after)
	}
}

// What a replica has acknowledged survives SIGKILL. The fleet is killed too, so
// that nothing but the disk can tell of it.
func TestKillKeepsLinks(t *testing.T) {
	r := process.StartReplica(t, binaries, settings(t))
	o := observer.Dial(t, r.Northbound)
	f := startFleet(t, r, 3, 1, 2)
	f.wantDelivery(t)
	before := linkIDs(t, o)
	r.Kill(t)
	f.Kill(t)
	r.Start(t)
	if after := linkIDs(t, o); !slices.Equal(before, after) {
		t.Errorf("the links were %v, and are %v after the kill", before, after)
	}
}

func TestSiblingTakesOverFromAKilledGateway(t *testing.T) {
	r := process.StartReplica(t, binaries, settings(t))
	o := observer.Dial(t, r.Northbound)
	f := startFleet(t, r, 3, 2, 3)
	f.wantDelivery(t)
	links, err := o.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	gateway := links[0].GetSourceNodeId()
	for _, link := range links {
		if link.GetSourceNodeId() == gateway {
			taken[link.GetLinkId()] = true
		}
	}
	f.control(t, "kill", gateway)
	o.WaitDisconnected(t, gateway)
	f.wantDelivery(t)
	after := linkIDs(t, o)
	for _, id := range slices.Sorted(maps.Keys(taken)) {
		if !slices.Contains(after, id) {
			t.Errorf("the sibling did not take link %s over; there are %v", id, after)
		}
	}
}

func linkIDs(t *testing.T, o *observer.Observer) []string {
	t.Helper()
	links, err := o.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, link := range links {
		ids = append(ids, link.GetLinkId())
	}
	slices.Sort(ids)
	return ids
}

// listeners returns the configuration of plaintext listeners on free ports.
func listeners(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("northbound: {endpoint: %q, tls: {insecure: true}}\nsouthbound: {endpoint: %q, tls: {insecure: true}}\n",
		process.Loopback(process.FreePort(t)), process.Loopback(process.FreePort(t)))
}

func writeConfig(t *testing.T, yaml string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "slim-cp.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
