//go:build e2e

package e2e_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	mesh = "topology: {links: [{group: '*', neighbors: ['*']}]}\n"
	star = "topology: {links: [{group: group-1, neighbors: ['*']}]}\n"
)

// editable is a replica whose file the test changes while it runs.
type editable struct {
	*process.Replica
	file  string
	fixed string // listeners and store
}

// startEditable starts a durable replica with the given further YAML.
func startEditable(t *testing.T, yaml string) *editable {
	t.Helper()
	e := &editable{
		Replica: &process.Replica{Northbound: process.Loopback(process.FreePort(t)), Southbound: process.Loopback(process.FreePort(t))},
		file:    filepath.Join(t.TempDir(), "slim-cp.yaml"),
	}
	e.fixed = fmt.Sprintf("northbound: {endpoint: %q, tls: {insecure: true}}\nsouthbound: {endpoint: %q, tls: {insecure: true}}\n"+
		"database: {type: raft, path: %q}\n", e.Northbound, e.Southbound, t.TempDir())
	e.edit(t, yaml)
	e.start(t)
	return e
}

func (e *editable) start(t *testing.T) {
	t.Helper()
	e.Process = process.Start(t, process.Spec{Name: "slim-cp", Path: binaries.Path("slim-cp"), Args: []string{"serve", "-c", e.file}})
	e.WaitStdout(t, process.StartedLine, commandTime)
}

func (e *editable) edit(t *testing.T, yaml string) {
	t.Helper()
	if err := os.WriteFile(e.file, []byte(e.fixed+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *editable) restart(t *testing.T) {
	t.Helper()
	if code := e.Terminate(t, process.ReplicaStop); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	e.start(t)
}

// reload sends SIGHUP and waits for a log line with all these words.
func (e *editable) reload(t *testing.T, words ...string) {
	t.Helper()
	seen, read := len(e.Lines()), 0
	e.Signal(t, syscall.SIGHUP)
	e.WaitFor(t, "log line with "+strings.Join(words, ", "), commandTime, func(line process.Line) bool {
		read++
		return read > seen && containsAll(line.Text, words)
	})
}

func wantLinks(t *testing.T, o *observer.Observer, want int) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("%d links", want), func(ctx context.Context) error {
		links, err := o.Links(ctx)
		if err == nil && len(links) != want {
			err = fmt.Errorf("links are %v", links)
		}
		return err
	})
}

// SIGHUP makes the topology of the file the active one, without a restart. A
// restart then finds the file as it was presented.
func TestHangupTakesTheFileOver(t *testing.T) {
	e := startEditable(t, mesh)
	o := observer.Dial(t, e.Northbound)
	f := startFleet(t, e.Replica, 4, 1, 2)
	f.wantDelivery(t)
	wantLinks(t, o, 6)
	kept := linkIDs(t, o)

	e.edit(t, star)
	e.reload(t, "read again")
	wantLinks(t, o, 3)
	f.wantDelivery(t)
	for _, id := range linkIDs(t, o) {
		if !slices.Contains(kept, id) {
			t.Errorf("link %s is new, and was allowed before", id)
		}
	}

	e.restart(t)
	f.wantDelivery(t)
	wantLinks(t, o, 3)
}

func TestHangupWithABadFileChangesNothing(t *testing.T) {
	e := startEditable(t, mesh)
	o := observer.Dial(t, e.Northbound)
	f := startFleet(t, e.Replica, 3, 1, 1)
	f.wantDelivery(t)
	before := linkIDs(t, o)

	e.edit(t, "topology: {links: nothing}\n")
	e.reload(t, "ERROR", "slim-cp.yaml:4", "topology.links", "a list of links")
	if err := os.Remove(e.file); err != nil {
		t.Fatal(err)
	}
	e.reload(t, "ERROR", e.file)
	f.wantDelivery(t)
	if after := linkIDs(t, o); !slices.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}

	e.edit(t, star)
	e.reload(t, "read again")
	wantLinks(t, o, 2)
}

