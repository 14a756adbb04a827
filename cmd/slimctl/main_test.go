package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cmd/operator"
)

func run(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Chdir(t.TempDir())
	var output, errors bytes.Buffer
	root := newRoot()
	root.SetOut(&output)
	root.SetErr(&errors)
	root.SetArgs(arguments)
	code = operator.Execute(t.Context(), root)
	return output.String(), errors.String(), code
}

func TestVersion(t *testing.T) {
	stdout, _, code := run(t, "version")
	if code != operator.ExitDone || !strings.HasPrefix(stdout, "slimctl ") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
}

// TestControllerSpellings: the connection flags may stand before and after the
// command, under each of its names. Nothing listens on port 1.
func TestControllerSpellings(t *testing.T) {
	for _, line := range []string{
		"controller node list --server 127.0.0.1:1",
		"--server 127.0.0.1:1 c n ls",
		"ctrl --server 127.0.0.1:1 domain ls",
	} {
		_, stderr, code := run(t, strings.Fields(line)...)
		if code != operator.ExitFailed || !strings.Contains(stderr, "127.0.0.1:1: UNAVAILABLE") {
			t.Errorf("%s: exit code %d, stderr %q", line, code, stderr)
		}
	}
}

func TestBareProgramPrintsHelp(t *testing.T) {
	stdout, _, code := run(t)
	if code != operator.ExitDone || !strings.Contains(stdout, "controller") {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
}
