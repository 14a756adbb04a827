package main

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// staleDialTimeout bounds the question whether somebody listens on a socket.
const staleDialTimeout = time.Second

// listenNorth binds a northbound listener. A socket that a process which was killed
// left behind is removed; one on which somebody listens, or any other file, stays.
func listenNorth(network, address string) (net.Listener, error) {
	if network == "unix" {
		if err := removeStaleSocket(address); err != nil {
			return nil, err
		}
	}
	return net.Listen(network, address)
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil // listening says what is wrong, if anything is
	}
	conn, err := net.DialTimeout("unix", path, staleDialTimeout)
	if err == nil {
		return conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return os.Remove(path)
}
