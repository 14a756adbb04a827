package southbound

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxBacklog bounds the connections that wait to be accepted; the kernel's own limit
	// applies too.
	maxBacklog = 4096
	// acceptRetry is how long Accept waits while it shares the socket with Pause.
	acceptRetry = 5 * time.Millisecond
)

// Listener is a TCP or unix listener that can be paused. A closed listener
// resets what waits in its queue, and each node that is reset is lost for good;
// one that is paused serves what waits and has newcomers refused, which they try
// again. The server that accepts from it never sees the pause (protocol A2).
type Listener struct {
	socket pausable

	// turning lets one Pause or Resume run at a time.
	turning sync.Mutex

	mu      sync.Mutex
	paused  bool
	closed  bool
	changed chan struct{} // closed and replaced with each change of the fields
	queued  []net.Conn    // accepted by Pause, for Accept to hand out
}

// pausable is a bound socket. Its methods but accept and close are called by one
// goroutine at a time.
type pausable interface {
	accept() (net.Conn, error)
	// pause stops the kernel from accepting and returns what it had accepted.
	pause() ([]net.Conn, error)
	resume() error
	addr() net.Addr
	close() error
}

// Listen binds a listener that is paused: no connection is accepted, not even by
// the kernel, before Resume. The network is "tcp", "tcp4", "tcp6" or "unix".
func Listen(network, address string) (*Listener, error) {
	var socket pausable
	var err error
	if network == "unix" {
		socket, err = newUnixSocket(address)
	} else {
		socket, err = newTCPSocket(network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s %s: %w", network, address, err)
	}
	return &Listener{socket: socket, paused: true, changed: make(chan struct{})}, nil
}

// LimitBacklog bounds the connections that wait to be accepted; it counts from the
// next Resume of a TCP listener on. A pause accepts them all.
func (l *Listener) LimitBacklog(connections int) {
	if socket, ok := l.socket.(*tcpSocket); ok {
		socket.backlog.Store(int32(min(connections, maxBacklog)))
	}
}

// Addr returns the bound address.
func (l *Listener) Addr() net.Addr { return l.socket.addr() }

// Paused reports whether newcomers are refused.
func (l *Listener) Paused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused
}

// Pause makes the kernel refuse newcomers. Connections that it had accepted
// already are still handed out by Accept. The address stays bound.
func (l *Listener) Pause() error {
	l.turning.Lock()
	defer l.turning.Unlock()
	if l.Paused() {
		return nil
	}
	queued, err := l.socket.pause()
	l.change(func() {
		l.queued = append(l.queued, queued...)
		l.paused = err == nil
	})
	return err
}

// Resume accepts newcomers again.
func (l *Listener) Resume() error {
	l.turning.Lock()
	defer l.turning.Unlock()
	if !l.Paused() {
		return nil
	}
	if err := l.socket.resume(); err != nil {
		return err
	}
	l.change(func() { l.paused = false })
	return nil
}

func (l *Listener) change(how func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Accept returns the next connection. While the listener is paused and nothing
// is queued it blocks.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.wait()
		if conn != nil || err != nil {
			return conn, err
		}
		conn, err = l.socket.accept()
		if err == nil {
			return conn, nil
		}
		if !l.interrupted(err) {
			return nil, err
		}
	}
}

// wait blocks while the listener is paused. It returns what Pause left, or the
// error of a closed listener, or neither when it is the socket's turn.
func (l *Listener) wait() (net.Conn, error) {
	for {
		conn, changed, err := l.look()
		if conn != nil || err != nil || changed == nil {
			return conn, err
		}
		<-changed
	}
}

// look returns a channel if there is nothing to do until it is closed.
func (l *Listener) look() (net.Conn, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.queued) > 0:
		conn := l.queued[0]
		l.queued = l.queued[1:]
		return conn, nil, nil
	case l.closed:
		return nil, nil, net.ErrClosed
	case l.paused:
		return nil, l.changed, nil
	}
	return nil, nil, nil
}

// interrupted reports whether an error of accept is that of a pause, which may
// not be complete yet.
func (l *Listener) interrupted(err error) bool {
	l.mu.Lock()
	changed, paused, closed := l.changed, l.paused, l.closed
	l.mu.Unlock()
	if paused || closed {
		return true // wait tells which
	}
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, net.ErrClosed) {
		return false
	}
	timer := time.NewTimer(acceptRetry)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
	return true
}

// Close closes the socket; what waits in its queue is reset, so pause it first.
func (l *Listener) Close() error {
	l.turning.Lock()
	defer l.turning.Unlock()
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	err := l.socket.close()
	l.change(func() { l.closed = true })
	return err
}

// tcpSocket is one file descriptor that lives as long as the listener.
type tcpSocket struct {
	*net.TCPListener
	backlog atomic.Int32 // 0: as many as may be
}

