package operator

import (
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// filtered is a control plane that has no links and no routes.
type filtered struct{ stub }

func (*filtered) ListLinks(*controlplanepb.LinkListRequest, controlplanepb.ControlPlaneService_ListLinksServer) error {
	return nil
}

func (*filtered) ListRoutes(*controlplanepb.RouteListRequest, controlplanepb.ControlPlaneService_ListRoutesServer) error {
	return nil
}

// A list that is empty for a misspelled name is no good news.
func TestFiltersOfUnknownNodes(t *testing.T) {
	isolate(t)
	address := serve(t, &filtered{})
	for _, c := range []struct {
		line    string
		unknown string // empty: all are known
	}{
		{"link list --origin nobody", "nobody"},
		{"link list -t nobody", "nobody"},
		{"link list --origin beta/b -t nobody", "nobody"},
		{"link list --origin nobody --all -o json", "nobody"},
		{"route list --origin nobody", "nobody"},
		{"route list -t nobody --stale", "nobody"},
		{"link list", ""},
		{"link list --origin beta/b", ""},
		{"link list --origin alpha -t beta", ""}, // groups, for pairs without a link
		{"route list --origin * -t beta/b", ""},
		{"route list", ""},
	} {
		got := run(t, Options{}, append(strings.Fields(c.line), "--server", address)...)
		if c.unknown == "" {
			if got.code != ExitDone || got.stderr != "" {
				t.Errorf("%s: exit code %d, stderr %q", c.line, got.code, got.stderr)
			}
			continue
		}
		if got.code != ExitFailed || got.stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q", c.line, got.code, got.stdout)
		}
		checkErrorLine(t, got.stderr, "node "+c.unknown+" is not known")
	}
	// Scripts that use upstream's tool know an empty list.
	got := run(t, Options{Dialect: Slimctl}, "c", "link", "list", "-o", "nobody", "--server", address)
	if got.code != ExitDone || got.stdout != "Links: 0 (applied only)\n\n" || !strings.HasPrefix(got.stderr, "Warning: list links: node nobody is not known") {
		t.Errorf("slimctl: exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

// To remove what is not there is no error, and to misspell it should not look like
// success.
func TestRemovingAnUnknownGroupWarns(t *testing.T) {
	isolate(t)
	address := serve(t, &stub{})
	got := run(t, Options{}, "group", "remove", "Alpha", "--server", address)
	if got.code != ExitDone || got.stderr != "Warning: group 'Alpha' was not there\n" {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	got = run(t, Options{Dialect: Slimctl}, "c", "domain", "remove", "alpha", "--server", address)
	if got.code != ExitDone || got.stderr != "" {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
}

// What does not work is no success for a script.
func TestExplainExitCodes(t *testing.T) {
	isolate(t)
	address := serve(t, &stub{})
	for _, format := range []string{"table", "json"} {
		got := run(t, Options{}, "explain", "route", "org/ns/app", "a", "-o", format, "--server", address)
		if got.code != ExitNotConverged || got.stdout == "" || got.stderr != "Error: Route to org/ns/app from group a does not work\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
		}
		if got := run(t, Options{}, "explain", "link", "a", "b", "-o", format, "--server", address); got.code != ExitDone || got.stderr != "" {
			t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
		}
	}
}
