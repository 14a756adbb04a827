package operator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"pgregory.net/rapid"
)

// resolveLine parses connection flags as slimctl does and resolves them to one
// endpoint.
func resolveLine(t *testing.T, line string) (endpoint, error) {
	t.Helper()
	endpoints, err := resolveAll(t, line)
	if err != nil {
		return endpoint{}, err
	}
	if len(endpoints) != 1 {
		t.Fatalf("endpoints %v", endpoints)
	}
	return endpoints[0], nil
}

func resolveAll(t *testing.T, line string) ([]endpoint, error) {
	t.Helper()
	var connection connectionFlags
	v := Slimctl.vocabulary()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	connection.define(flags, v, DefaultServer)
	if err := flags.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return connection.resolve(flags, v, DefaultServer)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestServerAndScheme checks who is asked, and whether over TLS.
func TestServerAndScheme(t *testing.T) {
	cases := []struct {
		name, file, line, environment string
		address                       string
		secure                        bool
	}{
		{name: "default", address: "127.0.0.1:50051"},
		{name: "flag", line: "--server cp.example:1", address: "cp.example:1"},
		{name: "environment", environment: "env.example:2", address: "env.example:2"},
		{name: "flag before environment", environment: "env.example:2", line: "--server cp.example:1", address: "cp.example:1"},
		{name: "flag before file", file: "endpoint: file.example:3", line: "--server cp.example:1", address: "cp.example:1"},
		{name: "environment before file", file: "endpoint: file.example:3", environment: "env.example:2", address: "env.example:2"},
		{name: "IPv6", line: "--server [::1]:50051", address: "[::1]:50051"},
		{name: "http", line: "--server http://cp.example:1", address: "cp.example:1"},
		{name: "https", line: "--server https://cp.example:1/", address: "cp.example:1", secure: true},
		{name: "http without port", line: "--server http://cp.example", address: "cp.example:80"},
		{name: "https without port", line: "--server https://cp.example", address: "cp.example:443", secure: true},
		{name: "http wins over a TLS flag", line: "--server http://cp.example:1 --tls.insecure_skip_verify", address: "cp.example:1"},
		{name: "a TLS flag means TLS", line: "--server cp.example:1 --tls.insecure_skip_verify", address: "cp.example:1", secure: true},
		{name: "also for the default", line: "--tls.insecure_skip_verify", address: "127.0.0.1:50051", secure: true},
		{name: "file means TLS", file: "endpoint: file.example:3", address: "file.example:3", secure: true},
		{name: "file's other key", file: "server: file.example:3", address: "file.example:3", secure: true},
		{name: "file's http", file: "endpoint: http://file.example:3", address: "file.example:3"},
		{name: "file's insecure", file: "{endpoint: file.example:3, tls: {insecure: true}}", address: "file.example:3"},
		{name: "a TLS flag wins over the file's insecure", file: "{endpoint: file.example:3, tls: {insecure: true}}", line: "--tls.insecure_skip_verify", address: "file.example:3", secure: true},
		{name: "the file's TLS settings count for a flag's server", file: "tls: {insecure_skip_verify: true}", line: "--server cp.example:1", address: "cp.example:1", secure: true},
		{name: "a file about other things does not", file: "auth: {type: none}", line: "--server cp.example:1", address: "cp.example:1"},
		{name: "https wins over the file's insecure", file: "tls: {insecure: true}", line: "--server https://cp.example:1", address: "cp.example:1", secure: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			isolate(t)
			t.Setenv("SLIMCTL_COMMON_OPTS_SERVER", c.environment)
			if c.file != "" {
				writeFile(t, "config.yaml", c.file)
			}
			got, err := resolveLine(t, c.line)
			if err != nil {
				t.Fatal(err)
			}
			if got.address != c.address || (got.tls != nil) != c.secure {
				t.Errorf("asks %s with TLS %t; want %s with TLS %t", got.address, got.tls != nil, c.address, c.secure)
			}
		})
	}
}

func TestMalformedEndpoints(t *testing.T) {
	for _, text := range []string{
		"host", ":50051", "host:", "host:0", "host:65536", "host:http", "ftp://host:1", "http://", "http://host:1/path",
		"http://host:0", "http://user:secret@host:1", "host:1/path", "http://host:1?q", "a b:1", "::1:50051", "http://[::1",
		"", "unix:", "unix://", "unix://n.sock", "unix:n.sock", "unix:///n.sock?q",
	} {
		if address, _, err := parseEndpoint(text); err == nil {
			t.Errorf("parseEndpoint(%q) = %q, want an error", text, address)
		}
	}
}

