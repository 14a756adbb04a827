package operator

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// changes are one command line of each kind of change.
var changes = []string{"link add a b", "link remove a b", "segment add x", "segment remove x", "group add x s3cret", "group remove x"}

// TestRefusedChange: an answer says that the change was not made.
func TestRefusedChange(t *testing.T) {
	isolate(t)
	server := &stub{fail: status.Error(codes.FailedPrecondition, "not now")}
	address := serve(t, server)
	for _, line := range changes {
		got := run(t, Options{}, append(strings.Fields(line), "--server", address)...)
		if got.code != ExitFailed || got.stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q, want %d and nothing", line, got.code, got.stdout, ExitFailed)
		}
		checkErrorLine(t, got.stderr, " at "+address+": FAILED_PRECONDITION: not now\n")
		if strings.Contains(got.stderr, "s3cret") {
			t.Errorf("the error shows a secret: %s", got.stderr)
		}
	}
}

// TestUnknownOutcome: a change that may have been made has its own exit code,
// whether the control plane says so or nobody can.
func TestUnknownOutcome(t *testing.T) {
	const enough = "20s"
	for name, c := range map[string]struct {
		prepare func(server *stub, stop func())
		timeout string
		want    int
		text    string
	}{
		"the leader went away": {
			func(server *stub, _ func()) {
				server.fail = status.Error(codes.Unknown, "outcome unknown: leadership lost")
			},
			enough, ExitUnknownOutcome, "UNKNOWN: outcome unknown: leadership lost (the change may or may not have been made",
		},
		"no answer in time": {
			func(server *stub, _ func()) { server.hang = true },
			"1s", ExitUnknownOutcome, ": no answer within 1s (the change may or may not have been made",
		},
		"the server's time was up first": {
			func(server *stub, _ func()) { server.fail = status.Error(codes.DeadlineExceeded, "too late") },
			enough, ExitUnknownOutcome, "DEADLINE_EXCEEDED: too late",
		},
		"the server noticed first that time is up": {
			func(server *stub, _ func()) { server.fail = context.DeadlineExceeded },
			"1m", ExitUnknownOutcome, ": no answer within 1m (the change may or may not have been made",
		},
		"the server crashed": {
			func(server *stub, stop func()) { server.hang, server.during = true, func() { go stop() } },
			enough, ExitUnknownOutcome, "UNAVAILABLE",
		},
		"there is no leader": {
			func(server *stub, _ func()) { server.fail = status.Error(codes.Unavailable, "no leader") },
			enough, ExitFailed, "UNAVAILABLE: no leader\n",
		},
		"nobody listens": {
			func(_ *stub, stop func()) { stop() },
			enough, ExitFailed, "connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			server := &stub{}
			address, stop := serveUntil(t, server)
			c.prepare(server, stop)
			got := run(t, Options{}, "segment", "add", "x", "--timeout", c.timeout, "--server", address)
			if got.code != c.want || got.stdout != "" {
				t.Errorf("exit code %d, stdout %q, want %d and nothing", got.code, got.stdout, c.want)
			}
			checkErrorLine(t, got.stderr, "add segment x at "+address, c.text)
		})
	}
}

