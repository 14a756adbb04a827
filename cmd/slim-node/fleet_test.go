package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// patience bounds every wait of a test.
const patience = 20 * time.Second

// acceptAll is a control plane that registers, or refuses, every node and says
// nothing more.
type acceptAll struct {
	controllerpb.UnimplementedControllerServiceServer
	success bool
}

func (a acceptAll) OpenControlChannel(stream controllerpb.ControllerService_OpenControlChannelServer) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		if message.GetRegisterNodeRequest() == nil {
			continue
		}
		err = stream.Send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_RegisterNodeResponse{
			RegisterNodeResponse: &controllerpb.RegisterNodeResponse{OriginalMessageId: message.GetMessageId(), Success: a.success},
		}})
		if err != nil {
			return err
		}
	}
}

// serve runs a control plane and returns its address.
func serve(t *testing.T, success bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", process.Loopback(process.FreePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	controllerpb.RegisterControllerServiceServer(server, acceptAll{success: success})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

// runCommand runs the command line and returns what it printed.
func runCommand(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	command := newCommand()
	command.SetArgs(args)
	command.SetOut(&out)
	command.SetErr(&out)
	err := command.ExecuteContext(ctx)
	return out.String(), err
}

// startFleet runs a fleet until the test ends and returns its socket.
func startFleet(t *testing.T, flags fleetFlags) string {
	t.Helper()
	flags.control = filepath.Join(t.TempDir(), "fleet.sock")
	flags.groupPrefix, flags.reconnect, flags.logLevel = "group-", "real", "error"
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- runFleet(ctx, flags, func(line string) { started <- line }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the fleet ended with %v", err)
		}
		if _, err := os.Stat(flags.control); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	select {
	case line := <-started:
		if line != "fleet started" {
			t.Errorf("the fleet said %q", line)
		}
	case <-time.After(patience):
		t.Fatal("the fleet did not start")
	}
	return flags.control
}

func TestFleetIsDrivenOverItsSocket(t *testing.T) {
	socket := startFleet(t, fleetFlags{groups: 1, nodesPerGroup: 2, names: 3, servers: []string{serve(t, true)}, topology: "mesh"})
	ctl := func(args ...string) string {
		t.Helper()
		out, err := runCommand(t.Context(), append([]string{"ctl", "--control", socket}, args...)...)
		if err != nil {
			t.Fatalf("ctl %v: %v\n%s", args, err, out)
		}
		return out
	}
	wantNodes := func(want string) {
		t.Helper()
		if got := strings.Join(strings.Fields(ctl("nodes")), " "); got != "NODE PHASE NAMES LINKS ROUTES "+want {
			t.Errorf("nodes: %q, want %q", got, want)
		}
	}
	wantMatrix := func(want string) {
		t.Helper()
		if got := strings.Join(strings.Fields(ctl("matrix", "--wait", "5s")), " "); got != want {
			t.Errorf("matrix: %q, want %q", got, want)
		}
	}
	wantNodes("group-1/node-1 registered 2 0 0 group-1/node-2 registered 1 0 0")
	wantMatrix("FROM group-1 group-1 3/3")
	ctl("announce", "group-1/node-2", "org/ns/extra")
	wantMatrix("FROM group-1 group-1 4/4")
	ctl("withdraw", "group-1/node-2", "org/group-1/app-2")
	wantMatrix("FROM group-1 group-1 3/3")
	ctl("kill", "group-1/node-1")
	wantNodes("group-1/node-1 stopped 2 0 0 group-1/node-2 registered 1 0 0")
	wantMatrix("FROM group-1 group-1 1/1")
	ctl("start", "group-1/node-1")
	wantMatrix("FROM group-1 group-1 3/3")

	var report matrixReport
	if err := json.Unmarshal([]byte(ctl("matrix", "-o", "json", "--senders", "one")), &report); err != nil || !report.Complete || len(report.Pairs) != 1 {
		t.Errorf("JSON matrix: %v, %+v", err, report)
	}
}

func TestIncompleteMatrixFails(t *testing.T) {
	socket := startFleet(t, fleetFlags{groups: 3, nodesPerGroup: 1, names: 11, servers: []string{serve(t, true)}, topology: "segments:group-1"})
	out, err := runCommand(t.Context(), "ctl", "--control", socket, "matrix", "--wait", "300ms")
	if !errors.Is(err, errIncomplete) || !strings.Contains(err.Error(), "44 defects") {
		t.Errorf("error is %v", err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4+shownDefects+1 || lines[len(lines)-1] != "... and 24 more" {
		t.Errorf("printed %d lines:\n%s", len(lines), out)
	}
	// Spokes owe each other nothing.
	if got := strings.Fields(lines[2]); strings.Join(got, " ") != "group-2 0/11 11/11 -" {
		t.Errorf("row is %q", got)
	}
}

func TestFleetNamesTheNodeThatGaveUp(t *testing.T) {
	err := runFleet(t.Context(), fleetFlags{
		groups: 1, nodesPerGroup: 1, names: 1, servers: []string{serve(t, false)}, groupPrefix: "group-", topology: "mesh", reconnect: "real", logLevel: "error",
	}, func(string) {})
	if err == nil || err.Error() != "node group-1/node-1: registration rejected by control plane" {
		t.Errorf("got %v", err)
	}
}

func TestUsageErrors(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := startFleet(t, fleetFlags{groups: 1, nodesPerGroup: 1, names: 1, servers: []string{serve(t, true)}, topology: "mesh"})
	for _, test := range []struct {
		want string
		args []string
	}{
		{`--topology "ring": want "mesh", "star:HUB" or "segments:HUB"`, []string{"fleet", "--topology", "ring"}},
		{`--server "nowhere": want HOST:PORT`, []string{"fleet", "--server", "nowhere"}},
		{`--reconnect "never": want "real" or "forever"`, []string{"fleet", "--reconnect", "never"}},
		{`--log-level "loud": want trace, debug, info, warn or error`, []string{"fleet", "--log-level", "loud"}},
		{"a fleet of 0 groups", []string{"fleet", "--groups", "0"}},
		{"--tls-ca " + plain + ": no certificate in it", []string{"fleet", "--tls-ca", plain}},
		{"another process listens there", []string{"fleet", "--control", socket}},
		{"--control " + plain + ": listen unix", []string{"fleet", "--control", plain}},
		{"--control is empty", []string{"ctl", "nodes"}},
		{"no such file or directory", []string{"ctl", "--control", plain + "x", "nodes"}},
		{`no node "x": want GROUP/NODE, such as group-1/node-1`, []string{"ctl", "--control", socket, "kill", "x"}},
		{"node group-1/node-1: node is running", []string{"ctl", "--control", socket, "start", "group-1/node-1"}},
		{`not a name: "x": want a/b/c or a/b/c/UUID`, []string{"ctl", "--control", socket, "announce", "group-1/node-1", "x"}},
		{"node group-1/node-1 has no application org/ns/x/", []string{"ctl", "--control", socket, "withdraw", "group-1/node-1", "org/ns/x"}},
		{`--output "xml": want table or json`, []string{"ctl", "--control", socket, "nodes", "-o", "xml"}},
		{`--senders "few": want "every" or "one"`, []string{"ctl", "--control", socket, "matrix", "--senders", "few"}},
	} {
		if _, err := runCommand(t.Context(), test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.args, err, test.want)
		}
	}
}

func TestSocketOfADeadProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "old.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	listener, err := listenControl(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}
