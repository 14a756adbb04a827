package dataplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// certificate makes a self-signed certificate for the host, and the settings of
// a client that trusts it.
func certificate(t *testing.T, host string) (tls.Certificate, *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, &tls.Config{RootCAs: roots}
}

// A connection that is reset before TLS is up counts as one that was refused:
// the node tries again. Over plain TCP the same loses it.
func TestFailedHandshakesAreTriedAgain(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		server, client := certificate(t, "cp.example")
		listener := bufconn.Listen(1 << 20)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = cp.server.Serve(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{server}, NextProtos: []string{"h2"}}))
		}()
		t.Cleanup(func() { <-served })
		reset := true
		node, err := network.NewNode(NodeOptions{
			ID: "node-1", Group: "a", Servers: []Server{{"cp.example:50052"}}, TLS: client,
			Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				if reset {
					near, far := net.Pipe()
					return near, far.Close()
				}
				return listener.DialContext(ctx)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if node.Phase() != Connecting {
			t.Fatalf("the node is %s: %v", node.Phase(), node.GaveUp())
		}
		node.Kill()
		reset = false
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		cp.latest().accept()
		if node.Phase() != Registered {
			t.Errorf("the node is %s", node.Phase())
		}
	})
}

// The addresses are tried in order, like those of a DNS name.
func TestServersAreTriedInOrder(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		var tried []string
		node, err := network.NewNode(NodeOptions{
			ID: "node-1", Group: "a", Servers: []Server{{"first:1", "second:1", "third:1"}},
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				tried = append(tried, address)
				if address == "first:1" {
					return nil, net.ErrClosed
				}
				return cp.listener.DialContext(ctx)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		cp.latest().accept()
		if node.Phase() != Registered || len(tried) != 2 || tried[1] != "second:1" {
			t.Errorf("the node is %s after %v", node.Phase(), tried)
		}
	})
}
