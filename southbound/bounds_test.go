package southbound_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// registerAs sends one registration over a connection of its own, and returns how the
// stream ended; nil: it was answered.
func (r *rig) registerAs(ctx context.Context, request *controllerpb.RegisterNodeRequest, options ...grpc.CallOption) error {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///southbound",
		grpc.WithContextDialer(r.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := controllerpb.NewControllerServiceClient(conn).OpenControlChannel(ctx, options...)
	if err != nil {
		return err
	}
	_ = stream.Send(&controllerpb.ControlMessage{
		MessageId: "register", Payload: &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: request},
	})
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		if message.GetRegisterNodeResponse() != nil {
			return nil
		}
	}
}

func usualRegistration() *controllerpb.RegisterNodeRequest {
	group := "a"
	return &controllerpb.RegisterNodeRequest{NodeId: "node-1", DomainName: &group}
}

// TestCompressedMessagesAreRefused: 64 KB of gzip may be 64 MiB, and nodes never
// compress.
func TestCompressedMessagesAreRefused(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		err := r.registerAs(t.Context(), usualRegistration(), grpc.UseCompressor(gzip.Name))
		if err == nil || !strings.Contains(err.Error(), "compressed messages are not taken") {
			t.Errorf("a compressed registration: %v", err)
		}
		if err := r.registerAs(t.Context(), usualRegistration()); err != nil {
			t.Errorf("the same one as it is: %v", err)
		}
	})
}

// TestManyEmptyConnectionsAreRefused: two bytes each become a hundred in memory.
func TestManyEmptyConnectionsAreRefused(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		request := usualRegistration()
		for range 200_000 {
			request.Connections = append(request.Connections, &controllerpb.ConnectionEntry{})
		}
		err := r.registerAs(t.Context(), request)
		if err == nil || !strings.Contains(err.Error(), "too many entries") {
			t.Errorf("a registration of 200,000 empty connections: %v", err)
		}
	})
}

func TestHeadersAreBounded(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		for size, want := range map[int]codes.Code{16 << 10: codes.OK, 128 << 10: codes.Internal} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-large", strings.Repeat("x", size))
			if err := r.registerAs(ctx, usualRegistration()); status.Code(err) != want {
				t.Errorf("%d bytes of metadata: %v, want %v", size, err, want)
			}
		}
	})
}

// TestUnregisteredStreamsAreBounded: beyond a thousand streams that have said nothing a
// newcomer waits for its headers, and is not refused (protocol A7).
func TestUnregisteredStreamsAreBounded(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		conn, err := grpc.NewClient("passthrough:///southbound",
			grpc.WithContextDialer(r.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		for range 1000 {
			stream, err := controllerpb.NewControllerServiceClient(conn).OpenControlChannel(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Header(); err != nil {
				t.Fatal(err)
			}
		}
		registered := make(chan error, 1)
		go func() { registered <- r.registerAs(t.Context(), usualRegistration()) }()
		synctest.Wait()
		if r.service.Stats().HeldBack != 1 {
			t.Error("no stream was held back")
		}
		if len(registered) > 0 {
			t.Fatalf("it does not wait: %v", <-registered)
		}
		hangUp()
		if err := <-registered; err != nil {
			t.Errorf("it was not registered when there was room: %v", err)
		}
		if got := r.logs.lines("wait for their headers"); len(got) != 1 {
			t.Errorf("the log says it in %d lines", len(got))
		}
	})
}
