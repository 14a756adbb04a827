package peer_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Whoever names a wrong port, or sets TLS up on one side only, is told so.
func TestDialSaysWhatIsWrong(t *testing.T) {
	secure, other := newSecurity(t), newSecurity(t)
	oneSided := &tls.Config{Certificates: secure.server.Certificates}
	replica := func(s security) func(*testing.T, net.Listener) {
		return func(t *testing.T, l net.Listener) { go discard(open(t, "a", l, s).RPC()) }
	}
	southbound := func(options ...grpc.ServerOption) func(*testing.T, net.Listener) {
		return func(t *testing.T, l net.Listener) {
			server := grpc.NewServer(options...)
			t.Cleanup(server.Stop)
			go func() { _ = server.Serve(l) }()
		}
	}
	const notOne, hint = "not the cluster port of a slim-cp replica", "not be the cluster port of a slim-cp replica"
	for name, c := range map[string]struct {
		there func(*testing.T, net.Listener)
		security
		want []string
	}{
		"gRPC":                    {southbound(), security{}, []string{"cluster port of a slim-cp replica"}},
		"gRPC with TLS":           {southbound(grpc.Creds(credentials.NewTLS(oneSided))), secure, []string{hint}},
		"gRPC, over TLS":          {southbound(), secure, []string{"TLS", "cluster port of a slim-cp replica"}},
		"gRPC with TLS, without":  {southbound(grpc.Creds(credentials.NewTLS(oneSided))), security{}, []string{"TLS", "cluster port of a slim-cp replica"}},
		"replica with TLS":        {replica(secure), security{}, []string{"may use TLS, unlike this replica"}},
		"replica without TLS":     {replica(security{}), secure, []string{"may not use TLS as this replica does"}},
		"another authority":       {replica(other), secure, []string{"certificate"}},
		"another client":          {replica(secure), security{client: &tls.Config{RootCAs: secure.client.RootCAs}}, []string{"certificate required"}},
		"another program":         {answers("SSH-2.0-x\r\n"), security{}, []string{notOne, `"SSH-2.0-"`}},
		"another, over TLS":       {answers("SSH-2.0-x\r\n"), secure, []string{notOne, "TLS"}},
		"alert of TLS":            {answers("\x15\x03\x01\x00\x02\x02\x46\x00"), security{}, []string{"uses TLS, and this replica does not"}},
		"an answer without end":   {answers("scp1\x00\x00\x00\x10abc"), security{}, []string{hint}},
		"an answer without sense": {answers("scp1\x00\x00\x00\x01\xff"), security{}, []string{"damaged hello"}},
	} {
		t.Run(name, func(t *testing.T) {
			listener := listen(t)
			c.there(t, listener)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			address := listener.Addr().String()
			_, _, err := open(t, "b", listen(t), c.security).Dial(ctx, rpcKind, address)
			if err == nil {
				t.Fatal("it stands")
			}
			for _, want := range append(c.want, address) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			t.Log(err)
		})
	}
}

// answers is a program that says something as soon as somebody speaks.
func answers(text string) func(*testing.T, net.Listener) {
	return func(_ *testing.T, listener net.Listener) {
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := conn.Read(make([]byte, 1<<10)); err == nil {
				_, _ = conn.Write([]byte(text))
			}
			_ = conn.Close()
		}()
	}
}
