package operator

import (
	"crypto/tls"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// hanger accepts connections and hangs up: it wants something that the client does
// not give.
func hanger(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, 1))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// TestConnectionHints: what a security mismatch looks like is not what it is.
func TestConnectionHints(t *testing.T) {
	trusted := newAuthority(t)
	certificate, key := trusted.issue(t, "server")
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	secured := func(t *testing.T, auth tls.ClientAuthType) string {
		return serve(t, &stub{}, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth})))
	}
	const wantsTLS, noTLS = "the server may want TLS: see --tls.ca_file", "the server may not speak TLS: ask http://"
	for name, c := range map[string]struct {
		address func(*testing.T) string
		flags   string
		want    string
	}{
		"plain text to TLS":           {func(t *testing.T) string { return secured(t, tls.NoClientCert) }, "", wantsTLS},
		"plain text to what hangs up": {hanger, "", wantsTLS},
		"TLS to plain text":           {func(t *testing.T) string { return serve(t, &stub{}) }, "--tls.insecure_skip_verify", noTLS},
		"no client certificate": {
			func(t *testing.T) string { return secured(t, tls.RequireAnyClientCert) },
			"--tls.ca_file " + trusted.file, "the server may want a client certificate: see --tls.cert_file and --tls.key_file",
		},
		"another authority": {
			func(t *testing.T) string { return secured(t, tls.NoClientCert) },
			"--tls.ca_file " + newAuthority(t).file, "--tls.ca_file names the file with the authority to trust",
		},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			got := run(t, Options{}, append([]string{"node", "list", "--server", c.address(t)}, strings.Fields(c.flags)...)...)
			if got.code != ExitFailed {
				t.Errorf("exit code %d", got.code)
			}
			checkErrorLine(t, got.stderr, "UNAVAILABLE", " ("+c.want)
		})
	}
}

// Who listens but does not know the service is another port.
func TestWrongPort(t *testing.T) {
	isolate(t)
	listener := listen(t)
	server := grpc.NewServer()
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	got := run(t, Options{}, "node", "list", "--server", listener.Addr().String())
	if got.code != ExitFailed {
		t.Errorf("exit code %d", got.code)
	}
	checkErrorLine(t, got.stderr, "UNIMPLEMENTED", "not the northbound port")
}

// The words of gRPC's own stay off the screen.
func TestReasons(t *testing.T) {
	const reset = "stream terminated by RST_STREAM with error code: CANCEL"
	for _, c := range []struct {
		code codes.Code
		text string
		want string
	}{
		{codes.DeadlineExceeded, reset, "x at h:1: no answer within 10m"},
		{codes.DeadlineExceeded, "context deadline exceeded", "x at h:1: no answer within 10m"},
		{codes.DeadlineExceeded, "too late", "x at h:1: DEADLINE_EXCEEDED: too late"},
		{codes.Unavailable, "error reading from server: EOF", "x at h:1: UNAVAILABLE: error reading from server: EOF"},
		{
			codes.Unavailable, `connection error: desc = "error reading from server: EOF", received prior goaway`,
			`x at h:1: UNAVAILABLE: connection error: desc = "error reading from server: EOF", received prior goaway`,
		},
		{codes.Unavailable, reset, "x at h:1: UNAVAILABLE: the call was cut off"},
		{codes.Unavailable, "save: rpc error: code = Unavailable desc = no leader", "x at h:1: UNAVAILABLE: save: no leader"},
	} {
		asked := newServers([]endpoint{{address: "h:1"}})
		asked.limit = defaultLongWait
		err := (&tree{}).newCallError("x", asked, status.Error(c.code, c.text))
		if err.Error() != c.want {
			t.Errorf("%v %q reads %q, want %q", c.code, c.text, err, c.want)
		}
	}
}
