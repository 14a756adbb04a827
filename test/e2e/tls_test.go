//go:build e2e

package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

// authority issues certificates for 127.0.0.1.
type authority struct {
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{folder: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) path(name string) string { return filepath.Join(a.folder, name) }
func (a *authority) ca() string              { return a.path("ca.pem") }

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate and its key, and returns the source of a file for
// them.
func (a *authority) issue(t *testing.T, name string) string {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", "CERTIFICATE", der)
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".key", "EC PRIVATE KEY", der)
	return fmt.Sprintf("{type: file, cert: %q, key: %q}", a.path(name+".pem"), a.path(name+".key"))
}

// secured is a member with TLS on all ports.
func (a *authority) secured(t *testing.T, name string) process.Member {
	t.Helper()
	source := a.issue(t, name)
	return process.Member{
		Name: name, TLS: fmt.Sprintf("{source: %s}", source), YAML: mesh,
		Section: fmt.Sprintf("tls: {source: %s, client_ca: {type: file, path: %q}}, autopilot: {stabilization_time: 300ms}", source, a.ca()),
	}
}

func TestTLSOnAllPorts(t *testing.T) {
	a := newAuthority(t)
	trusting := func(r *process.Replica, args ...string) {
		t.Helper()
		r.MustOperate(t, append(args, "--tls.ca_file", a.ca())...)
	}
	first := process.StartMember(t, binaries, a.secured(t, "cp-1"))
	second := process.StartMember(t, binaries, a.secured(t, "cp-2"))
	trusting(first, "cluster", "init")
	trusting(second, "cluster", "join", first.Cluster)
	trusting(second, "segment", "list")

	// Operators and nodes verify the server.
	if code, _, stderr := second.Operate(t, "segment", "list", "--timeout", "5s"); code != 1 {
		t.Errorf("a client without TLS: exit code %d: %s", code, stderr)
	}
	stranger := newAuthority(t)
	if code, _, stderr := second.Operate(t, "segment", "list", "--timeout", "5s", "--tls.ca_file", stranger.ca()); code != 1 || !strings.Contains(stderr, "certificate") {
		t.Errorf("a client that trusts others: exit code %d: %s", code, stderr)
	}
	f := &fleet{socket: filepath.Join(t.TempDir(), "fleet.sock")}
	f.Process = process.Start(t, process.Spec{
		Name: "fleet", Path: binaries.Path("slim-node"),
		Args: []string{"fleet", "--server", second.Southbound, "--control", f.socket, "--groups", "2", "--tls-ca", a.ca()},
	})
	f.WaitStdout(t, "fleet started", commandTime)
	f.wantDelivery(t)

	// Replicas verify each other, whichever side dials.
	intruder := process.StartMember(t, binaries, stranger.secured(t, "cp-3"))
	code, _, stderr := intruder.Operate(t, "cluster", "join", first.Cluster, "--tls.ca_file", stranger.ca())
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
	a := newAuthority(t)
	source := a.issue(t, "good")
	for name, c := range map[string]struct {
		tls  string
		want []string
	}{
		"no such file":   {`{source: {type: file, cert: /nowhere/c.pem, key: /nowhere/c.key}}`, []string{"tls.source", "/nowhere/c.pem"}},
		"no certificate": {fmt.Sprintf("{source: %s, client_ca: {type: file, path: %q}}", source, a.path("good.key")), []string{"tls.client_ca", "good.key"}},
		"another key":    {fmt.Sprintf("{source: {type: file, cert: %q, key: %q}}", a.ca(), a.path("good.key")), []string{"tls.source", "ca.pem"}},
		"no client's CA": {fmt.Sprintf("{source: %s, client_ca: {type: file, path: /nowhere/ca}}", source), []string{"tls.client_ca", "/nowhere/ca"}},
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
