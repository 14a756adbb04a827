package southbound_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/southbound"
)

// serve accepts from a listener as gRPC does: any error of Accept ends it.
func serve(t *testing.T, listener net.Listener) (conns <-chan net.Conn, ended <-chan error) {
	t.Helper()
	accepted, failed := make(chan net.Conn, 100), make(chan error, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				failed <- err
				return
			}
			accepted <- conn
		}
	}()
	return accepted, failed
}

func dial(t *testing.T, listener net.Listener) (net.Conn, error) {
	t.Helper()
	conn, err := net.DialTimeout(listener.Addr().Network(), listener.Addr().String(), 5*time.Second)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// exchange proves that a dialled connection is served.
func exchange(t *testing.T, client net.Conn, accepted <-chan net.Conn) {
	t.Helper()
	var server net.Conn
	select {
	case server = <-accepted:
	case <-time.After(10 * time.Second):
		t.Fatal("the connection was not accepted")
	}
	defer func() { _ = server.Close() }()
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
		t.Fatalf("read: %v", err)
	}
}

func listeners(t *testing.T, test func(t *testing.T, listener *southbound.Listener)) {
	t.Helper()
	t.Run("tcp", func(t *testing.T) { test(t, listenTCP(t)) })
	t.Run("unix", func(t *testing.T) {
		listener, err := southbound.Listen("unix", filepath.Join(t.TempDir(), "socket"))
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		test(t, listener)
	})
}

// listenTCP finds a port outside the range that clients are given: a client that
// tries a closed port of that range can connect to itself.
func listenTCP(t *testing.T) *southbound.Listener {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if listener, err := southbound.Listen("tcp", address); err == nil {
			t.Cleanup(func() { _ = listener.Close() })
			return listener
		}
	}
	t.Fatal("no free port")
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestListenerStartsPaused(t *testing.T) {
	listeners(t, func(t *testing.T, listener *southbound.Listener) {
		if _, err := dial(t, listener); err == nil {
			t.Fatal("connected to a listener that was never resumed")
		}
		accepted, _ := serve(t, listener)
		must(t, listener.Resume())
		client, err := dial(t, listener)
		must(t, err)
		exchange(t, client, accepted)
	})
}

func TestPauseServesWhatIsQueued(t *testing.T) {
	listeners(t, func(t *testing.T, listener *southbound.Listener) {
		must(t, listener.Resume())
		var clients []net.Conn
		for range 5 { // nobody accepts yet
			client, err := dial(t, listener)
			must(t, err)
			clients = append(clients, client)
		}
		must(t, listener.Pause())
		if _, err := dial(t, listener); err == nil {
			t.Error("connected while paused")
		}
		accepted, _ := serve(t, listener)
		for _, client := range clients {
			exchange(t, client, accepted)
		}
	})
}

func TestPauseIsHiddenFromTheServer(t *testing.T) {
	listeners(t, func(t *testing.T, listener *southbound.Listener) {
		accepted, ended := serve(t, listener)
		for range 3 {
			must(t, listener.Resume())
			client, err := dial(t, listener)
			must(t, err)
			exchange(t, client, accepted)
			must(t, listener.Pause())
			must(t, listener.Pause())
			if _, err := dial(t, listener); err == nil {
				t.Error("connected while paused")
			}
			if !listener.Paused() {
				t.Error("not paused")
			}
		}
		must(t, listener.Close())
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("accept goes on after close")
		}
	})
}

func TestOpenConnectionsOutliveAPause(t *testing.T) {
	listeners(t, func(t *testing.T, listener *southbound.Listener) {
		must(t, listener.Resume())
		accepted, _ := serve(t, listener)
		client, err := dial(t, listener)
		must(t, err)
		server := <-accepted
		must(t, listener.Pause())
		must(t, listener.Resume())
		held := make(chan net.Conn, 1)
		held <- server
		exchange(t, client, held)
	})
}

func TestPausedPortStaysOurs(t *testing.T) {
	listener := listenTCP(t)
	taken := func(when string) {
		if other, err := net.Listen("tcp", listener.Addr().String()); err == nil {
			_ = other.Close()
			t.Errorf("%s another listener got the port", when)
		}
	}
	taken("before the first resume")
	must(t, listener.Resume())
	taken("while it listens")
	client, err := dial(t, listener)
	must(t, err)
	accepted, _ := serve(t, listener)
	exchange(t, client, accepted)
	must(t, listener.Pause())
	taken("while it is paused")
	must(t, listener.Resume())
}

func TestPortThatTheKernelChoseStays(t *testing.T) {
	listener, err := southbound.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	accepted, _ := serve(t, listener)
	address := listener.Addr().String()
	for range 3 {
		must(t, listener.Resume())
		if listener.Addr().String() != address {
			t.Fatalf("address changed from %s to %s", address, listener.Addr())
		}
		client, err := dial(t, listener)
		must(t, err)
		exchange(t, client, accepted)
		must(t, listener.Pause())
	}
}

func TestListenOnATakenAddress(t *testing.T) {
	listeners(t, func(t *testing.T, listener *southbound.Listener) {
		must(t, listener.Resume())
		other, err := southbound.Listen(listener.Addr().Network(), listener.Addr().String())
		if err == nil {
			_ = other.Close()
			t.Error("no error")
		}
	})
}
