package operator

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	convergedText = "Converged at index 43: 3 of 3 nodes connected, 2 of 2 links applied, 9 of 9 routes applied\n"
	missingText   = "Not converged at index 43: 2 of 3 nodes connected, 2 of 2 links applied, 4 of 9 routes applied\n" +
		"  node a/1 does not answer\n  node b/1: 5 routes are not applied\n"
)

func TestStatus(t *testing.T) {
	isolate(t)
	server := &stub{unconverged: 1}
	address := serve(t, server)
	got := run(t, Options{}, "status", "--server", address)
	if got.code != ExitNotConverged || got.stdout != missingText {
		t.Errorf("exit code %d, want %d; stdout\n%s", got.code, ExitNotConverged, got.stdout)
	}
	checkErrorLine(t, got.stderr, "Error: not converged\n")
	if got := run(t, Options{}, "status", "--server", address); got.code != ExitDone || got.stdout != convergedText {
		t.Errorf("exit code %d, stdout\n%s", got.code, got.stdout)
	}
}

func TestStatusWaits(t *testing.T) {
	isolate(t)
	server := &stub{unconverged: 3}
	got := run(t, Options{}, "status", "--wait", "--server", serve(t, server))
	if got.code != ExitDone || got.stdout != convergedText || server.calls() != 4 {
		t.Errorf("exit code %d after %d calls, stdout\n%s", got.code, server.calls(), got.stdout)
	}
}

func TestStatusGivesUp(t *testing.T) {
	isolate(t)
	server := &stub{unconverged: 1 << 30}
	got := run(t, Options{}, "status", "--wait", "--timeout", "300ms", "--server", serve(t, server))
	if got.code != ExitNotConverged || got.stdout != missingText || server.calls() < 2 {
		t.Errorf("exit code %d after %d calls, stdout\n%s", got.code, server.calls(), got.stdout)
	}
	checkErrorLine(t, got.stderr, "Error: not converged within 300ms\n")
}

// A wait outlives a change of leaders, but not an error that will stay.
func TestStatusWaitsForALeader(t *testing.T) {
	isolate(t)
	server := &stub{fail: status.Error(codes.Unavailable, "no leader")}
	server.during = func() {
		server.mu.Lock()
		defer server.mu.Unlock()
		if len(server.methods) == 3 {
			server.fail = nil
		}
	}
	address := serve(t, server)
	if got := run(t, Options{}, "status", "--wait", "--server", address); got.code != ExitDone || server.calls() != 3 {
		t.Errorf("exit code %d after %d calls: %s", got.code, server.calls(), got.stderr)
	}
	server = &stub{fail: status.Error(codes.Unimplemented, "unknown service")}
	got := run(t, Options{}, "status", "--wait", "--server", serve(t, server))
	if got.code != ExitFailed || server.calls() != 1 || !strings.Contains(got.stderr, "UNIMPLEMENTED") {
		t.Errorf("exit code %d after %d calls: %s", got.code, server.calls(), got.stderr)
	}
	server = &stub{fail: status.Error(codes.Unavailable, "no leader")}
	got = run(t, Options{}, "status", "--wait", "--timeout", "200ms", "--server", serve(t, server))
	if got.code != ExitFailed || !strings.Contains(got.stderr, "no leader") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
}
