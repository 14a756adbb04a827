//go:build e2e

package e2e_test

import (
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// Both tools print the same lists of a small fleet; slimctl knows them under
// "controller" and its aliases.
func TestOperatorLists(t *testing.T) {
	r := process.StartReplica(t, binaries, settings(t))
	f := startFleet(t, r, 2, 1, 1)
	f.wantDelivery(t)
	o := observer.Dial(t, r.Northbound)
	nodes, err := o.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	links, err := o.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 2 || len(links) != 1 {
		t.Fatalf("%d nodes and %d links, want 2 and 1", len(nodes), len(links))
	}
	node, link := nodes[0].GetId(), links[0].GetLinkId()
	groups := []string{observer.Group(nodes[0].GetId()), observer.Group(nodes[1].GetId())}

	for _, list := range []struct {
		command string
		want    []string
	}{
		{"node list", []string{"2 node(s) registered", "NODE_ID", nodes[0].GetId(), nodes[1].GetId(), "Connected"}},
		{"link list", []string{"Links: 1 (applied only)", "LINK_ID", link, "APPLIED"}},
		{"link ls -a", []string{"(all statuses)", link}},
		{"route list", []string{"(applied only)", "SOURCE", link, node}},
		{"route list -n " + node, []string{"Routes for node: " + node, "ROUTE", link}},
		{"connection list -n " + node, []string{"Connections for node: " + node, "CONN_ID", link}},
		{"segment list", append([]string{"1 segment(s)", "SEGMENT"}, groups...)},
	} {
		for _, tool := range []struct{ binary, prefix string }{
			{"slim-cp", ""}, {"slimctl", "controller"}, {"slimctl", "c"},
		} {
			args := strings.Fields(tool.prefix + " " + list.command + " --server " + r.Northbound)
			printed := succeed(t, tool.binary, args...)
			for _, want := range list.want {
				if !strings.Contains(printed, want) {
					t.Errorf("%s %s: no %q in\n%s", tool.binary, strings.Join(args, " "), want, printed)
				}
			}
		}
	}
}

func TestOperatorErrorsAreOneLineAndAFailure(t *testing.T) {
	r := process.StartReplica(t, binaries, "database: {type: in_memory}\n")
	unused := process.Loopback(process.FreePort(t))
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown node": {[]string{"controller", "route", "list", "-n", "a/none", "--server", r.Northbound}, "a/none"},
		"no server":    {[]string{"controller", "node", "list", "--server", unused}, unused},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, "slimctl", c.args...)
			if code != 1 || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, want 1, and %q in: %s", code, c.want, stderr)
			}
		})
	}
}
