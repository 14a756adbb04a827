package southbound

import (
	"net"
	"testing"
)

func TestEndpointOfAllAddressesIsTheOneThatTheNodeCameFrom(t *testing.T) {
	v4 := &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 5000}
	v6 := &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 5000}
	zoned := &net.TCPAddr{IP: net.ParseIP("fe80::7"), Port: 5000, Zone: "eth0"}
	for _, c := range []struct {
		endpoint string
		peer     net.Addr
		want     string
	}{
		{"0.0.0.0:46357", v4, "192.0.2.7:46357"},
		{"[::]:46357", v4, "192.0.2.7:46357"},
		{":46357", v4, "192.0.2.7:46357"},
		{"0.0.0.0:46357", v6, "[2001:db8::7]:46357"},
		{"[::]:46357", v6, "[2001:db8::7]:46357"},
		{"0.0.0.0:46357", zoned, "[fe80::7]:46357"},
		{"10.0.0.1:46357", v6, "10.0.0.1:46357"},
		{"node.example:46357", v6, "node.example:46357"},
		{"http://0.0.0.0:46357", v4, "http://0.0.0.0:46357"},
		{"0.0.0.0", v4, "0.0.0.0"},
		{"0.0.0.0:46357", &net.UnixAddr{Name: "/run/cp.sock"}, "0.0.0.0:46357"},
		{"0.0.0.0:46357", nil, "0.0.0.0:46357"},
	} {
		if got := resolveWildcard(c.endpoint, c.peer); got != c.want {
			t.Errorf("%s from %v: %s, want %s", c.endpoint, c.peer, got, c.want)
		}
	}
}