func TestEveryVariable(t *testing.T) {
	isolate(t)
	authority := newAuthority(t)
	certificate, key := authority.issue(t, "client")
	for name, value := range map[string]string{
		"BASIC_AUTH_CREDS":         "ann:pass:word",
		"SERVER":                   "env.example:2",
		"TIMEOUT":                  "1m30s",
		"TLS_INSECURE_SKIP_VERIFY": "true",
		"TLS_CA_FILE":              authority.file,
		"TLS_CERT_FILE":            certificate,
		"TLS_KEY_FILE":             key,
	} {
		t.Setenv("SLIMCTL_COMMON_OPTS_"+name, value)
	}
	got, err := resolveLine(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if got.address != "env.example:2" || got.timeout != 90*time.Second || got.authorization != basicAuthorization("ann", "pass:word") {
		t.Errorf("resolved %q, %v, %q", got.address, got.timeout, got.authorization)
	}
	if got.tls == nil || !got.tls.InsecureSkipVerify || got.tls.RootCAs == nil || len(got.tls.Certificates) != 1 {
		t.Errorf("TLS settings are %+v", got.tls)
	}

	t.Setenv("SLIMCTL_COMMON_OPTS_TLS_INSECURE_SKIP_VERIFY", "perhaps")
	if _, err := resolveLine(t, ""); err == nil || !strings.Contains(err.Error(), `environment SLIMCTL_COMMON_OPTS_TLS_INSECURE_SKIP_VERIFY="perhaps"`) {
		t.Errorf("error %v: want the variable and its value", err)
	}
	t.Setenv("SLIMCTL_COMMON_OPTS_TLS_INSECURE_SKIP_VERIFY", "")
	t.Setenv("SLIMCTL_COMMON_OPTS_TIMEOUT", "soon")
	if _, err := resolveLine(t, ""); err == nil || !strings.HasPrefix(err.Error(), `environment SLIMCTL_COMMON_OPTS_TIMEOUT "soon"`) {
		t.Errorf("error %v: want the variable and its value", err)
	}
}

// TestSlimCPVariables: slim-cp has variables of its own and no client file; a
// config.yaml in its folder is the server's.
func TestSlimCPVariables(t *testing.T) {
	isolate(t)
	server := &stub{}
	t.Setenv("SLIM_CP_SERVER", serve(t, server))
	t.Setenv("SLIM_CP_BASIC_AUTH_CREDS", "ann:secret")
	t.Setenv("SLIMCTL_COMMON_OPTS_SERVER", "127.0.0.1:1")
	writeFile(t, "config.yaml", "endpoint: 127.0.0.1:1\nnorthbound: [")
	if got := run(t, Options{}, "node", "list"); got.code != ExitDone {
		t.Fatalf("exit code %d: %s", got.code, got.stderr)
	}
	if got, want := server.lastAuthorization(), "Basic YW5uOnNlY3JldA=="; got != want {
		t.Errorf("authorization %q, want %q", got, want)
	}
}

func TestClientFilePlaces(t *testing.T) {
	home := isolate(t)
	expect := func(line, address string) {
		t.Helper()
		got, err := resolveLine(t, line)
		if err != nil {
			t.Fatal(err)
		}
		if got.address != address {
			t.Errorf("asks %s, want %s", got.address, address)
		}
	}
	expect("", DefaultServer)
	writeFile(t, "config.yaml", "endpoint: here.example:1")
	expect("", "here.example:1")
	writeFile(t, filepath.Join(home, ".slimctl", "config.yaml"), "endpoint: home.example:1")
	expect("", "home.example:1")
	writeFile(t, "variable.yaml", "endpoint: variable.example:1")
	t.Setenv("SLIMCTL_CONFIG", "variable.yaml")
	expect("", "variable.example:1")
	writeFile(t, "flag.yaml", "endpoint: flag.example:1")
	expect("--config flag.yaml", "flag.example:1")
	if _, err := resolveLine(t, "--config missing.yaml"); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("error %v: want the missing file's name", err)
	}
}

