package main

import (
	"net"

	"github.com/slim-cp/slim-cp/southbound"
)

// listenNorth binds a northbound listener. A Unix socket that a process which was killed
// left behind is replaced.
func listenNorth(network, address string) (net.Listener, error) {
	if network == "unix" {
		if err := southbound.RemoveStaleSocket(address); err != nil {
			return nil, err
		}
	}
	return net.Listen(network, address)
}
