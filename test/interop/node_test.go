//go:build interop

package interop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

// nodeStart bounds the time from exec to an open control stream; 20 nodes
// started at once on two cores need 1.6 s.
const nodeStart = 20 * time.Second

// nodeSpec says what a real node is configured with.
type nodeSpec struct {
	group, id    string
	port         int        // of the data plane; also announced as the external endpoint
	controlPlane string     // host:port of the southbound listener, or of what stands before it
	ca           string     // path of the certificate to verify it with; empty: plaintext
	relay        *relay     // nil for a node that needs none
	balancer     *balancer  // likewise
	peers        []nodeSpec // the other nodes of the group
	internal     bool       // announces no external endpoint
	secret       string     // of its group; empty if nodes prove nothing
	release      int        // of SLIM: 2 or 3
}

// fullID is the id under which a control plane lists the node.
func (s nodeSpec) fullID() string { return s.group + "/" + s.id }

func (s nodeSpec) endpoint() string { return process.Loopback(s.port) }

// yaml renders the node's configuration file.
func (s nodeSpec) yaml() string {
	text := fmt.Sprintf(`tracing: {log_level: info}
services:
  slim/0:
    node_id: %s
    domain_name: %s
`, s.id, s.group)
	if s.secret != "" {
		text += fmt.Sprintf("    auth: {type: shared_secret, secret: %q}\n", s.secret)
	}
	text += fmt.Sprintf(`    dataplane:
      servers:
        - endpoint: %q
          tls: {insecure: true}
`, s.endpoint())
	if !s.internal {
		text += fmt.Sprintf("          metadata: {external_endpoint: %q}\n", s.endpoint())
	}
	if s.ca == "" {
		text += fmt.Sprintf(`    controller:
      clients:
        - endpoint: "http://%s"
          tls: {insecure: true}
`, s.controlPlane)
	} else {
		text += fmt.Sprintf(`    controller:
      clients:
        - endpoint: "https://%s"
          tls: {ca_source: {type: file, path: %q}}
          connect_timeout: 3s
          keepalive: {http2_keepalive: 5s, timeout: 3s, keep_alive_while_idle: true, tcp_keepalive: 10s}
`, s.controlPlane, s.ca)
	}
	if len(s.peers) == 0 {
		return text
	}
	text += "    peers:\n"
	if s.release == 2 {
		// Without this key that release drops the whole services section, and the
		// other one with it.
		text += fmt.Sprintf("      deployment_name: %s\n", s.group)
	}
	text += "      discovery:\n        type: static\n        peers:\n"
	for _, peer := range s.peers {
		text += fmt.Sprintf("          - {node_id: %s, endpoint: \"http://%s\", tls: {insecure: true}}\n", peer.id, peer.endpoint())
	}
	return text
}

// program returns how a program of the node's release is run, which has a script for
// each release.
func (s nodeSpec) program(second, third string) (path string, args []string) {
	if s.release == 3 {
		return filepath.Join("venv", "bin", "python"), []string{"-u", third}
	}
	return "node", []string{second}
}

// node is a running real node.
type node struct {
	nodeSpec
	*process.Process
}

// startNode returns when the node has opened its control stream, which is
// before it is registered.
func startNode(t *testing.T, spec nodeSpec) *node {
	t.Helper()
	n := launchNode(t, spec)
	n.waitReady(t)
	return n
}

// launchNode starts a node and does not wait: several start at once.
func launchNode(t *testing.T, spec nodeSpec) *node {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(spec.yaml()), 0o600); err != nil {
		t.Fatal(err)
	}
	path, args := spec.program("slim-node.mjs", "slim_node.py")
	return &node{spec, process.Start(t, process.Spec{
		Name: fmt.Sprintf("%d.x node %s", spec.release, spec.fullID()),
		Path: path,
		Args: append(args, file),
		Env:  []string{"NO_COLOR=1"},
	})}
}

func (n *node) waitReady(t *testing.T) {
	t.Helper()
	n.WaitFor(t, "ready line", nodeStart, func(line process.Line) bool {
		return strings.HasPrefix(line.Text, "ready ")
	})
}
