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

// forward passes one connection on, to a backend by chance. While none accepts the
// node waits: a balancer that closed the connection would lose it (protocol A1).
func forward(ctx context.Context, client net.Conn, backends []string) {
	defer func() { _ = client.Close() }()
	server := reachOne(ctx, backends)
	if server == nil {
		return
	}
	end := func() { _, _ = client.Close(), server.Close() }
	defer context.AfterFunc(ctx, end)()
	var copying sync.WaitGroup
	copying.Go(func() { defer end(); _, _ = io.Copy(server, client) })
	copying.Go(func() { defer end(); _, _ = io.Copy(client, server) })
	copying.Wait()
}

func reachOne(ctx context.Context, backends []string) net.Conn {
	order := slices.Clone(backends)
	for ctx.Err() == nil {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, backend := range order {
			if server, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", backend); err == nil {
				return server
			}
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
	return nil
}