// newTCPSocket binds without listening: the standard library does both at once.
func newTCPSocket(network, address string) (*tcpSocket, error) {
	resolved, err := net.ResolveTCPAddr(network, address)
	if err != nil {
		return nil, err
	}
	if resolved.Port != 0 {
		return bindTCP(network, resolved)
	}
	// The kernel takes a port that it chose back when the socket is shut down;
	// one that was asked for stays. So it only chooses, and holds the port until
	// it was asked for.
	choice, err := bindTCP(network, resolved)
	if err != nil {
		return nil, err
	}
	defer func() { _ = choice.close() }()
	if err := control(choice.TCPListener, func(fd int) error { return shareAddress(fd, true) }); err != nil {
		return nil, err
	}
	resolved.Port = choice.addr().(*net.TCPAddr).Port
	return bindTCP(network, resolved)
}

func bindTCP(network string, address *net.TCPAddr) (*tcpSocket, error) {
	family, sockaddr := tcpSockaddr(network, address)
	fd, err := openSocket(family)
	if err != nil {
		return nil, err
	}
	if err := bind(fd, family, network, sockaddr); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	listener, err := adopt(fd)
	if err != nil {
		return nil, err
	}
	return &tcpSocket{TCPListener: listener.(*net.TCPListener)}, nil
}

// tcpSockaddr chooses one socket for both families where the address allows it.
func tcpSockaddr(network string, address *net.TCPAddr) (int, syscall.Sockaddr) {
	ip4 := address.IP.To4()
	wildcard := len(address.IP) == 0 || address.IP.IsUnspecified() && ip4 == nil
	if network == "tcp4" || (ip4 != nil && network != "tcp6") || (wildcard && !hasIPv6()) {
		sockaddr := &syscall.SockaddrInet4{Port: address.Port}
		copy(sockaddr.Addr[:], ip4)
		return syscall.AF_INET, sockaddr
	}
	sockaddr := &syscall.SockaddrInet6{Port: address.Port}
	copy(sockaddr.Addr[:], address.IP.To16())
	if zone, err := net.InterfaceByName(address.Zone); err == nil {
		sockaddr.ZoneId = uint32(zone.Index)
	}
	return syscall.AF_INET6, sockaddr
}

func hasIPv6() bool {
	fd, err := openSocket(syscall.AF_INET6)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

func openSocket(family int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return -1, os.NewSyscallError("setnonblock", err)
	}
	return fd, nil
}

func bind(fd, family int, network string, address syscall.Sockaddr) error {
	if family == syscall.AF_INET6 {
		only := 0
		if network == "tcp6" {
			only = 1
		}
		if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, only); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	// Connections of an earlier process may still be closing.
	if err := shareAddress(fd, true); err != nil {
		return err
	}
	if err := syscall.Bind(fd, address); err != nil {
		return os.NewSyscallError("bind", err)
	}
	// While it does not listen, another process that shares could listen here.
	return shareAddress(fd, false)
}

func shareAddress(fd int, share bool) error {
	value := 0
	if share {
		value = 1
	}
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, value))
}

// adopt makes a listener of a bound socket, which it owns then.
func adopt(fd int) (net.Listener, error) {
	file := os.NewFile(uintptr(fd), "listener")
	defer func() { _ = file.Close() }()
	return net.FileListener(file)
}

func (t *tcpSocket) accept() (net.Conn, error) { return t.Accept() }
func (t *tcpSocket) addr() net.Addr            { return t.Addr() }
func (t *tcpSocket) close() error              { return t.Close() }

// pause shrinks the backlog so that the queue cannot fill again while it is
// emptied; only then is the socket shut down, which resets what is queued.
func (t *tcpSocket) pause() ([]net.Conn, error) {
	var queued []net.Conn
	err := control(t.TCPListener, func(fd int) error {
		if err := syscall.Listen(fd, 0); err != nil {
			return os.NewSyscallError("listen", err)
		}
		queued = acceptAll(fd)
		if err := syscall.Shutdown(fd, syscall.SHUT_RD); err != nil {
			return os.NewSyscallError("shutdown", err)
		}
		return shareAddress(fd, false)
	})
	return queued, err
}

func (t *tcpSocket) resume() error {
	return control(t.TCPListener, func(fd int) error {
		// Its own open connections are on the same port.
		if err := shareAddress(fd, true); err != nil {
			return err
		}
		return os.NewSyscallError("listen", syscall.Listen(fd, cmp.Or(int(t.backlog.Load()), maxBacklog)))
	})
}

func control(conn syscall.Conn, use func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var used error
	if err := raw.Control(func(fd uintptr) { used = use(int(fd)) }); err != nil {
		return err
	}
	return used
}

// acceptAll empties the queue of a socket that does not block.
func acceptAll(listener int) []net.Conn {
	var conns []net.Conn
	for {
		syscall.ForkLock.RLock()
		fd, _, err := syscall.Accept(listener)
		if err == nil {
			syscall.CloseOnExec(fd)
		}
		syscall.ForkLock.RUnlock()
		switch {
		case err == nil:
			if conn := adoptConn(fd); conn != nil {
				conns = append(conns, conn)
			}
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNABORTED):
		default:
			return conns
		}
	}
}

func adoptConn(fd int) net.Conn {
	file := os.NewFile(uintptr(fd), "connection")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil
	}
	return conn
}
