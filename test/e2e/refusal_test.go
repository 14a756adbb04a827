//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// A configuration that cannot be served ends the start with one line, which
// says where the fault is and what is accepted.
func TestBadConfigurationIsRefusedWithOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		yaml string
		want []string // beside the file's path
	}{
		"unknown store":      {"database: {type: postgres}", []string{":3", "database.type", "postgres", "in_memory", "raft", "sqlite"}},
		"store without path": {"database: {type: raft}", []string{":3", "database", "path"}},
		"no number":          {"reconciler:\n  workers: many", []string{":4", "reconciler.workers", "many"}},
		"no duration":        {"reconciler: {reconcile_period: 5 parsecs}", []string{":3", "reconciler.reconcile_period", "5 parsecs"}},
		"syntax":             {"topology: {links: [", []string{":3"}},
		"not served":         {"topology: {registration_auth: {type: spire, socket_path: /run/agent.sock}}", []string{"registration_auth"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeConfig(t, listeners(t)+c.yaml+"\n")
			wantRefused(t, file, append(c.want, filepath.Base(file))...)
		})
	}
}

func TestMissingConfigurationIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "absent.yaml")
	wantRefused(t, file, file)
}

func TestEndpointUsedTwiceIsRefused(t *testing.T) {
	endpoint := process.Loopback(process.FreePort(t))
	same := fmt.Sprintf("{endpoint: %q, tls: {insecure: true}}", endpoint)
	for name, yaml := range map[string]string{
		"by one API":   fmt.Sprintf("southbound: [%s, %s]\nnorthbound: {endpoint: %q, tls: {insecure: true}}\n", same, same, process.Loopback(process.FreePort(t))),
		"by both APIs": fmt.Sprintf("southbound: %s\nnorthbound: %s\n", same, same),
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, writeConfig(t, yaml), endpoint)
		})
	}
}

// Whether an endpoint is free shows only when it is needed, after the replica
// has begun its work; the last line tells.
func TestEndpointOfAnotherProcessIsRefused(t *testing.T) {
	r := process.StartReplica(t, binaries, "database: {type: in_memory}\n")
	yaml := fmt.Sprintf("southbound: {endpoint: %q, tls: {insecure: true}}\nnorthbound: {endpoint: %q, tls: {insecure: true}}\n",
		r.Southbound, process.Loopback(process.FreePort(t)))
	lines := strings.Split(strings.TrimSpace(refuse(t, writeConfig(t, yaml))), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, r.Southbound) {
		t.Errorf("no %s in: %s", r.Southbound, last)
	}
}

// The old spelling of a durable store: the Raft store is P.d, and an old
// database P must not be passed over in silence.
func TestOldDatabaseIsNotPassedOver(t *testing.T) {
	database := filepath.Join(t.TempDir(), "slim.db")
	yaml := fmt.Sprintf("database: {type: sqlite, path: %q}\n", database)

	r := process.StartReplica(t, binaries, yaml)
	r.Stop(t)
	if _, err := os.Stat(database + ".d"); err != nil {
		t.Fatalf("the store is not in P.d: %v", err)
	}
	if err := os.WriteFile(database, []byte("SQLite format 3\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Start(t) // P.d is not new: nothing is passed over
	r.Stop(t)

	if err := os.RemoveAll(database + ".d"); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, writeConfig(t, listeners(t)+yaml), database)
	if _, err := os.Stat(database + ".d"); err == nil {
		t.Error("the refused start made P.d: the next one would pass the database over")
	}
}

// wantRefused runs a replica, which must end by itself with a failure and one
// line that contains all these words.
func wantRefused(t *testing.T, config string, words ...string) {
	t.Helper()
	stderr := refuse(t, config)
	if lines := strings.Count(stderr, "\n"); lines != 1 {
		t.Errorf("%d lines, want one:\n%s", lines, stderr)
	}
	for _, word := range words {
		if !strings.Contains(stderr, word) {
			t.Errorf("no %q in: %s", word, stderr)
		}
	}
}

// refuse runs a replica, which must end by itself with a failure, and returns
// what it wrote to standard error.
func refuse(t *testing.T, config string) string {
	t.Helper()
	code, stdout, stderr := run(t, "slim-cp", "serve", "-c", config)
	if code == 0 {
		t.Error("exit code 0")
	}
	if strings.Contains(stdout, process.StartedLine) {
		t.Error("it claimed to have started")
	}
	return stderr
}
