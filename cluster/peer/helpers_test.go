package peer_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/authority"
)

const (
	raftKind = slimcppb.ConnectionKind_CONNECTION_KIND_RAFT
	rpcKind  = slimcppb.ConnectionKind_CONNECTION_KIND_RPC
	// patience bounds what should happen soon.
	patience = 10 * time.Second
)

// security is the TLS of both sides; nil for plaintext.
type security struct{ server, client *tls.Config }

func newSecurity(t *testing.T) security {
	t.Helper()
	a := authority.New(t)
	a.Issue(t, "replica")
	pair, err := tls.LoadX509KeyPair(a.Path("replica.pem"), a.Path("replica.key"))
	if err != nil {
		t.Fatal(err)
	}
	client := a.Trust()
	client.Certificates = []tls.Certificate{pair}
	server := &tls.Config{Certificates: client.Certificates, ClientCAs: client.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}
	return security{server: server, client: client}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// open opens the port of a replica that lets everybody in.
func open(t *testing.T, id string, listener net.Listener, s security) *peer.Port {
	t.Helper()
	options := peer.Options{
		Listener: listener, ServerTLS: s.server,
		Hello:   func() *slimcppb.Hello { return &slimcppb.Hello{ReplicaId: id} },
		Admit:   func(context.Context, *slimcppb.Hello) error { return nil },
		Refused: func(*slimcppb.HelloAnswer, error) {},
		Logger:  hclog.NewNullLogger(),
	}
	if s.client != nil {
		options.ClientTLS = func() *tls.Config { return s.client }
	}
	port := peer.NewPort(options)
	t.Cleanup(func() { _ = port.Close() })
	return port
}

// discard takes and closes what comes, until the listener is closed.
func discard(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

// dialFrom connects from an address of this machine.
func dialFrom(ctx context.Context, host, address string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	return dialer.DialContext(ctx, "tcp", address)
}

// attack keeps connections open that never finish a hello, and opens each again as
// soon as it is closed, until the test ends. It returns when all were open once.
func attack(t *testing.T, hosts []string, address string, connections int, says []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running, opened sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	opened.Add(connections)
	for i := range connections {
		running.Go(func() {
			once := sync.OnceFunc(opened.Done)
			defer once()
			for ctx.Err() == nil {
				stall(ctx, hosts[i%len(hosts)], address, says, once)
			}
		})
	}
	opened.Wait()
}

// stall opens a connection and says no more than it has to, until it is closed.
func stall(ctx context.Context, host, address string, says []byte, opened func()) {
	conn, err := dialFrom(ctx, host, address)
	if err != nil {
		return
	}
	// Reset at the end, so that the machine does not run out of ports.
	_ = conn.(*net.TCPConn).SetLinger(0)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	opened()
	if _, err := conn.Write(says); err == nil {
		_, _ = conn.Read(make([]byte, 1))
	}
}
