package operator

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// runConfig runs "slimctl config" with a file.
func runConfig(t *testing.T, path string, arguments ...string) (stdout string, code int) {
	t.Helper()
	var output bytes.Buffer
	root := &cobra.Command{Use: "slimctl"}
	root.PersistentFlags().String(configFlag, "", "")
	root.AddCommand(NewConfigCommand())
	root.SetOut(&output)
	root.SetErr(&output)
	root.SetArgs(append([]string{"--config", path, "config"}, arguments...))
	code = Execute(t.Context(), root)
	return output.String(), code
}

// TestConfigSetChangesOneSetting: comments, references and other keys stay, and nobody
// else can read the file.
func TestConfigSetChangesOneSetting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	const before = "# mine\nendpoint: ${env:WHERE}\nother: [1]\ntls:\n    ca_file: old.pem\n"
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"basic-auth-creds ann:p:w", "timeout 1m", "tls-ca-file ca.pem", "tls-cert c.pem k.pem", "tls-insecure-skip-verify true",
	} {
		if output, code := runConfig(t, path, append([]string{"set"}, strings.Fields(line)...)...); code != ExitDone {
			t.Errorf("%s: %s", line, output)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# mine\n", "endpoint: ${env:WHERE}\n", "other: [1]\n", "connect_timeout: 1m\nrequest_timeout: 1m\n",
		"password: p:w", "username: ann", "path: ca.pem", "cert: c.pem", "key: k.pem", "insecure_skip_verify: true",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "old.pem") {
		t.Errorf("the older form of a setting is left:\n%s", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	t.Setenv("WHERE", "cp.example:1")
	file, err := findClientFile(path)
	if err != nil || file.Endpoint != "cp.example:1" || file.Auth.Password != "p:w" || file.TLS.CASource.Path != "ca.pem" ||
		file.TLS.Source.Key != "k.pem" || !file.TLS.InsecureSkipVerify {
		t.Errorf("read back %+v, %v", file, err)
	}
}

func TestConfigSetMakesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "config.yaml")
	if output, code := runConfig(t, path, "set", "server", "cp.example:50051"); code != ExitDone {
		t.Fatal(output)
	}
	if output, code := runConfig(t, path, "list"); code != ExitDone || output != "endpoint: cp.example:50051\n" {
		t.Errorf("%d: %s", code, output)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestConfigSetRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	for _, line := range []string{
		"basic-auth-creds ann", "timeout soon", "tls-insecure-skip-verify maybe", "tls-cert c.pem", "server", "server a b",
	} {
		if output, code := runConfig(t, path, append([]string{"set"}, strings.Fields(line)...)...); code != ExitUsage {
			t.Errorf("%s: exit code %d, %s", line, code, output)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a refused change made a file")
	}
	if output, code := runConfig(t, path, "list"); code != ExitFailed {
		t.Errorf("a named file that is not there: %d, %s", code, output)
	}
	if err := os.WriteFile(path, []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, code := runConfig(t, path, "set", "server", "a:1"); code != ExitFailed || !strings.Contains(output, "expected a map") {
		t.Errorf("%d, %s", code, output)
	}
}

// TestConfigListShowsNoSecret of all kinds that a file may have.
func TestConfigListShowsNoSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	const file = `# SECRET in a comment
headers: {authorization: SECRET}
proxy: {username: bob, password: SECRET, headers: {x-api-key: SECRET}}
auth: {type: oidc, client_secret: SECRET, refresh_token: SECRET, refresh_token_file: /rt} # SECRET
tls: {source: {type: pem, cert: CERT, key: SECRET}, ca_source: {type: pem, data: CA}}
jwt: {key: {type: encoding, algorithm: ES256, key: {data: SECRET}}}
list: [{password: &p SECRET}]
again: *p
empty: {password: "", client_secret: null, key: /k.pem}
`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	output, code := runConfig(t, path, "list")
	if code != ExitDone || strings.Contains(output, "SECRET") {
		t.Errorf("%d:\n%s", code, output)
	}
	if n := strings.Count(output, redacted); n != 9 {
		t.Errorf("%d secrets are hidden in\n%s", n, output)
	}
	for _, want := range []string{"bob", "/rt", "CERT", "CA", "ES256", "/k.pem", `password: ""`, "client_secret: null"} {
		if !strings.Contains(output, want) {
			t.Errorf("%s is missing in\n%s", want, output)
		}
	}
}
