package peer

import (
	"net"
	"sync"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxQueued bounds the accepted connections that nobody has taken yet.
const maxQueued = 64

// Conn is a connection behind its hello.
type Conn struct {
	net.Conn
	port   *Port
	peer   *slimcppb.Hello       // who dialled; nil on the side that did
	answer *slimcppb.HelloAnswer // who was dialled; nil on that side
}

// RemoteAddr returns an Addr.
func (c *Conn) RemoteAddr() net.Addr { return Addr{Addr: c.Conn.RemoteAddr(), Hello: c.peer} }

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.port.untrack(c)
	return c.Conn.Close()
}

// Addr is where a connection comes from and which replica it is. gRPC shows it
// to handlers as the peer's address.
type Addr struct {
	net.Addr
	Hello *slimcppb.Hello
}

// incoming is a listener over the connections of one kind.
type incoming struct {
	port      *Port
	conns     chan *Conn
	closed    chan struct{}
	closeOnce sync.Once
}

func newIncoming(p *Port) *incoming {
	return &incoming{port: p, conns: make(chan *Conn, maxQueued), closed: make(chan struct{})}
}

func (i *incoming) put(conn *Conn) {
	select {
	case <-i.closed:
		_ = conn.Close()
		return
	default:
	}
	select {
	case i.conns <- conn:
	default:
		_ = conn.Close()
	}
}

// drain closes what nobody took. Nothing is put any more.
func (i *incoming) drain() {
	for {
		select {
		case conn := <-i.conns:
			_ = conn.Close()
		default:
			return
		}
	}
}

// Accept implements net.Listener.
func (i *incoming) Accept() (net.Conn, error) {
	select {
	case conn := <-i.conns:
		return conn, nil
	case <-i.closed:
		return nil, ErrClosed
	case <-i.port.closing.Done():
		return nil, ErrClosed
	}
}

// Close ends Accept. The port goes on; it closes the connections of this kind.
func (i *incoming) Close() error {
	i.closeOnce.Do(func() { close(i.closed) })
	return nil
}

// Addr implements net.Listener.
func (i *incoming) Addr() net.Addr { return i.port.options.Listener.Addr() }

// Raft returns the listener of the connections for Raft, which are of type *Conn.
func (p *Port) Raft() net.Listener { return p.raft }

// Caller returns the id of the replica that dialled, as it said in its hello.
func (c *Conn) Caller() string { return c.peer.GetReplicaId() }
