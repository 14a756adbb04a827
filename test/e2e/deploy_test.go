//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// guide is docs/deploy.md, with ports of this machine in the place of three
// machines.
type guide struct {
	text      string
	machines  *strings.Replacer // names of machines with their ports
	addresses map[string]string // the same, one by one
	folder    string            // where certificates are made and commands are run
}

func readGuide(t *testing.T) *guide {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "deploy.md"))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{text: string(text), addresses: map[string]string{}, folder: t.TempDir()}
	var pairs []string
	for machine := 1; machine <= 3; machine++ {
		for _, port := range []string{"50051", "50052", "50053"} {
			name, here := fmt.Sprintf("cp-%d.example.org:%s", machine, port), process.Loopback(process.FreePort(t))
			g.addresses[name] = here
			pairs = append(pairs, name, here)
		}
	}
	// The machines are all here; the names in the certificates stay.
	g.machines = strings.NewReplacer(append(pairs, "DNS:$name.example.org\"", "DNS:$name.example.org,IP:127.0.0.1\"")...)
	return g
}

// block is the fenced block that begins with these words.
func (g *guide) block(t *testing.T, start string) string {
	t.Helper()
	match := regexp.MustCompile("(?ms)^```[a-z]+\n(" + regexp.QuoteMeta(start) + ".*?)^```$").FindStringSubmatch(g.text)
	if match == nil {
		t.Fatalf("docs/deploy.md has no block that starts with %q", start)
	}
	return match[1]
}

// script runs a block of shell commands.
func (g *guide) script(t *testing.T, start string) string {
	t.Helper()
	commands := g.machines.Replace(g.block(t, start))
	if filepath.Base(binaries.Path("slim-cp")) != "slim-cp" {
		t.Fatal("the binary has another name than in the guide")
	}
	t.Setenv("PATH", filepath.Dir(binaries.Path("slim-cp"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	code, stdout, stderr := process.Run(t, process.Spec{Name: start, Path: "/bin/bash", Args: []string{"-c", commands}, Dir: g.folder}, 2*clusterTime)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", start, code, stdout, stderr)
	}
	return stdout
}

// configure writes the file of a machine.
func (g *guide) configure(t *testing.T, name string) string {
	t.Helper()
	text := strings.ReplaceAll(g.block(t, "# /etc/slim-cp/slim-cp.yaml on cp-1"), "cp-1", name)
	for _, port := range []string{"50051", "50052", "50053"} {
		text = strings.ReplaceAll(text, "0.0.0.0:"+port, g.addresses[name+".example.org:"+port])
	}
	text = strings.NewReplacer("/etc/slim-cp", g.folder, "/var/lib/slim-cp", filepath.Join(g.folder, name),
		"\ncluster:", "\ncluster:\n  autopilot: {stabilization_time: 300ms}").Replace(g.machines.Replace(text))
	file := filepath.Join(g.folder, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// operator are the flags with which an operator proves himself.
func (g *guide) operator() []string {
	return []string{
		"--tls.ca_file", filepath.Join(g.folder, "ca.pem"),
		"--tls.cert_file", filepath.Join(g.folder, "operator.pem"), "--tls.key_file", filepath.Join(g.folder, "operator.key"),
	}
}

// The guide works as it is written, from the certificates to a fleet that is
// served.
func TestDeployGuide(t *testing.T) {
	g := readGuide(t)
	g.script(t, "# certificates.sh")
	var south []string
	for machine := 1; machine <= 3; machine++ {
		name := fmt.Sprintf("cp-%d", machine)
		p := process.Start(t, process.Spec{Name: name, Path: binaries.Path("slim-cp"), Args: []string{"serve", "--config", g.configure(t, name)}})
		(&process.Replica{Process: p}).WaitRunning(t)
		south = append(south, g.addresses[name+".example.org:50052"])
	}
	g.script(t, "# form.sh")
	third := g.addresses["cp-3.example.org:50051"]
	eventually(t, "failure tolerance of 1", func() bool {
		status := succeed(t, "slim-cp", append([]string{"cluster", "status", "--server", third}, g.operator()...)...)
		return strings.Contains(status, "failure tolerance: 1\n")
	})
	f := &fleet{socket: filepath.Join(t.TempDir(), "fleet.sock")}
	f.Process = process.Start(t, process.Spec{Name: "fleet", Path: binaries.Path("slim-node"), Args: []string{
		"fleet", "--server", strings.Join(south, ","), "--control", f.socket, "--tls-ca", filepath.Join(g.folder, "ca.pem"),
	}})
	f.WaitStdout(t, "fleet started", commandTime)
	f.wantDelivery(t)

	// Operators prove themselves.
	succeed(t, "slim-cp", append([]string{"node", "list", "--server", third}, g.operator()...)...)
	if code, _, _ := run(t, "slim-cp", "node", "list", "--server", third, "--tls.ca_file", filepath.Join(g.folder, "ca.pem")); code != 1 {
		t.Errorf("an operator without a certificate: exit code %d", code)
	}
}
