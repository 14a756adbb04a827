package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	// replicaStart bounds the time until a replica serves.
	replicaStart = 20 * time.Second
	// ReplicaStop is the longest that a replica may take to end after SIGTERM.
	ReplicaStop = 30 * time.Second
	// StartedLine is what a replica prints when it serves.
	StartedLine = "control plane started"
	// waitingLine begins what a replica prints instead while it is not a member of a
	// cluster or knows no leader. It serves operators then.
	waitingLine = "waiting: "
)

// Replica is a running slim-cp.
type Replica struct {
	*Process
	Northbound string // host:port
	Southbound string // host:port
	Cluster    string // host:port of the cluster port, if it has one
	binary     string
	config     string // path of the file

	// Member is how it was configured, if it is one of a cluster.
	Member Member
	// LogLines is how many of its last lines a failed test shows; 0: some.
	LogLines int
}

// Listeners are the plaintext endpoints (host:port) of a replica.
type Listeners struct {
	Northbound []string
	Southbound []string
}

// YAML renders the listeners for a configuration file.
func (l Listeners) YAML() string {
	return "northbound: " + listenerList(l.Northbound, plainTLS) + "\nsouthbound: " + listenerList(l.Southbound, plainTLS) + "\n"
}

// plainTLS is the TLS section of a listener without it.
const plainTLS = "{insecure: true}"

func listenerList(endpoints []string, tls string) string {
	items := make([]string, len(endpoints))
	for i, endpoint := range endpoints {
		items[i] = fmt.Sprintf("{endpoint: %q, tls: %s}", endpoint, tls)
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// StartReplica runs slim-cp with plaintext listeners on free ports and the
// given further YAML, and returns when it serves.
func StartReplica(tb testing.TB, binaries Binaries, yaml string) *Replica {
	tb.Helper()
	return StartReplicaOn(tb, binaries, Listeners{
		Northbound: []string{Loopback(FreePort(tb))},
		Southbound: []string{Loopback(FreePort(tb))},
	}, yaml)
}

// StartReplicaOn runs slim-cp with these listeners and further YAML, and returns
// when it serves. The replica's own fields name the first of each kind.
func StartReplicaOn(tb testing.TB, binaries Binaries, listeners Listeners, yaml string) *Replica {
	tb.Helper()
	r := &Replica{
		Northbound: listeners.Northbound[0],
		Southbound: listeners.Southbound[0],
		binary:     binaries.Path("slim-cp"),
		config:     filepath.Join(tb.TempDir(), "slim-cp.yaml"),
	}
	if err := os.WriteFile(r.config, []byte(listeners.YAML()+yaml), 0o600); err != nil {
		tb.Fatal(err)
	}
	r.Start(tb)
	return r
}

// Start runs a replica that was stopped again, with the same file.
func (r *Replica) Start(tb testing.TB) {
	tb.Helper()
	r.Launch(tb)
	r.WaitRunning(tb)
}

// WaitRunning waits until operators are served, and nodes if the replica is a member of
// a cluster that has a leader.
func (r *Replica) WaitRunning(tb testing.TB) {
	tb.Helper()
	r.WaitFor(tb, "line that says that it runs", replicaStart, func(line Line) bool {
		return line.Stream == Stdout && (line.Text == StartedLine || strings.HasPrefix(line.Text, waitingLine))
	})
}

// Launch is Start without the wait: for a replica that is expected to end.
func (r *Replica) Launch(tb testing.TB) {
	tb.Helper()
	spec := Spec{Name: cmp.Or(r.Member.Name, "slim-cp"), Path: r.binary, Args: []string{"serve", "-c", r.config}, LogLines: r.LogLines}
	if files := r.Member.Files; files > 0 { // the hard limit, too: Go raises the other one to it
		spec.Args = append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), spec.Path}, spec.Args...)
		spec.Path = "/bin/sh"
	}
	r.Process = Start(tb, spec)
}

// Stop ends a replica as its supervisor would, and fails the test unless it
// ends in time and without an error.
func (r *Replica) Stop(tb testing.TB) {
	tb.Helper()
	if code := r.Terminate(tb, ReplicaStop); code != 0 {
		tb.Fatalf("slim-cp ended with exit code %d after SIGTERM", code)
	}
}
