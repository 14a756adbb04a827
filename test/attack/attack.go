// Package attack is what strangers may do to a port of a replica: each attack is
// bounded in connections, bytes and time, and goes to loopback addresses only.
package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// method is the stream of nodes.
const method = "/controller.proto.v1.ControllerService/OpenControlChannel"

// errRemote: attacks stay on this machine.
var errRemote = errors.New("not a loopback address")

// Attack is one of them. Run lasts until the context ends.
type Attack struct {
	Name string
	Run  func(ctx context.Context, endpoint string) error
}

// All returns the attacks on a southbound port.
func All() []Attack {
	return []Attack{
		{"compressed entries", everyone(2, compressedEntries)},
		{"empty entries", everyone(8, emptyEntries)},
		{"unfinished messages", everyone(20, unfinishedMessage)},
		{"headers", everyone(4, manyHeaders)},
		{"idle connections", everyone(400, idle)},
	}
}

// everyone runs one client's part many times at once.
func everyone(clients int, part func(ctx context.Context, endpoint string) error) func(context.Context, string) error {
	return func(ctx context.Context, endpoint string) error {
		host, _, err := net.SplitHostPort(endpoint)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("%w: %s", errRemote, endpoint)
		}
		var running sync.WaitGroup
		for range clients {
			running.Go(func() { _ = part(ctx, endpoint) }) // what it is answered does not matter
		}
		running.Wait()
		return nil
	}
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// stalling is a connection on which nothing is written beyond a number of bytes.
type stalling struct {
	net.Conn
	left   int
	closed <-chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if len(p) >= s.left {
		<-s.closed
		return 0, net.ErrClosed
	}
	s.left -= len(p)
	return s.Conn.Write(p)
}

// dial connects a gRPC client that writes at most so many bytes; 0: as many as it
// likes.
func dial(ctx context.Context, endpoint string, most int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(dialCtx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(dialCtx, "tcp", address)
			if err != nil || most == 0 {
				return conn, err
			}
			return &stalling{Conn: conn, left: most, closed: ctx.Done()}, nil
		}))
}

// register opens a stream, sends one message and waits for the end of the stream or
// of the context.
func register(ctx context.Context, endpoint string, message []byte, most int, options ...grpc.CallOption) error {
	conn, err := dial(ctx, endpoint, most)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	options = append(options, grpc.ForceCodecV2(raw{}))
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, options...)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(message); err != nil {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(nil)
	}
	return err
}

// registration is one with so many empty connections.
func registration(connections int) []byte {
	entries := strings.Repeat(string(protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), nil)), connections)
	return protowire.AppendString(protowire.AppendTag(nil, 8, protowire.BytesType), entries)
}

// again repeats a part until the context ends.
func again(ctx context.Context, part func() error) error {
	for ctx.Err() == nil {
		_ = part()
	}
	return ctx.Err()
}

func compressedEntries(ctx context.Context, endpoint string) error {
	message := registration(30_000_000)
	return again(ctx, func() error { return register(ctx, endpoint, message, 0, grpc.UseCompressor(gzip.Name)) })
}

func emptyEntries(ctx context.Context, endpoint string) error {
	message := registration(1_500_000)
	return again(ctx, func() error { return register(ctx, endpoint, message, 0) })
}

// unfinishedMessage never sends the end of a large registration.
func unfinishedMessage(ctx context.Context, endpoint string) error {
	message := registration(30_000_000)
	return again(ctx, func() error { return register(ctx, endpoint, message, 60_000_000) })
}

// manyHeaders opens streams with as much metadata as is allowed, and says nothing.
func manyHeaders(ctx context.Context, endpoint string) error {
	conn, err := dial(ctx, endpoint, 0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-large", strings.Repeat("x", 60<<10))
	for range 500 {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			break
		}
		go func() { _ = stream.RecvMsg(nil) }()
	}
	<-ctx.Done()
	return ctx.Err()
}

func idle(ctx context.Context, endpoint string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	<-ctx.Done()
	return ctx.Err()
}