func TestAuthorization(t *testing.T) {
	const bearer, basic = "Bearer abc.def", "Basic YW5uOnNlY3JldA=="
	cases := []struct {
		name, file, line string
		token            bool
		want             string
	}{
		{name: "none"},
		{name: "flag", line: "-b ann:secret", want: basic},
		{name: "flag before file and token", line: "-b ann:secret", file: "auth: {type: basic, username: x, password: y}", token: true, want: basic},
		{name: "file", file: "auth: {type: basic, username: ann, password: '${env:OPERATOR_TEST_PASSWORD}'}", want: basic},
		{name: "file's password from another file", file: "auth: {type: basic, username: ann, password: '${file:password}'}", want: basic},
		{name: "file before token", file: "auth: {type: basic, username: ann, password: secret}", token: true, want: basic},
		{name: "token", token: true, want: bearer},
		{name: "token for a file without auth", file: "auth: {type: none}", token: true, want: bearer},
		{name: "file's token", file: "auth: {type: static_jwt, file: other-token}", want: bearer},
		{name: "file's token, older key", file: "auth: {type: static_jwt, token_file: other-token}", want: bearer},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			home := isolate(t)
			t.Setenv("OPERATOR_TEST_PASSWORD", "secret")
			writeFile(t, "other-token", "abc.def\n")
			writeFile(t, "password", "secret\n")
			if c.file != "" {
				writeFile(t, "config.yaml", c.file)
			}
			if c.token {
				writeFile(t, filepath.Join(home, ".slimctl", "token"), "abc.def\n")
			}
			server := &stub{}
			arguments := append(strings.Fields("c n ls "+c.line), "--server", serve(t, server))
			if got := run(t, Options{Dialect: Slimctl}, arguments...); got.code != ExitDone {
				t.Fatalf("exit code %d: %s", got.code, got.stderr)
			}
			if got := server.lastAuthorization(); got != c.want {
				t.Errorf("authorization %q, want %q", got, c.want)
			}
		})
	}
}

// TestBadClientFiles checks that an error names the file and the trouble.
func TestBadClientFiles(t *testing.T) {
	cases := []struct {
		file string
		want []string
	}{
		{"endpoint: [", []string{"config.yaml"}},
		{"endpoint: {a: b}", []string{"config.yaml", "line 1"}},
		{"\nendpoint: '${env:OPERATOR_TEST_UNSET}'", []string{"config.yaml", "line 2", "${env:OPERATOR_TEST_UNSET}", "not set"}},
		{"endpoint: '${vault:x}'", []string{"${vault:x}", "accepted"}},
		{"endpoint: '${x}'", []string{"${x}", "accepted"}},
		{"endpoint: '${file:missing}'", []string{"${file:missing}"}},
		{"endpoint: nowhere", []string{"config.yaml: endpoint", `"nowhere"`, "HOST:PORT"}},
		{"request_timeout: 5", []string{"config.yaml", "request_timeout", `"5"`}},
		{"auth: {type: oidc}", []string{"config.yaml", "auth.type", `"oidc"`, "basic"}},
		{"auth: {type: static_jwt}", []string{"config.yaml", "static_jwt", "file"}},
		{"auth: {type: static_jwt, file: missing}", []string{"missing"}},
		{"{endpoint: 'h:1', tls: {ca_file: missing}}", []string{"tls.ca_file", "missing"}},
		{"{endpoint: 'h:1', tls: {ca_file: config.yaml}}", []string{"config.yaml", "no PEM certificate"}},
		{"{endpoint: 'h:1', tls: {ca_source: {type: spire}}}", []string{"tls.ca_source.type", `"spire"`, "accepted"}},
		{"{endpoint: 'h:1', tls: {source: {type: spire}}}", []string{"tls.source.type", `"spire"`, "accepted"}},
		{"{endpoint: 'h:1', tls: {cert_file: missing, key_file: missing}}", []string{"client certificate", "missing"}},
	}
	for _, c := range cases {
		t.Run(c.file, func(t *testing.T) {
			isolate(t)
			writeFile(t, "config.yaml", c.file)
			got := run(t, Options{Dialect: Slimctl}, "c", "n", "ls")
			if got.code == ExitDone || got.stdout != "" {
				t.Errorf("exit code %d, stdout %q", got.code, got.stdout)
			}
			checkErrorLine(t, got.stderr, c.want...)
		})
	}
}

