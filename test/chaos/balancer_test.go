//go:build chaos

package chaos_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// balance opens a TCP balancer for the nodes, until the test ends: it passes each
// connection on to one of the backends that accepts it. It looks at nothing but TCP,
// as most load balancers in front of TLS do.
func balance(tb testing.TB, endpoint string, backends func() []string) {
	tb.Helper()
	listener, err := net.Listen("tcp", endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { forward(ctx, client, backends()) })
		}
	})
	tb.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
}

// forward passes one connection on, to a backend by chance.
func forward(ctx context.Context, client net.Conn, backends []string) {
	defer func() { _ = client.Close() }()
	order := slices.Clone(backends)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, backend := range order {
		server, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", backend)
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
		var copying sync.WaitGroup
		both := func() { _, _ = client.Close(), server.Close() }
		copying.Go(func() { defer both(); _, _ = io.Copy(server, client) })
		copying.Go(func() { defer both(); _, _ = io.Copy(client, server) })
		copying.Wait()
		stop()
		return
	}
}
