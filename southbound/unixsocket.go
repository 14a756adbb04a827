package southbound

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
)

// unixSocket is a new socket after each pause: one that was shut down never
// accepts again. While it is paused the path does not exist.
type unixSocket struct {
	path string

	mu       sync.Mutex
	listener *net.UnixListener // nil while it is paused
}

// newUnixSocket takes over a path that nobody serves.
func newUnixSocket(path string) (*unixSocket, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, syscall.EADDRINUSE
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, syscall.EADDRINUSE
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return &unixSocket{path: path}, nil
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
