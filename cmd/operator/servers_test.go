package operator

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// deadAddress is an address that nobody listens on.
func deadAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	defer listener.Close()
	return listener.Addr().String()
}

// silentAddress is an address where connections are made and nothing is ever said.
func silentAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func noLeader(t *testing.T) string {
	t.Helper()
	return serve(t, &stub{fail: status.Error(codes.Unavailable, "no leader")})
}

// serveUnix serves the stub on a Unix socket, and returns its endpoint.
func serveUnix(t *testing.T, s services) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	controlplanepb.RegisterControlPlaneServiceServer(server, s)
	slimcppb.RegisterClusterServiceServer(server, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-stopped
	})
	return "unix://" + path
}

// TestServersAreAskedInTurn: the first one that is available answers.
func TestServersAreAskedInTurn(t *testing.T) {
	const silent = "it says nothing"
	for name, first := range map[string]func(*testing.T) string{
		"nobody listens":      deadAddress,
		silent:                silentAddress,
		"it knows no leader":  noLeader,
		"a socket is missing": func(t *testing.T) string { return "unix://" + filepath.Join(t.TempDir(), "n.sock") },
	} {
		lines := []string{"node list", "segment add x", "status", "status --wait", "cluster status", "cluster promote x", "explain link a b"}
		if name == silent { // each takes a while
			lines = []string{"node list", "status --wait"}
		}
		for _, line := range lines {
			t.Run(name+"/"+line, func(t *testing.T) {
				isolate(t)
				second, third := &stub{}, &stub{}
				list := first(t) + ", " + serve(t, second) + "," + serve(t, third)
				got := run(t, Options{}, append(strings.Fields(line), "--timeout", "15s", "--server", list)...)
				if got.code != ExitDone || got.stderr != "" || second.calls() != 1 || third.calls() != 0 {
					t.Errorf("exit code %d, stderr %q, %d and %d calls", got.code, got.stderr, second.calls(), third.calls())
				}
			})
		}
	}
}

// A wait goes on with the one that answered.
func TestAWaitStaysWithWhoAnswers(t *testing.T) {
	isolate(t)
	first, second := &stub{fail: status.Error(codes.Unavailable, "no leader")}, &stub{unconverged: 2}
	got := run(t, Options{}, "status", "--wait", "--server", serve(t, first)+","+serve(t, second))
	if got.code != ExitDone || first.calls() != 1 || second.calls() != 3 {
		t.Errorf("exit code %d, %d and %d calls", got.code, first.calls(), second.calls())
	}
}

