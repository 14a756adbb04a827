//go:build chaos

package chaos_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// helloTime bounds what a proxy waits for the first frame of a connection.
	helloTime = 2 * time.Second
	// dialTime bounds the proxy's own connection.
	dialTime = 2 * time.Second
	// maxHello bounds the first frame.
	maxHello = 16 << 10
)

// network is what lies between the replicas. Each advertised address is a proxy,
// which reads from the first frame who calls, so that each direction between two
// replicas can be cut or slowed down alone.
type network struct {
	mu sync.Mutex
	// backends holds where an advertised address leads at present.
	backends map[string]backend
	// paths are what is between two replicas, by name; one that is not there is open.
	paths   map[[2]string]path
	changed chan struct{} // closed and replaced when paths change
	conns   map[*proxied]struct{}
}

// backend is the replica that an address leads to.
type backend struct{ name, address string }

// path is one direction between two replicas. Bytes of a closed one wait, as they
// do in TCP when packets are lost.
type path struct {
	closed bool
	delay  time.Duration
}

// proxied is one connection through a proxy.
type proxied struct {
	from, to string
	conns    []net.Conn
}

func (p *proxied) close() {
	for _, conn := range p.conns {
		_ = conn.Close()
	}
}

func newNetwork() *network {
	return &network{
		backends: map[string]backend{}, paths: map[[2]string]path{}, changed: make(chan struct{}), conns: map[*proxied]struct{}{},
	}
}

// expose opens a proxy that leads to a replica, until the test ends.
func (n *network) expose(tb testing.TB, advertised string, to backend) {
	tb.Helper()
	listener, err := net.Listen("tcp", advertised)
	if err != nil {
		tb.Fatal(err)
	}
	n.lead(advertised, to)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { n.serve(ctx, advertised, conn) })
		}
	})
	tb.Cleanup(func() {
		cancel()
		_ = listener.Close()
		n.sever("")
		running.Wait()
	})
}

// lead makes an address lead to a replica from now on.
func (n *network) lead(advertised string, to backend) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.backends[advertised] = to
}

// set changes one direction between two replicas.
func (n *network) set(from, to string, p path) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths[[2]string{from, to}] = p
	close(n.changed)
	n.changed = make(chan struct{})
}

// sever ends the connections of a replica, or of all, as a firewall does that
// forgets them.
func (n *network) sever(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		if name == "" || conn.from == name || conn.to == name {
			conn.close()
		}
	}
}

// serve passes on one connection.
func (n *network) serve(ctx context.Context, advertised string, client net.Conn) {
	defer func() { _ = client.Close() }()
	frame, from, err := readHello(client)
	if err != nil {
		return
	}
	n.mu.Lock()
	to := n.backends[advertised]
	n.mu.Unlock()
	if !n.wait(ctx, from, to.name) { // a connection, too, needs the path
		return
	}
	server, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", to.address)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	conn := &proxied{from: from, to: to.name, conns: []net.Conn{client, server}}
	n.mu.Lock()
	n.conns[conn] = struct{}{}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.conns, conn)
	}()
	if _, err := server.Write(frame); err != nil {
		return
	}
	var pumping sync.WaitGroup
	pumping.Go(func() { n.pump(ctx, conn, server, client, from, to.name) })
	pumping.Go(func() { n.pump(ctx, conn, client, server, to.name, from) })
	pumping.Wait()
}

// pump copies one direction of a connection, and ends the connection with it.
func (n *network) pump(ctx context.Context, conn *proxied, dst io.Writer, src io.Reader, from, to string) {
	defer conn.close()
	buffer := make([]byte, 32<<10)
	for {
		size, err := src.Read(buffer)
		if size > 0 {
			if !n.wait(ctx, from, to) {
				return
			}
			if _, err := dst.Write(buffer[:size]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns when the path is open and its delay has passed; false if the test
// ends first.
func (n *network) wait(ctx context.Context, from, to string) bool {
	for {
		n.mu.Lock()
		p, changed := n.paths[[2]string{from, to}], n.changed
		n.mu.Unlock()
		var delay <-chan time.Time
		switch {
		case p.closed:
		case p.delay > 0:
			delay = time.After(p.delay)
		default:
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-delay:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// readHello reads the first frame of a connection, and the name of the replica that
// sent it.
func readHello(conn net.Conn) (frame []byte, name string, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return nil, "", err
	}
	frame = make([]byte, 8)
	if _, err := io.ReadFull(conn, frame); err != nil {
		return nil, "", err
	}
	size := binary.BigEndian.Uint32(frame[4:])
	if size > maxHello {
		return nil, "", fmt.Errorf("first frame has %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, "", err
	}
	hello := &slimcppb.Hello{}
	if err := proto.Unmarshal(body, hello); err != nil {
		return nil, "", err
	}
	return append(frame, body...), nameOf(hello.GetReplicaId()), conn.SetReadDeadline(time.Time{})
}

// nameOf returns the name within a replica id, which ends in 8 hexadecimal digits.
func nameOf(replicaID string) string {
	if cut := strings.LastIndexByte(replicaID, '-'); cut > 0 {
		return replicaID[:cut]
	}
	return replicaID
}
