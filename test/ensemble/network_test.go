package ensemble_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// links connect everybody in a test. Names stand for addresses: HOST:cluster and
// HOST:nodes are the ports of a replica.
type links struct {
	mu        sync.Mutex
	addresses map[string]string
	cut       map[[2]string]bool // from, to: of hosts
	conns     map[*cuttable]struct{}
}

const (
	clusterPort = ":1"
	nodePort    = ":2"
)

func newLinks() *links {
	return &links{addresses: map[string]string{}, cut: map[[2]string]bool{}, conns: map[*cuttable]struct{}{}}
}

// listen opens a port of a replica.
func (l *links) listen(tb testing.TB, address string) net.Listener {
	tb.Helper()
	listener, err := net.Listen("tcp", process.Loopback(process.FreePort(tb)))
	if err != nil {
		tb.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addresses[address] = listener.Addr().String()
	return listener
}

// forget closes a port for newcomers, as a paused listener is.
func (l *links) forget(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.addresses, address)
}

var errRefused = errors.New("connection refused")

// dialer returns what connects from a host to the others.
func (l *links) dialer(from string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		to, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		target, known := l.addresses[address]
		cut := l.cut[[2]string{from, to}]
		l.mu.Unlock()
		switch {
		case !known:
			return nil, fmt.Errorf("%s: %w", address, errRefused)
		case cut:
			<-ctx.Done() // as in a black hole
			return nil, ctx.Err()
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, target)
		if err != nil {
			return nil, err
		}
		wrapped := &cuttable{Conn: conn, links: l, from: from, to: to}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns[wrapped] = struct{}{}
		return wrapped, nil
	}
}

// isolate makes everything that goes between a replica and the others vanish, or
// brings it back. Connections do not end: each side must find out. Those that were
// in the hole are then dead.
func (l *links) isolate(host string, others []string, off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range others {
		l.cut[[2]string{host, other}], l.cut[[2]string{other, host}] = off, off
	}
	for conn := range l.conns {
		if l.cut[[2]string{conn.from, conn.to}] {
			conn.swallow()
		}
	}
}

// sever closes all connections of a host, as the end of its process does.
func (l *links) sever(host string) {
	l.mu.Lock()
	var ending []*cuttable
	for conn := range l.conns {
		if conn.from == host || conn.to == host {
			ending = append(ending, conn)
		}
	}
	l.mu.Unlock()
	for _, conn := range ending {
		_ = conn.Close()
	}
}

// cuttable is a connection whose bytes can be made to vanish.
type cuttable struct {
	net.Conn
	links    *links
	from, to string

	mu   sync.Mutex
	hole bool
}

func (c *cuttable) swallow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hole = true
}

func (c *cuttable) swallowed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hole
}

func (c *cuttable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.swallowed() {
			return n, err
		}
	}
}

func (c *cuttable) Write(p []byte) (int, error) {
	if c.swallowed() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *cuttable) Close() error {
	c.links.mu.Lock()
	delete(c.links.conns, c)
	c.links.mu.Unlock()
	return c.Conn.Close()
}
