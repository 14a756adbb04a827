package budget

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Conn is a connection that counts. Its RemoteAddr leads back to it.
type Conn struct {
	net.Conn
	of        *Connections
	closeOnce sync.Once
	closed    chan struct{}
	trusted   chan struct{} // closed with the first registration

	// Guarded by of.mu.
	opened     time.Time // or when the last stream was
	used       bool      // it had a stream
	streams    int       // that are held
	registered bool
	read       int // bytes before a registration
	charged    int // of them to the bound of all
}

// Addr is the remote address of a Conn.
type Addr struct {
	net.Addr
	conn *Conn
}

// RemoteAddr returns an Addr, which gRPC hands to interceptors and handlers.
func (c *Conn) RemoteAddr() net.Addr { return Addr{Addr: c.Conn.RemoteAddr(), conn: c} }

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closeOnce.Do(func() {
		close(c.closed)
		err = c.Conn.Close()
		c.of.remove(c)
	})
	return err
}

// Read implements net.Conn. Before a registration it ends with too many bytes, and
// waits while all connections together hold too much.
func (c *Conn) Read(p []byte) (int, error) {
	select {
	case <-c.trusted:
		return c.Conn.Read(p)
	default:
	}
	if c.of.unfinished == 0 {
		return c.Conn.Read(p)
	}
	if err := c.waitRoom(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.charge(n)
	return n, err
}

// waitRoom blocks while the connection may read nothing.
func (c *Conn) waitRoom() error {
	for held := false; ; held = true {
		c.of.mu.Lock()
		room, over := c.of.room, c.read > MaxBeforeRegistration && !c.registered
		wait := !c.registered && c.read >= freeBytes && c.of.spent >= c.of.unfinished
		if over {
			c.of.counters.TooMuch++
		} else if wait && !held {
			c.of.counters.Held++
		}
		c.of.mu.Unlock()
		switch {
		case over:
			return errTooMuch
		case !wait:
			return nil
		}
		select {
		case <-room:
		case <-c.trusted:
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// charge counts bytes that the connection made this process hold, and reports
// whether it may go on.
func (c *Conn) charge(bytes int) bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if _, open := c.of.open[c]; c.registered || !open {
		return true // a reader may end after the connection
	}
	c.read += bytes
	if beyond := c.read - freeBytes; beyond > c.charged {
		c.of.spent += beyond - c.charged
		c.charged = beyond
	}
	return c.read <= MaxBeforeRegistration
}

// register ends the bounds of a connection: a node has registered on it.
func (c *Conn) register() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.registered {
		return
	}
	c.registered = true
	c.of.giveBack(c)
	c.of.freed()
	close(c.trusted)
}

// hold counts a stream that may stay for long.
func (c *Conn) hold(streams int) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.streams += streams
	c.opened = time.Now()
}

// RemoteAddr returns an address as the network knows it.
func RemoteAddr(addr net.Addr) net.Addr {
	if counted, ok := addr.(Addr); ok {
		return counted.Addr
	}
	return addr
}

// connOf returns the connection that a call came over, nil if it is not counted.
func connOf(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	addr, _ := p.Addr.(Addr)
	return addr.conn
}

// Hold keeps the connection that a call came over from counting as idle until the
// returned function is called.
func Hold(ctx context.Context) (release func()) {
	conn := connOf(ctx)
	if conn == nil {
		return func() {}
	}
	conn.hold(1)
	return func() { conn.hold(-1) }
}

// HoldStream is an interceptor that does so for as long as a stream lasts.
func HoldStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	defer Hold(stream.Context())()
	return handle(server, stream)
}

// Registered ends the bounds of the connection that a call came over.
func Registered(ctx context.Context) {
	if conn := connOf(ctx); conn != nil {
		conn.register()
	}
}

// streamCost is what a stream takes beside its headers, headerCost what one header does
// beside its text, in bytes.
const (
	streamCost = 1 << 10
	headerCost = 32
)

// Opened is a handle for grpc.InTapHandle: it notes that a connection is used, and
// counts what its headers take.
func Opened(ctx context.Context, info *tap.Info) (context.Context, error) {
	conn := connOf(ctx)
	if conn == nil {
		return ctx, nil
	}
	conn.of.mu.Lock()
	conn.used, conn.opened = true, time.Now()
	conn.of.mu.Unlock()
	if conn.of.unfinished > 0 && !conn.charge(streamCost+headersSize(info.Header)) {
		return nil, status.Error(codes.ResourceExhausted, "too much was sent before a registration")
	}
	return ctx, nil
}

func headersSize(headers metadata.MD) int {
	size := 0
	for name, values := range headers {
		size += len(name) + headerCost
		for _, value := range values {
			size += len(value) + headerCost
		}
	}
	return size
}