// A file that is being written is empty for a moment: what is active stays, at a
// start too, until an operator says that he means it.
func TestHangupWithAnEmptyFileTakesNothingAway(t *testing.T) {
	e := startEditable(t, mesh)
	o := observer.Dial(t, e.Northbound)
	f := startFleet(t, e.Replica, 3, 1, 1)
	f.wantDelivery(t)
	before := linkIDs(t, o)

	if err := os.WriteFile(e.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e.reload(t, "ERROR", "pending", "the whole topology goes")
	e.edit(t, "")
	e.restart(t)
	f.wantDelivery(t)
	if after := linkIDs(t, o); !slices.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}
	wantOutput(t, []string{"status", "--server", e.Northbound}, 0, "warning: pending: ")
	wantOutput(t, []string{"topology", "apply", "-c", e.file, "--server", e.Northbound}, 1, "needs --force: the whole topology goes")
	wantOutput(t, []string{"topology", "apply", "-c", e.file, "--server", e.Northbound, "--force"}, 0, "topology: managed by operators")
	wantLinks(t, o, 0)
}

// wantOutput runs slim-cp and looks for words in all that it prints.
func wantOutput(t *testing.T, arguments []string, code int, words string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), binaries.Path("slim-cp"), arguments...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	got := 0
	if exit != nil {
		got = exit.ExitCode()
	}
	if got != code || !strings.Contains(string(output), words) {
		t.Errorf("slim-cp %s: exit code %d, want %d, output %s, want %q in it", strings.Join(arguments, " "), got, code, output, words)
	}
}

// Secrets of the file decide who may register, also those that came with SIGHUP.
func TestNodesNeedTheSecretOfTheFile(t *testing.T) {
	const first, second = "the-first-secret-0123456789-abcdef", "the-second-secret-0123456789-abcde"
	secrets := func(secret string) string {
		return fmt.Sprintf("topology: {registration_auth: {type: shared_secret, secrets: {a: %s}}, links: [{group: a, neighbors: ['*']}]}\n", secret)
	}
	e := startEditable(t, secrets(first))
	token := signed(first, "a", "n")
	for _, try := range []struct {
		node, credentials, refused string
	}{
		{"n", "", "not given"},
		{"n", "no token", "malformed"},
		{"n", token + "x", "malformed"},
		{"m", token, "another node"},
		{"n", token, ""},
		{"n", token, "used before"},
	} {
		success, code := register(t, e.Southbound, "a", try.node, try.credentials)
		if success != (try.refused == "") || !success && code != codes.PermissionDenied {
			t.Errorf("node %s with %q: success %v, %s", try.node, try.credentials, success, code)
		}
		if !success {
			e.WaitFor(t, "log line about the refusal: "+try.refused, commandTime, func(line process.Line) bool {
				return containsAll(line.Text, []string{"registration refused", "a/" + try.node, try.refused})
			})
		}
	}

	e.edit(t, secrets(second))
	e.reload(t, "read again")
	if success, _ := register(t, e.Southbound, "a", "n", signed(first, "a", "n")); success {
		t.Error("the old secret is still good")
	}
	if success, _ := register(t, e.Southbound, "a", "n", signed(second, "a", "n")); !success {
		t.Error("the new secret is not good")
	}
	for _, line := range e.Lines() {
		if strings.Contains(line.Text, first) || strings.Contains(line.Text, second) || strings.Contains(line.Text, token) {
			t.Errorf("the log tells a secret: %s", line.Text)
		}
	}
}

// register asks to be registered. Without success it waits for the end of the
// stream, and returns its code.
func register(t *testing.T, endpoint, group, node, credentials string) (success bool, ended codes.Code) {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	t.Cleanup(cancel)
	stream, err := controllerpb.NewControllerServiceClient(connection).OpenControlChannel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	asked := registration(group, node)
	asked.GetRegisterNodeRequest().Credentials = credentials
	if err := stream.Send(asked); err != nil {
		t.Fatal(err)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return false, status.Code(err)
		}
		if message.GetRegisterNodeResponse().GetSuccess() {
			return true, codes.OK
		}
	}
}

// signed makes a token as a node does.
func signed(secret, group, node string) string {
	nonce := base64.RawURLEncoding.EncodeToString([]byte(time.Now().Format("05.000000000")))
	text := fmt.Sprintf("%s/%s_AbCdEf12:%d:%s:", group, node, time.Now().Unix(), nonce)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + ":" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
