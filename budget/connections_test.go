package budget_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/slim-cp/slim-cp/budget"
)

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn, 1024), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.done); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// connect dials and accepts. The client's end is closed with the test.
func (p *pipes) connect(t *testing.T, listener net.Listener) (client, server net.Conn) {
	t.Helper()
	client, inner := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	p.conns <- inner
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// call is the context of a call over a connection.
func call(conn net.Conn) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr()})
}

// isClosed reports whether the other end has closed a connection.
func isClosed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !isTimeout(err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestIdleConnectionsGo: connections without a stream make Full true, and go after
// 20 s, so that it is false again. Whoever has a stream stays.
func TestIdleConnectionsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, conns := newPipes(), budget.NewConnections(16, 0)
		listener := conns.Listen(inner)
		client, server := inner.connect(t, listener)
		release := budget.Hold(call(server))
		var idle []net.Conn
		for len(idle) < 11 {
			if conns.Full() {
				t.Fatalf("full with %d connections", len(idle)+1)
			}
			dialled, _ := inner.connect(t, listener)
			idle = append(idle, dialled)
		}
		if !conns.Full() {
			t.Fatal("12 of 16 connections, and newcomers are not sent elsewhere")
		}
		<-conns.Changed()
		if got := 16 - 12; conns.Reserve() != got {
			t.Errorf("reserve %d, want %d", conns.Reserve(), got)
		}
		<-time.After(15 * time.Second)
		if isClosed(idle[0]) {
			t.Error("a connection was closed before its 20 s were over")
		}
		<-time.After(7 * time.Second)
		for i, conn := range idle {
			if !isClosed(conn) {
				t.Errorf("idle connection %d is still open", i)
			}
		}
		if conns.Full() || isClosed(client) {
			t.Errorf("full %v, or the connection with a stream was closed", conns.Full())
		}
		if got := conns.Counters(); got.Open != 1 || got.Idle != 11 || got.Full != 1 {
			t.Errorf("counters %+v", got)
		}
		release()
		_ = server.Close()
		<-time.After(2 * time.Second) // the last sweep
	})
}

// TestUsedConnectionsGoWhenFull: one that had a stream may be idle, but not while
// others need its place.
func TestUsedConnectionsGoWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, conns := newPipes(), budget.NewConnections(8, 0)
		listener := conns.Listen(inner)
		client, server := inner.connect(t, listener)
		if _, err := budget.Opened(call(server), &tap.Info{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if isClosed(client) {
			t.Fatal("it was closed although there is room")
		}
		for range 5 {
			inner.connect(t, listener)
		}
		<-time.After(2 * time.Second)
		if !isClosed(client) {
			t.Error("it was not closed for those that come")
		}
		<-time.After(time.Minute)
	})
}

// TestAcceptWaitsAtTheLimit: beyond the limit nothing is accepted until one goes.
func TestAcceptWaitsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, conns := newPipes(), budget.NewConnections(2, 0)
		listener := conns.Listen(inner)
		_, first := inner.connect(t, listener)
		inner.connect(t, listener)
		accepted := make(chan net.Conn, 1)
		go func() {
			inner.conns <- func() net.Conn { a, b := net.Pipe(); t.Cleanup(func() { _ = a.Close() }); return b }()
			conn, _ := listener.Accept()
			accepted <- conn
		}()
		synctest.Wait()
		if len(accepted) > 0 {
			t.Fatal("three connections with a limit of two")
		}
		_ = first.Close()
		(<-accepted).Close()
		<-time.After(time.Minute)
	})
}

// send writes bytes and returns how many were taken.
func send(conn net.Conn, bytes int) (sent int) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	sent, _ = conn.Write(make([]byte, bytes))
	return sent
}

// receive reads until the end, as a server that waits for the rest of a message.
func receive(conn net.Conn) {
	go func() {
		defer func() { _ = conn.Close() }()
		buffer := make([]byte, 32<<10)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
		}
	}()
}

// TestUnfinishedBytes: connections that have not registered hold 1 MiB together, and
// a registration of usual size gets through whatever the others hold.
func TestUnfinishedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, conns := newPipes(), budget.NewConnections(100, 1<<20)
		listener := conns.Listen(inner)
		var clients, servers []net.Conn
		total := 0
		for range 20 {
			client, server := inner.connect(t, listener)
			receive(server)
			clients, servers = append(clients, client), append(servers, server)
			total += send(client, 256<<10)
		}
		if most := 1<<20 + 20*64<<10; total > most {
			t.Errorf("20 connections hold %d bytes, want at most %d", total, most)
		}
		small, server := inner.connect(t, listener)
		receive(server)
		if got := send(small, 20<<10); got != 20<<10 {
			t.Errorf("a small registration got %d of its %d bytes through", got, 20<<10)
		}
		budget.Registered(call(servers[0]))
		if got := send(clients[0], 8<<20); got != 8<<20 {
			t.Errorf("a registered node got %d of its 8 MiB through", got)
		}
		<-time.After(time.Minute) // the others have no stream
		if got := conns.Counters(); got.Unfinished != 0 || got.Held == 0 || got.Open != 1 {
			t.Errorf("counters %+v", got)
		}
		_ = servers[0].Close()
		<-time.After(2 * time.Second)
	})
}

// TestTooMuchBeforeRegistration: 4 MiB are read from a connection, and headers count
// as what they take.
func TestTooMuchBeforeRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, conns := newPipes(), budget.NewConnections(100, 1<<30)
		listener := conns.Listen(inner)
		client, server := inner.connect(t, listener)
		receive(server)
		if got := send(client, 16<<20); got > budget.MaxBeforeRegistration+64<<10 {
			t.Errorf("%d bytes were read", got)
		}
		if !isClosed(client) || conns.Counters().TooMuch != 1 {
			t.Errorf("the connection is still open: %+v", conns.Counters())
		}
		_, server = inner.connect(t, listener)
		headers := metadata.MD{"a": make([]string, 1000)}
		streams := 0
		for ; streams < 1000; streams++ {
			if _, err := budget.Opened(call(server), &tap.Info{Header: headers}); err != nil {
				break
			}
		}
		if streams > 200 {
			t.Errorf("%d streams with a thousand headers each", streams)
		}
		<-time.After(time.Minute)
		_ = server.Close()
		<-time.After(time.Minute)
	})
}
