//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// stubAnswer bounds each wait for something that a node says to the stub.
const stubAnswer = 15 * time.Second

// acknowledgingServer is the smallest control plane that begins a stream with
// an Ack, as slim-cp does to send its headers (protocol A4).
type acknowledgingServer struct {
	controllerpb.UnimplementedControllerServiceServer
	registered chan *controllerpb.RegisterNodeRequest
	listed     chan *controllerpb.ConnectionListResponse
}

func (s *acknowledgingServer) OpenControlChannel(stream grpc.BidiStreamingServer[controllerpb.ControlMessage, controllerpb.ControlMessage]) error {
	if err := stream.Send(&controllerpb.ControlMessage{
		MessageId: "initial-ack",
		Payload:   &controllerpb.ControlMessage_Ack{Ack: &controllerpb.Ack{Success: true}},
	}); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	request := first.GetRegisterNodeRequest()
	if request == nil {
		return fmt.Errorf("the first message is %T", first.GetPayload())
	}
	s.registered <- request
	err = errors.Join(
		stream.Send(&controllerpb.ControlMessage{
			MessageId: "registered",
			Payload: &controllerpb.ControlMessage_RegisterNodeResponse{RegisterNodeResponse: &controllerpb.RegisterNodeResponse{
				OriginalMessageId: first.GetMessageId(), Success: true,
			}},
		}),
		stream.Send(&controllerpb.ControlMessage{
			MessageId: "list",
			Payload:   &controllerpb.ControlMessage_ConnectionListRequest{ConnectionListRequest: &controllerpb.ConnectionListRequest{}},
		}))
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		if answer := message.GetConnectionListResponse(); answer.GetOriginalMessageId() == "list" {
			s.listed <- answer
		}
	}
}

// A node neither takes the initial Ack for an answer to its registration nor
// is disturbed by it: it registers, and obeys from then on.
func TestNodeSkipsInitialAck(t *testing.T) {
	stub := &acknowledgingServer{
		registered: make(chan *controllerpb.RegisterNodeRequest, 1),
		listed:     make(chan *controllerpb.ConnectionListResponse, 1),
	}
	server := grpc.NewServer()
	controllerpb.RegisterControllerServiceServer(server, stub)
	controlPlane := process.Loopback(process.FreePort(t))
	listener, err := net.Listen("tcp", controlPlane)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	n := startNode(t, nodeSpec{group: "a", id: "node-a", port: process.FreePort(t), controlPlane: controlPlane, release: nextRelease()})
	ctx, cancel := context.WithTimeout(t.Context(), stubAnswer)
	defer cancel()
	request := receive(ctx, t, stub.registered, "registration")
	if request.GetNodeId() != n.id || request.GetDomainName() != n.group {
		t.Errorf("registered as node %q of group %q, configured as %q of %q", request.GetNodeId(), request.GetDomainName(), n.id, n.group)
	}
	list := receive(ctx, t, stub.listed, "answer to the connection list request")
	if !list.GetDone() {
		t.Errorf("the list of a node without links came in parts: %v", list)
	}
}

func receive[T any](ctx context.Context, t *testing.T, from <-chan T, what string) T {
	t.Helper()
	var value T
	select {
	case value = <-from:
	case <-ctx.Done():
		t.Fatalf("no %s within %v", what, stubAnswer)
	}
	return value
}
