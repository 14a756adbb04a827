package peer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// B-65: whoever reaches the port, and has no certificate, keeps nobody else out.
func TestStrangersKeepNoMemberOut(t *testing.T) {
	secure := newSecurity(t)
	for _, c := range []struct {
		name  string
		hosts []string // of the strangers; the member's is 127.0.0.1
		says  string
		security
	}{
		{"silent, on the member's host", []string{"127.0.0.1"}, "", secure},
		{"silent, on the member's host, without TLS", []string{"127.0.0.1"}, "", security{}},
		{"begins TLS, on the member's host", []string{"127.0.0.1"}, "\x16", secure},
		{"begins a hello, on the member's host", []string{"127.0.0.1"}, "scp1", security{}},
		{"silent, on another host", []string{"127.0.0.2"}, "", secure},
		{"begins TLS, on three hosts", []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"}, "\x16", secure},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener := listen(t)
			go discard(open(t, "a", listener, c.security).Raft())
			member := open(t, "b", listen(t), c.security)
			attack(t, c.hosts, listener.Addr().String(), max(600, 360*len(c.hosts)), []byte(c.says))
			for try := range 10 {
				if err := reach(t.Context(), member, listener.Addr().String()); err != nil {
					t.Fatalf("try %d: %v", try, err)
				}
			}
		})
	}
}

// reach connects as Raft does, which gives up after a second and tries again.
func reach(ctx context.Context, from *peer.Port, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		conn, _, err := from.Dial(attempt, raftKind, address)
		cancel()
		switch {
		case err == nil:
			return conn.Close()
		case ctx.Err() != nil:
			return err
		}
	}
}

// A slow connection is not closed because another host opens many.
func TestOneHostDoesNotCrowdOutAnother(t *testing.T) {
	listener := listen(t)
	port := open(t, "a", listener, security{})
	go discard(port.RPC())
	slow, err := dialFrom(t.Context(), "127.0.0.2", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	var oldest net.Conn
	for i := range 600 {
		conn, err := dialFrom(t.Context(), "127.0.0.3", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if i == 0 {
			oldest = conn
		}
	}
	// The first of the many had to make room, long before its time was over.
	_ = oldest.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest of 600 connections from one host: %v", err)
	}
	_ = slow.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := slow.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("a connection from another host: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// pipes accepts connections that are pipes: a bubble has no network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func() // closes closed
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close()
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A hello has two seconds, also if it comes byte by byte.
func TestUnfinishedHelloIsClosed(t *testing.T) {
	for name, says := range map[string]string{"nothing": "", "some of it": "scp1\x00\x00\x01\x00some"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := newPipes()
				port := open(t, "a", listener, security{})
				near, far := net.Pipe()
				began := time.Now()
				listener.conns <- far
				for _, b := range []byte(says) {
					if _, err := near.Write([]byte{b}); err != nil {
						t.Fatal(err)
					}
					<-time.After(100 * time.Millisecond)
				}
				_, err := near.Read(make([]byte, 1))
				if took := time.Since(began); err == nil || took != 2*time.Second {
					t.Errorf("closed after %s: %v", took, err)
				}
				_ = port.Close()
			})
		})
	}
}

// A hello is bounded, so that a stranger's claim of its size costs no memory.
func TestHelloIsBounded(t *testing.T) {
	listener := listen(t)
	open(t, "a", listener, security{})
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("scp1\x7f\xff\xff\xff")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // less than a hello has
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a hello of 2 GiB: %v", err)
	}
}

// What nobody takes is bounded, and does not keep the other kind waiting.
func TestUntakenConnectionsAreBounded(t *testing.T) {
	listener := listen(t)
	a, b := open(t, "a", listener, security{}), open(t, "b", listen(t), security{})
	dial := func(kind slimcppb.ConnectionKind) net.Conn {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, _, err := b.Dial(ctx, kind, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	const connections = 65
	closed := make(chan struct{}, connections)
	for range connections {
		conn := dial(raftKind)
		go func() {
			_, _ = conn.Read(make([]byte, 1)) // nobody writes: it returns at the end
			closed <- struct{}{}
		}()
	}
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("the 65th connection that nobody takes stays open")
	}
	dial(rpcKind)
	if _, err := a.RPC().Accept(); err != nil {
		t.Error(err)
	}
}

// Close ends everything that a port began: unfinished hellos, connections that
// nobody took, and those that others have, on both sides.
func TestCloseLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	secure := newSecurity(t)
	listener := listen(t)
	a, b := open(t, "a", listener, secure), open(t, "b", listen(t), secure)
	address := listener.Addr().String()
	var conns []net.Conn
	for range 10 {
		idle, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, idle)
	}
	for _, kind := range []slimcppb.ConnectionKind{raftKind, rpcKind, rpcKind} {
		conn, _, err := b.Dial(t.Context(), kind, address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	taken, err := a.RPC().Accept()
	if err != nil {
		t.Fatal(err)
	}
	conns = append(conns, taken)
	began := time.Now()
	for _, port := range []*peer.Port{a, b} {
		if err := port.Close(); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("closing took %s", took)
	}
	for i, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("connection %d: %v", i, err)
		}
		_ = conn.Close()
	}
	if _, _, err := b.Dial(t.Context(), rpcKind, address); !errors.Is(err, peer.ErrClosed) {
		t.Errorf("dialling from a closed port: %v", err)
	}
}

// A replica that is met in a later start has nothing more to do with the connections of
// earlier ones, whoever opened them.
func TestConnectionsOfEarlierStartsAreClosed(t *testing.T) {
	here, there := listen(t), listen(t)
	a, b := open(t, "a", here, security{}), open(t, "b", there, security{})
	dialled, _, err := a.Dial(t.Context(), raftKind, there.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	taken, err := b.Raft().Accept()
	if err != nil {
		t.Fatal(err)
	}
	a.CutEarlier("b", "") // it is that start
	a.CutEarlier("c", "later")
	if _, err := taken.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(dialled, make([]byte, 1)); err != nil {
		t.Fatalf("a connection with the present start: %v", err)
	}
	for name, cut := range map[string]func(){
		"dialled":  func() { a.CutEarlier("b", "later") },
		"accepted": func() { b.CutEarlier("a", "later") },
	} {
		conn, _, err := a.Dial(t.Context(), raftKind, there.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		other, err := b.Raft().Accept()
		if err != nil {
			t.Fatal(err)
		}
		if cut(); name == "accepted" {
			other = conn
		}
		_ = other.SetReadDeadline(time.Now().Add(patience))
		if _, err := other.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: the connection is still open: %v", name, err)
		}
	}
}
