package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// Ports for tests stay below the ephemeral range, which starts at 32768: a
// client that retries a closed ephemeral port on its own host can connect to
// itself.
const (
	firstPort = 20000
	portCount = 12000
)

// lastPort counts the ports tried by this process, so that none is handed out
// twice; the random start keeps test processes that run at once apart.
var lastPort atomic.Uint32

func init() { lastPort.Store(rand.Uint32N(portCount)) }

// FreePort returns a TCP port of 127.0.0.1 that nothing listens on.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range portCount {
		port := firstPort + int(lastPort.Add(1)%portCount)
		listener, err := net.Listen("tcp", Loopback(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			tb.Fatalf("close the listener on port %d: %v", port, err)
		}
		return port
	}
	tb.Fatalf("no free port from %d to %d", firstPort, firstPort+portCount-1)
	return 0
}

// Loopback returns the address of a port on this host.
func Loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