// A second attempt that time would cut short must not turn a change that was not made
// into one that may have been.
func TestNoSecondAttemptAtTheEnd(t *testing.T) {
	isolate(t)
	var attempts atomic.Int32
	address := serve(t, &stub{}, grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		if attempts.Add(1) == 1 {
			return nil, status.Error(codes.Unavailable, "no leader")
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	got := run(t, Options{}, "segment", "add", "x", "--timeout", "1200ms", "--server", address)
	if got.code != ExitFailed || attempts.Load() != 1 {
		t.Errorf("exit code %d after %d attempts", got.code, attempts.Load())
	}
	checkErrorLine(t, got.stderr, "UNAVAILABLE: no leader\n")
}

// A list changes nothing: it just failed.
func TestListsHaveNoUnknownOutcome(t *testing.T) {
	isolate(t)
	server := &stub{hang: true}
	got := run(t, Options{}, "segment", "list", "--timeout", "50ms", "--server", serve(t, server))
	if got.code != ExitFailed {
		t.Errorf("exit code %d, want %d", got.code, ExitFailed)
	}
}

// TestSecretFile: a secret that is not among the arguments.
func TestSecretFile(t *testing.T) {
	for _, c := range []struct{ content, want string }{
		{"s3cret", "s3cret"},
		{"s3cret\n", "s3cret"},
		{"s3cret\r\n", "s3cret"},
		{" s3cret \n\n", " s3cret \n"},
	} {
		home := isolate(t)
		path := filepath.Join(home, "secret")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{path, "-"} {
			server := &stub{}
			got := runWith(t, c.content, Options{}, "group", "add", "x", "--secret-file", file, "--server", serve(t, server))
			want := &controlplanepb.AddDomainRequest{DomainName: "x", Secret: c.want}
			if got.code != ExitDone || !proto.Equal(server.lastRequest(), want) {
				t.Errorf("%q from %s: exit code %d, asked %v, want %v", c.content, file, got.code, server.lastRequest(), want)
			}
		}
	}
	isolate(t)
	got := run(t, Options{}, "group", "add", "x", "--secret-file", "nowhere", "--server", "127.0.0.1:1")
	if got.code != ExitFailed {
		t.Errorf("exit code %d, want %d", got.code, ExitFailed)
	}
	checkErrorLine(t, got.stderr, "read secret", "nowhere")
	got = runWith(t, strings.Repeat("x", maxSecretFile+1), Options{}, "group", "add", "x", "--secret-file", "-", "--server", "127.0.0.1:1")
	if got.code != ExitFailed || !strings.Contains(got.stderr, "more than") {
		t.Errorf("a huge secret: exit code %d, %s", got.code, got.stderr)
	}
}

const topologyFile = `
topology:
  links:
    - {group: never, neighbors: [used]}
  segments:
    - name: partners
      links:
        - {group: hub, neighbors: [a, b]}
enforce_node_connection: {timeout: 5000}
sessions: {departure_grace: 3s}
`

func TestTopologyApply(t *testing.T) {
	home := isolate(t)
	path := filepath.Join(home, "replica.yaml")
	if err := os.WriteFile(path, []byte(topologyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		same bool
		want string
	}{
		{false, "Fleet configuration applied at index 44\n"},
		{true, "Fleet configuration is active already\n"},
	} {
		server := &stub{empty: c.same}
		got := run(t, Options{}, "topology", "apply", "-c", path, "--server", serve(t, server))
		if got.code != ExitDone || got.stdout != c.want {
			t.Errorf("exit code %d, stdout %q, want %q: %s", got.code, got.stdout, c.want, got.stderr)
		}
		if !strings.HasPrefix(got.stderr, "Warning: ") || !strings.Contains(got.stderr, "topology.links") {
			t.Errorf("stderr %q does not warn of the links that are ignored", got.stderr)
		}
		request, ok := server.lastRequest().(*slimcppb.ApplyFleetConfigRequest)
		if !ok {
			t.Fatalf("asked %v", server.lastRequest())
		}
		applied := request.GetConfig()
		segments := applied.GetTopology().GetSegments()
		if len(segments) != 1 || segments[0].GetName() != "partners" || applied.GetGraces().GetDepartureMs() != 3000 ||
			applied.GetEnforcedConnection().GetTimeoutMs() != 5000 || applied.GetRegistrationAuth() != "none" {
			t.Errorf("applied %v", applied)
		}
	}
}

// TestTopologyApplySaysWhatChanges: before it asks for the change, or without it.
func TestTopologyApplySaysWhatChanges(t *testing.T) {
	home := isolate(t)
	path := filepath.Join(home, "replica.yaml")
	if err := os.WriteFile(path, []byte("topology: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed := &slimcppb.PreviewFleetConfigResponse{Changed: true, Index: 43, Changes: []string{"links removed: 1 of 1: a↔b"}}
	lossy := &slimcppb.PreviewFleetConfigResponse{Changed: true, Index: 43, Changes: changed.GetChanges(), Losses: []string{"the whole topology goes"}}
	const change, would = "Fleet configuration changes:\n", "Fleet configuration would change (compared at index 43):\n"
	const line, done = "  links removed: 1 of 1: a↔b\n", "Fleet configuration applied at index 44\n"
	for _, c := range []struct {
		preview *slimcppb.PreviewFleetConfigResponse
		flags   []string
		code    int
		stdout  string
		applied bool
	}{
		{changed, nil, ExitDone, change + line + done, true},
		{changed, []string{"--dry-run"}, ExitDone, would + line, false},
		{lossy, []string{"--force"}, ExitDone, change + line + done, true},
		{lossy, []string{"--dry-run"}, ExitFailed, would + line, false},
		{lossy, []string{"--dry-run", "--force"}, ExitDone, would + line, false},
		{&slimcppb.PreviewFleetConfigResponse{Index: 43}, []string{"--dry-run"}, ExitDone, "Fleet configuration is active already\n", false},
		{nil, nil, ExitDone, done, true},
		{nil, []string{"--dry-run"}, ExitFailed, "", false}, // an older replica would apply it
	} {
		server := &stub{preview: c.preview}
		got := run(t, Options{}, append([]string{"topology", "apply", "-c", path, "--server", serve(t, server)}, c.flags...)...)
		if got.code != c.code || got.stdout != c.stdout {
			t.Errorf("%v: exit code %d, stdout %q, want %d, %q: %s", c.flags, got.code, got.stdout, c.code, c.stdout, got.stderr)
		}
		request, applied := server.lastRequest().(*slimcppb.ApplyFleetConfigRequest)
		if applied != c.applied || request.GetForce() != (applied && slices.Contains(c.flags, "--force")) {
			t.Errorf("%v: asked %v", c.flags, server.lastRequest())
		}
	}
}

// A file with which no replica would start changes nothing.
func TestTopologyApplyRefusesTheFile(t *testing.T) {
	home := isolate(t)
	path := filepath.Join(home, "replica.yaml")
	for content, want := range map[string]string{
		"topology: {links: nowhere}\n": "topology.links",
		"southbound: {endpoint: '127.0.0.1:20052', auth: {type: basic, username: u, password: p}}\n": "southbound",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		server := &stub{}
		got := run(t, Options{}, "topology", "apply", "-c", path, "--server", serve(t, server))
		if got.code != ExitFailed || server.lastMethod() != "" {
			t.Errorf("exit code %d, asked %q", got.code, server.lastMethod())
		}
		checkErrorLine(t, got.stderr, want)
	}
	got := run(t, Options{}, "topology", "apply", "-c", filepath.Join(home, "none"), "--server", "127.0.0.1:1")
	if got.code != ExitFailed || !strings.Contains(got.stderr, "no such file") {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
}
