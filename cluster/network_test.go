package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// network is what connects the replicas of a test. Names stand for addresses, and
// links can be cut.
type network struct {
	mu        sync.Mutex
	addresses map[string]string // of listeners, by advertised HOST:PORT
	cut       map[[2]string]bool
	frozen    map[[2]string]chan struct{} // a replica, or who dialled whom; closed when it thaws
	conns     map[net.Conn][2]string
	bandwidth map[string]int  // of a replica's incoming links, in bytes per second
	older     map[string]bool // addresses of replicas of an older version
	// pipes, if not nil, take the place of TCP: a bubble has none.
	pipes map[string]*pipeListener // by address
}

func newNetwork() *network {
	return &network{
		addresses: map[string]string{}, cut: map[[2]string]bool{}, frozen: map[[2]string]chan struct{}{},
		conns: map[net.Conn][2]string{}, bandwidth: map[string]int{},
	}
}

// listen opens the cluster port of a replica.
func (n *network) listen(tb testing.TB, name string) net.Listener {
	tb.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pipes != nil {
		n.addresses[name+":1"] = name
		n.pipes[name] = newPipeListener()
		return n.pipes[name]
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	n.addresses[name+":1"] = listener.Addr().String()
	return listener
}

// dial connects from a replica to another one, by name.
func (n *network) dial(from string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		n.mu.Lock()
		target, known := n.addresses[address]
		cut, pipe := n.cut[[2]string{from + ":1", address}], n.pipes[target]
		n.mu.Unlock()
		if !known {
			return nil, fmt.Errorf("no such host: %s", address)
		}
		if cut {
			<-ctx.Done() // as a black hole does
			return nil, ctx.Err()
		}
		ends := [2]string{from + ":1", address}
		if err := n.awaitThaw(ends, ctx.Done()); err != nil {
			return nil, err
		}
		connect := (&net.Dialer{}).DialContext
		if pipe != nil {
			connect = pipe.connect
		}
		conn, err := connect(ctx, network, target)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.cut[ends] || n.addresses[address] != target { // meanwhile
			_ = conn.Close()
			return nil, fmt.Errorf("%s was cut off", address)
		}
		if n.older[ends[0]] || n.older[ends[1]] {
			conn = &beforeIDs{Conn: conn}
		}
		wrapped := &cuttable{Conn: conn, network: n, ends: ends, closed: make(chan struct{})}
		wrapped.close = sync.OnceFunc(func() { close(wrapped.closed) })
		n.conns[wrapped] = wrapped.ends
		return wrapped, nil
	}
}

// cuttable is a connection that ends when its link is cut.
type cuttable struct {
	net.Conn
	network *network
	ends    [2]string
	closed  chan struct{}
	close   func() // closes closed
}

func (c *cuttable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil {
		err = c.network.awaitThaw(c.ends, c.closed)
	}
	return n, err
}

func (c *cuttable) Write(p []byte) (int, error) {
	if err := c.network.awaitThaw(c.ends, c.closed); err != nil {
		return 0, err
	}
	c.network.mu.Lock()
	bandwidth := c.network.bandwidth[c.ends[1]]
	c.network.mu.Unlock()
	if bandwidth > 0 {
		<-time.After(time.Duration(len(p)) * time.Second / time.Duration(bandwidth))
	}
	return c.Conn.Write(p)
}

// Close lets not even the end of a frozen connection through.
func (c *cuttable) Close() error {
	c.close()
	c.network.mu.Lock()
	delete(c.network.conns, c)
	var frozen chan struct{}
	for _, key := range frozenKeys(c.ends) {
		frozen = cmp.Or(frozen, c.network.frozen[key])
	}
	c.network.mu.Unlock()
	if frozen == nil {
		return c.Conn.Close()
	}
	go func() {
		<-frozen
		_ = c.Conn.Close()
	}()
	return c.SetDeadline(time.Unix(1, 0)) // who reads or writes here is told
}

// frozenKeys are what a connection may be frozen by.
func frozenKeys(ends [2]string) [][2]string { return [][2]string{{ends[0]}, {ends[1]}, ends} }

// freeze holds back all that a replica sends and is sent, as if its process stood
// still. Connections stay open; thaw delivers what was held back.
func (n *network) freeze(name string) (thaw func()) { return n.freezeLink(name, "") }

// freezeLink holds back what crosses the connections that one replica dialled to
// another.
func (n *network) freezeLink(from, to string) (thaw func()) {
	key := [2]string{from + ":1", to}
	if to != "" {
		key[1] += ":1"
	}
	frozen := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen[key] = frozen
	return sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.frozen, key)
		n.mu.Unlock()
		close(frozen)
	})
}

// slow bounds what arrives at a replica on each connection.
func (n *network) slow(name string, bytesPerSecond int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bandwidth[name+":1"] = bytesPerSecond
}

// awaitThaw returns when neither end of a connection is frozen, or with an error
// when the connection ends.
func (n *network) awaitThaw(ends [2]string, ended <-chan struct{}) error {
	for _, key := range frozenKeys(ends) {
		n.mu.Lock()
		frozen := n.frozen[key]
		n.mu.Unlock()
		if frozen == nil {
			continue
		}
		select {
		case <-frozen:
		case <-ended:
			return net.ErrClosed
		}
	}
	return nil
}

// isolate cuts a replica off from all others, or brings it back.
func (n *network) isolate(name string, off bool) {
	n.mu.Lock()
	var others []string
	for other := range n.addresses {
		others = append(others, strings.TrimSuffix(other, ":1"))
	}
	n.mu.Unlock()
	n.separate(name, others, off)
}

// separate cuts a replica off from some others, or brings them together again.
func (n *network) separate(name string, others []string, off bool) {
	n.mu.Lock()
	var ending []net.Conn
	for _, other := range others {
		there, back := [2]string{name + ":1", other + ":1"}, [2]string{other + ":1", name + ":1"}
		n.cut[there], n.cut[back] = off, off
		for conn, ends := range n.conns {
			if off && (ends == there || ends == back) {
				ending = append(ending, conn)
			}
		}
	}
	n.mu.Unlock()
	for _, conn := range ending {
		_ = conn.Close()
	}
}

// pipeListener accepts connections that are pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	p := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.close()
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipeListener) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
