package southbound_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/slim-cp/slim-cp/southbound"
)

// A process that listens and is too busy to accept keeps its socket.
func TestABusySocketIsNotStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	busy := unixStream(t)
	if err := errors.Join(syscall.Bind(busy, &syscall.SockaddrUnix{Name: path}), syscall.Listen(busy, 0)); err != nil {
		t.Fatal(err)
	}
	for full := false; !full; {
		client := unixStream(t)
		switch err := syscall.Connect(client, &syscall.SockaddrUnix{Name: path}); {
		case errors.Is(err, syscall.EAGAIN):
			full = true
		case err != nil:
			t.Fatal(err)
		}
	}
	if listener, err := southbound.Listen("unix", path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen: %v, %v", listener, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func unixStream(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}
