package budget

import (
	"net"
	"sync"
)

// listener counts what it accepts.
type listener struct {
	net.Listener
	of        *Connections
	closeOnce sync.Once
	closed    chan struct{}
}

// Listen returns a listener whose connections count. At the limit it accepts
// nothing, so that descriptors are left for others.
func (c *Connections) Listen(inner net.Listener) net.Listener {
	return &listener{Listener: inner, of: c, closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.of.waitRoom(l.closed)
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.of.add(conn), nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
