//go:build interop

package interop_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

// backendConnect bounds the connect to one replica.
const backendConnect = time.Second

// balancer is a TCP load balancer in front of replicas for one node, whose
// connections it counts. It takes the first replica that accepts; without any it
// closes the connection, which over TLS is a failed handshake that the node
// retries.
type balancer struct {
	endpoint string
	backends []*process.Replica

	mu       sync.Mutex // guards the following fields
	opened   []string   // name of the replica, for each connection so far
	conns    map[net.Conn]struct{}
	stopping bool
}

func startBalancer(t *testing.T, backends ...*process.Replica) *balancer {
	t.Helper()
	b := &balancer{endpoint: process.Loopback(process.FreePort(t)), backends: backends, conns: map[net.Conn]struct{}{}}
	listener, err := net.Listen("tcp", b.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			down, err := listener.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			passing.Go(func() { b.pass(down) })
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		b.stop()
		passing.Wait()
	})
	return b
}

// pass connects a node's connection to a replica, until either end closes it.
func (b *balancer) pass(down net.Conn) {
	defer b.forget(down)
	if !b.keep(down) {
		return
	}
	up, on := b.dial()
	if up == nil {
		return
	}
	defer b.forget(up)
	if !b.keep(up) {
		return
	}
	b.mu.Lock()
	b.opened = append(b.opened, on)
	b.mu.Unlock()
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{up, down}, {down, up}} {
		go func() {
			_, _ = io.Copy(ends[0], ends[1]) // how it ended does not matter: both close
			ended <- struct{}{}
		}()
	}
	<-ended
	_ = up.Close()
	_ = down.Close()
	<-ended
}

func (b *balancer) dial() (up net.Conn, on string) {
	for _, r := range b.backends {
		if up, err := net.DialTimeout("tcp", r.Southbound, backendConnect); err == nil {
			return up, r.Member.Name
		}
	}
	return nil, ""
}

// keep has stop close a connection; false if that is over already.
func (b *balancer) keep(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[conn] = struct{}{}
	return !b.stopping
}

func (b *balancer) forget(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, conn)
	_ = conn.Close()
}

func (b *balancer) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopping = true
	for conn := range b.conns {
		_ = conn.Close()
	}
}

// connections returns the replicas that the node's connections led to, in order.
func (b *balancer) connections() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.opened...)
}

// on returns the name of the replica that the newest connection led to.
func (b *balancer) on() string {
	opened := b.connections()
	if len(opened) == 0 {
		return ""
	}
	return opened[len(opened)-1]
}
