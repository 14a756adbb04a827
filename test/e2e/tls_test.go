//go:build e2e

package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/authority"
	"github.com/slim-cp/slim-cp/test/process"
)

// secured is a member with TLS on all ports.
func secured(t *testing.T, a *authority.Authority, name string) process.Member {
	t.Helper()
	source := a.Issue(t, name)
	return process.Member{
		Name: name, TLS: fmt.Sprintf("{source: %s}", source), YAML: mesh,
		Section: fmt.Sprintf("tls: {source: %s, client_ca: {type: file, path: %q}}, autopilot: {stabilization_time: 300ms}", source, a.CA()),
	}
}

func TestTLSOnAllPorts(t *testing.T) {
	a := authority.New(t)
	trusting := func(r *process.Replica, args ...string) {
		t.Helper()
		r.MustOperate(t, append(args, "--tls.ca_file", a.CA())...)
	}
	first := process.StartMember(t, binaries, secured(t, a, "cp-1"))
	second := process.StartMember(t, binaries, secured(t, a, "cp-2"))
	trusting(first, "cluster", "init")
	trusting(second, "cluster", "join", first.Cluster)
	trusting(second, "segment", "list")

	// Operators and nodes verify the server.
	if code, _, stderr := second.Operate(t, "segment", "list", "--timeout", "5s"); code != 1 {
		t.Errorf("a client without TLS: exit code %d: %s", code, stderr)
	}
	stranger := authority.New(t)
	if code, _, stderr := second.Operate(t, "segment", "list", "--timeout", "5s", "--tls.ca_file", stranger.CA()); code != 1 || !strings.Contains(stderr, "certificate") {
		t.Errorf("a client that trusts others: exit code %d: %s", code, stderr)
	}
	f := &fleet{socket: filepath.Join(t.TempDir(), "fleet.sock")}
	f.Process = process.Start(t, process.Spec{
		Name: "fleet", Path: binaries.Path("slim-node"),
		Args: []string{"fleet", "--server", second.Southbound, "--control", f.socket, "--groups", "2", "--tls-ca", a.CA()},
	})
	f.WaitStdout(t, "fleet started", commandTime)
	f.wantDelivery(t)

	// Replicas verify each other, whichever side dials.
	intruder := process.StartMember(t, binaries, secured(t, stranger, "cp-3"))
	code, _, stderr := intruder.Operate(t, "cluster", "join", first.Cluster, "--tls.ca_file", stranger.CA())
	if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "certificate") {
		t.Errorf("a replica of another authority: exit code %d: %s", code, stderr)
	}
	plain := process.StartMember(t, binaries, process.Member{Name: "cp-4"})
	if code, _, stderr := plain.Operate(t, "cluster", "join", first.Cluster); code != 1 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a replica without TLS: exit code %d: %s", code, stderr)
	}
}

// What is wrong with a certificate is said in one line.
func TestBadCertificateIsRefused(t *testing.T) {
	a := authority.New(t)
	source := a.Issue(t, "good")
	for name, c := range map[string]struct {
		tls  string
		want []string
	}{
		"no certificate": {fmt.Sprintf("{source: %s, client_ca: {type: file, path: %q}}", source, a.Path("good.key")), []string{"tls.client_ca", "good.key"}},
		"another key":    {fmt.Sprintf("{source: {type: file, cert: %q, key: %q}}", a.CA(), a.Path("good.key")), []string{"tls.source", "ca.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeConfig(t, fmt.Sprintf("northbound: {endpoint: %q, tls: %s}\nsouthbound: {endpoint: %q, tls: {insecure: true}}\n",
				process.Loopback(process.FreePort(t)), c.tls, process.Loopback(process.FreePort(t))))
			stderr := refuse(t, file)
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in: %s", want, stderr)
				}
			}
		})
	}
}

// A listener whose certificate is not there yet, or not any more, is closed and named;
// it opens without a restart.
func TestListenerOpensWhenItsCertificateAppears(t *testing.T) {
	a := authority.New(t)
	north := process.Loopback(process.FreePort(t))
	p := process.Start(t, process.Spec{Name: "slim-cp", Path: binaries.Path("slim-cp"), Args: []string{"serve", "-c", writeConfig(t, fmt.Sprintf(
		"northbound: {endpoint: %q, tls: {source: {type: file, cert: %q, key: %q}}}\nsouthbound: {endpoint: %q, tls: {insecure: true}}\n",
		north, a.Path("late.pem"), a.Path("late.key"), process.Loopback(process.FreePort(t))))}})
	p.WaitFor(t, "error that names the listener", commandTime, func(line process.Line) bool {
		return strings.Contains(line.Text, "[ERROR]") && strings.Contains(line.Text, "listener=northbound") && strings.Contains(line.Text, "late.pem")
	})
	p.WaitStdout(t, process.StartedLine, commandTime)
	list := []string{"segment", "list", "--server", north, "--tls.ca_file", a.CA(), "--timeout", "5s"}
	if code, _, stderr := run(t, "slim-cp", list...); code != 1 || !strings.Contains(stderr, "refused") {
		t.Errorf("while there is no certificate: exit code %d: %s", code, stderr)
	}
	a.Issue(t, "late")
	p.WaitFor(t, "line that says that it is open", time.Minute, func(line process.Line) bool {
		return strings.Contains(line.Text, "has a valid certificate again")
	})
	if code, _, stderr := run(t, "slim-cp", list...); code != 0 {
		t.Errorf("with a certificate: exit code %d: %s", code, stderr)
	}
	if code := p.Terminate(t, process.ReplicaStop); code != 0 {
		t.Errorf("it ended with exit code %d", code)
	}
}