func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		file, line string
		want       time.Duration
	}{
		{"", "", 15 * time.Second},
		{"request_timeout: 0s", "", 15 * time.Second},
		{"request_timeout: 40s", "", 40 * time.Second},
		{"request_timeout: 40s", "--timeout 1d", 24 * time.Hour},
	} {
		isolate(t)
		writeFile(t, "config.yaml", c.file)
		got, err := resolveLine(t, c.line)
		if err != nil || got.timeout != c.want {
			t.Errorf("file %q, line %q: timeout %v, error %v; want %v", c.file, c.line, got.timeout, err, c.want)
		}
	}
}

// TestDurations: whatever Go writes without a fraction means the same to us.
func TestDurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "ms")) * time.Millisecond
		whole, rest := want.Truncate(time.Second), want%time.Second
		text := whole.String() + " " + rest.String()
		got, err := parseDuration(text)
		if err != nil || got != want {
			t.Fatalf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	})
	for text, want := range map[string]time.Duration{
		"2w": 14 * 24 * time.Hour, "1y": 31_556_926 * time.Second, "7us 3ns": 7003, " 1 m\t30 s": 90 * time.Second,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "5", "1.5s", "-1s", "s", "1x", "1s5", "400y", "99999999999999999999s", "9223372036s1000ms"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

// authority is a certificate authority for one test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string
	serial      int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{certificate: certificate, key: key, file: filepath.Join(t.TempDir(), "ca.pem"), serial: 1}
	writeFile(t, a.file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

// issue writes a certificate for 127.0.0.1, good for both sides, and its key.
func (a *authority) issue(t *testing.T, name string) (certificateFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	certificateFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	writeFile(t, certificateFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return certificateFile, keyFile
}

// TestTLS asks a server that wants client certificates, in every way to name
// files, and in ways that must not work.
func TestTLS(t *testing.T) {
	isolate(t)
	trusted := newAuthority(t)
	serverCertificate, serverKey := trusted.issue(t, "server")
	pair, err := tls.LoadX509KeyPair(serverCertificate, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(trusted.certificate)
	address := serve(t, &stub{}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})))
	certificate, key := trusted.issue(t, "client")
	pairFlags := "--tls.cert_file " + certificate + " --tls.key_file " + key
	inline := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return "'" + strings.ReplaceAll(string(content), "\n", "\n\n    ") + "'"
	}
	cases := []struct {
		name, file, line string
		want             int
	}{
		{name: "flags", line: "--server " + address + " --tls.ca_file " + trusted.file + " " + pairFlags},
		{name: "https", line: "--server https://" + address + " --tls.ca_file " + trusted.file + " " + pairFlags},
		{name: "unverified", line: "--server " + address + " --tls.insecure_skip_verify " + pairFlags},
		{name: "file, older keys", file: "endpoint: " + address + "\ntls: {ca_file: " + trusted.file + ", cert_file: " + certificate + ", key_file: " + key + "}"},
		{name: "file, newer keys", file: "endpoint: " + address + "\ntls: {ca_source: {type: file, path: " + trusted.file + "}, source: {type: file, cert: " + certificate + ", key: " + key + "}}"},
		{name: "file, inline", file: "endpoint: " + address + "\ntls:\n  ca_source:\n    type: pem\n    data: " + inline(trusted.file) + "\n  include_system_ca_certs_pool: false\n  source:\n    type: pem\n    cert: " + inline(certificate) + "\n    key: " + inline(key)},
		{name: "flags over the file", file: "endpoint: " + address + "\ntls: {ca_source: {type: file, path: missing}, source: {type: file, cert: missing, key: missing}}", line: "--tls.ca_file " + trusted.file + " " + pairFlags},
		{name: "plain text", line: "--server " + address, want: ExitFailed},
		{name: "unknown authority", line: "--server " + address + " " + pairFlags, want: ExitFailed},
		{name: "another authority", line: "--server " + address + " --tls.ca_file " + newAuthority(t).file + " " + pairFlags, want: ExitFailed},
		{name: "no client certificate", line: "--server " + address + " --tls.ca_file " + trusted.file, want: ExitFailed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			isolate(t)
			if c.file != "" {
				writeFile(t, "config.yaml", c.file)
			}
			got := run(t, Options{Dialect: Slimctl}, strings.Fields("c n ls "+c.line)...)
			if got.code != c.want {
				t.Errorf("exit code %d, want %d: %s", got.code, c.want, got.stderr)
			}
		})
	}
}
