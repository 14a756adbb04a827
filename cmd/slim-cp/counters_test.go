package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/budget"
)

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Operators whose connections wait find the reason in the log.
func TestOperatorsOverTheirLimitAreLogged(t *testing.T) {
	const limit = 4
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := budget.NewConnections(limit, 0)
	listener := conns.Listen(inner)
	defer func() { _ = listener.Close() }()
	log := &lockedBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { watchOperators(ctx, conns, limit, hclog.New(&hclog.LoggerOptions{Output: log})) })
	for range limit {
		client, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "limit=4"); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log is %q", log)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 {
		t.Errorf("%d lines:\n%s", lines, log)
	}
}