// The environment and slimctl's file name several as well.
func TestServersInEnvironmentAndFile(t *testing.T) {
	isolate(t)
	server := &stub{}
	list := deadAddress(t) + "," + serve(t, server)
	t.Setenv("SLIM_CP_SERVER", list)
	if got := run(t, Options{}, "node", "list"); got.code != ExitDone {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	t.Setenv("SLIMCTL_COMMON_OPTS_SERVER", list)
	if got := run(t, Options{Dialect: Slimctl}, "c", "node", "list"); got.code != ExitDone {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	t.Setenv("SLIMCTL_COMMON_OPTS_SERVER", "")
	writeFile(t, "config.yaml", "{endpoint: '"+list+"', tls: {insecure: true}}")
	if got := run(t, Options{Dialect: Slimctl}, "c", "node", "list"); got.code != ExitDone {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	if server.calls() != 3 {
		t.Errorf("%d calls", server.calls())
	}
}

// Each of several has its own scheme.
func TestSeveralSchemes(t *testing.T) {
	isolate(t)
	got, err := resolveAll(t, "--server a:1,https://b:2,http://c,unix:///d.sock")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, each := range got {
		text := each.address
		if each.tls != nil {
			text += " TLS"
		}
		shown = append(shown, text)
	}
	if want := []string{"a:1", "b:2 TLS", "c:80", "unix:///d.sock"}; !slices.Equal(shown, want) {
		t.Errorf("endpoints %q, want %q", shown, want)
	}
}

func TestUnixSocket(t *testing.T) {
	isolate(t)
	server := &stub{}
	if got := run(t, Options{}, "node", "list", "--server", serveUnix(t, server)); got.code != ExitDone || server.calls() != 1 {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
}

// Whoever answers, counts: a refusal is not asked for twice.
func TestARefusalIsAnAnswer(t *testing.T) {
	isolate(t)
	first := serve(t, &stub{fail: status.Error(codes.NotFound, "no such thing")})
	second := &stub{}
	got := run(t, Options{}, "node", "list", "--server", first+","+serve(t, second))
	if got.code != ExitFailed || second.calls() != 0 {
		t.Errorf("exit code %d, %d calls", got.code, second.calls())
	}
	checkErrorLine(t, got.stderr, "list nodes at "+first+": NOT_FOUND: no such thing\n")
}

// When nobody answers the error names all, and says why.
func TestNoServerIsAvailable(t *testing.T) {
	isolate(t)
	dead, leaderless := deadAddress(t), noLeader(t)
	got := run(t, Options{}, "node", "list", "--server", dead+","+leaderless)
	if got.code != ExitFailed {
		t.Errorf("exit code %d", got.code)
	}
	checkErrorLine(t, got.stderr, "list nodes at "+dead+": UNAVAILABLE", "refused", " at "+leaderless+": UNAVAILABLE: no leader\n")
}

// A change that the first one may have made goes to the next one under the same id, so
// that it is made once.
func TestAChangeKeepsItsID(t *testing.T) {
	isolate(t)
	var mu sync.Mutex
	ids := map[string]bool{}
	note := grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		incoming, _ := metadata.FromIncomingContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		for _, id := range incoming.Get(requestIDKey) {
			ids[id] = true
		}
		return handle(ctx, request)
	})
	first, second := &stub{fail: status.Error(codes.Unavailable, "no leader")}, &stub{}
	got := run(t, Options{}, "segment", "add", "x", "--server", serve(t, first, note)+","+serve(t, second, note))
	if got.code != ExitDone || first.calls() == 0 || second.calls() != 1 || len(ids) != 1 {
		t.Errorf("exit code %d, stderr %q, %d and %d calls under the ids %v", got.code, got.stderr, first.calls(), second.calls(), ids)
	}
}

// What the first one left open, a refusal for want of a leader by the second one does
// not settle.
func TestAChangeThatIsLeftOpenStaysOpen(t *testing.T) {
	isolate(t)
	server := &stub{hang: true}
	address, stop := serveUntil(t, server)
	server.during = func() { go stop() }
	got := run(t, Options{}, "segment", "add", "x", "--server", address+","+noLeader(t))
	if got.code != ExitUnknownOutcome {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
}

// A restore that has begun at one replica is not begun at another one.
func TestARestoreIsSentOnce(t *testing.T) {
	isolate(t)
	writeFile(t, "state", string(savedState(t)))
	first, second := &stub{fail: status.Error(codes.Unavailable, "no leader")}, &stub{}
	got := run(t, Options{}, "snapshot", "restore", "state", "--server", serve(t, first)+","+serve(t, second))
	if got.code == ExitDone || second.calls() != 0 {
		t.Errorf("exit code %d, stderr %q, %d calls", got.code, got.stderr, second.calls())
	}
	got = run(t, Options{}, "snapshot", "restore", "state", "--server", deadAddress(t)+","+serve(t, second))
	if got.code != ExitDone || second.calls() != 1 {
		t.Errorf("exit code %d, stderr %q, %d calls", got.code, got.stderr, second.calls())
	}
}

// A snapshot whose beginning is written is not begun again behind it.
func TestASaveIsNotBegunTwice(t *testing.T) {
	isolate(t)
	state := savedState(t)
	got := run(t, Options{}, "snapshot", "save", "-", "--server", serve(t, &halfSaved{state: state})+","+serve(t, &stub{snapshot: state}))
	if got.code != ExitFailed || len(got.stdout) >= len(state) {
		t.Errorf("exit code %d, %d bytes of %d", got.code, len(got.stdout), len(state))
	}
	got = run(t, Options{}, "snapshot", "save", "-", "--server", noLeader(t)+","+serve(t, &stub{snapshot: state}))
	if got.code != ExitDone || got.stdout != string(state) {
		t.Errorf("exit code %d, stderr %q, %d bytes of %d", got.code, got.stderr, len(got.stdout), len(state))
	}
}

// halfSaved becomes unavailable in the middle of a snapshot.
type halfSaved struct {
	stub
	state []byte
}

func (s *halfSaved) SaveSnapshot(_ *slimcppb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]) error {
	half := &slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Data{Data: s.state[:len(s.state)/2]}}
	if err := stream.Send(half); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "this replica stops")
}

// proxied is set in the process that TestNoProxyIsUsed starts: the environment's proxy
// is read once in a process.
const proxied = "OPERATOR_TEST_PROXIED"

// A proxy of the environment is for the web. Replicas are asked directly.
func TestNoProxyIsUsed(t *testing.T) {
	if os.Getenv(proxied) != "" {
		// An address for documentation: nobody answers.
		run(t, Options{}, "node", "list", "--timeout", "1s", "--server", "192.0.2.1:50051")
		return
	}
	proxy := listen(t)
	defer proxy.Close()
	asked := make(chan struct{})
	go func() {
		if connection, err := proxy.Accept(); err == nil {
			_ = connection.Close()
			close(asked)
		}
	}()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoProxyIsUsed$")
	child.Env = append(os.Environ(), proxied+"=1", "NO_PROXY=", "no_proxy=")
	for _, variable := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		child.Env = append(child.Env, variable+"=http://"+proxy.Addr().String())
	}
	if output, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	select {
	case <-asked:
		t.Error("the proxy was asked")
	default:
	}
}
