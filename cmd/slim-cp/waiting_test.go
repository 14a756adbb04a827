package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// printed is what a process printed so far.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(text)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// wait polls until a text was printed.
func (p *printed) wait(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(p.String(), text) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("no %q in %q", text, p.String())
		}
	}
}

// startProcess runs a replica with Unix sockets and further YAML until the test ends,
// and returns a client of its operators' side.
func startProcess(t *testing.T, stdout *printed, yaml string) slimcppb.ClusterServiceClient {
	t.Helper()
	folder := t.TempDir()
	north, file := filepath.Join(folder, "n.sock"), filepath.Join(folder, "slim-cp.yaml")
	yaml = fmt.Sprintf("northbound: {endpoint: \"unix://%s\", tls: {insecure: true}}\nsouthbound: {endpoint: \"unix://%s\", tls: {insecure: true}}\n%s",
		north, filepath.Join(folder, "s.sock"), yaml)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() (*config.Config, error) { return load(file) }
	settings, err := read()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, settings, read, nil, hclog.NewNullLogger(), stdout) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+north, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return slimcppb.NewClusterServiceClient(conn)
}

func startMember(t *testing.T, stdout *printed) slimcppb.ClusterServiceClient {
	t.Helper()
	return startProcess(t, stdout, fmt.Sprintf("cluster: {name: cp-1, data_dir: %q, endpoint: \"127.0.0.1:%d\", insecure: true}", t.TempDir(), freePort(t)))
}

// TestStartedIsPrintedWhenNodesAreServed: scripts that wait for that line begin to use
// the replica when they see it.
func TestStartedIsPrintedWhenNodesAreServed(t *testing.T) {
	stdout := &printed{}
	client := startMember(t, stdout)
	stdout.wait(t, "\n")
	if got := stdout.String(); !strings.HasPrefix(got, "waiting: not a member of a cluster; ") || strings.Contains(got, "started") {
		t.Errorf("a replica that is no member prints %q", got)
	}
	if _, err := client.Init(t.Context(), &slimcppb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	stdout.wait(t, "\ncontrol plane started\n")
}

// The version is shown of every replica, of one without a cluster as well.
func TestEveryReplicaHasAVersion(t *testing.T) {
	for name, start := range map[string]func(*printed) slimcppb.ClusterServiceClient{
		"alone": func(stdout *printed) slimcppb.ClusterServiceClient { return startProcess(t, stdout, "") },
		"of several": func(stdout *printed) slimcppb.ClusterServiceClient {
			client := startMember(t, stdout)
			stdout.wait(t, "\n")
			if _, err := client.Init(t.Context(), &slimcppb.InitRequest{}); err != nil {
				t.Fatal(err)
			}
			return client
		},
	} {
		stdout := &printed{}
		client := start(stdout)
		stdout.wait(t, startedLine)
		status, err := client.ClusterStatus(t.Context(), &slimcppb.ClusterStatusRequest{})
		if err != nil || len(status.GetReplicas()) != 1 || status.GetReplicas()[0].GetVersion() != versionText() {
			t.Errorf("%s: %v, %v, want version %q", name, status, err, versionText())
		}
	}
}

// freePort returns a port that is free, below the range that the system hands out.
func freePort(t *testing.T) int {
	t.Helper()
	for port := 21000 + os.Getpid()%5000; port < 32000; port++ {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = listener.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}
