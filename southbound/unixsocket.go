package southbound

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// unixSocket is a new socket after each pause: one that was shut down never
// accepts again. While it is paused the path does not exist.
type unixSocket struct {
	path string

	mu       sync.Mutex
	listener *net.UnixListener // nil while it is paused
}

// staleDialTimeout bounds the question whether somebody listens on a socket.
const staleDialTimeout = time.Second

// newUnixSocket takes over a path that nobody serves.
func newUnixSocket(path string) (*unixSocket, error) {
	if err := RemoveStaleSocket(path); err != nil {
		return nil, err
	}
	return &unixSocket{path: path}, nil
}

// RemoveStaleSocket removes a Unix socket that a process which was killed left behind.
// One on which somebody listens, be it too busy to answer, stays, and so does any other
// file: the error is EADDRINUSE.
func RemoveStaleSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return syscall.EADDRINUSE
	}
	conn, err := net.DialTimeout("unix", path, staleDialTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return syscall.EADDRINUSE
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return syscall.EADDRINUSE
}

func (u *unixSocket) addr() net.Addr { return &net.UnixAddr{Name: u.path, Net: "unix"} }

func (u *unixSocket) current() *net.UnixListener {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.listener
}

func (u *unixSocket) accept() (net.Conn, error) {
	listener := u.current()
	if listener == nil {
		return nil, net.ErrClosed
	}
	return listener.Accept()
}

// pause takes the path away first, so that the queue cannot fill again.
func (u *unixSocket) pause() ([]net.Conn, error) {
	listener := u.current()
	if err := os.Remove(u.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var queued []net.Conn
	if err := control(listener, func(fd int) error {
		queued = acceptAll(fd)
		return nil
	}); err != nil {
		return nil, err
	}
	u.mu.Lock()
	u.listener = nil
	u.mu.Unlock()
	return queued, listener.Close()
}

func (u *unixSocket) resume() error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: u.path, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.listener = listener
	return nil
}

func (u *unixSocket) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.listener == nil {
		return nil
	}
	err := u.listener.Close()
	u.listener = nil
	return errors.Join(err, os.Remove(u.path))
}
