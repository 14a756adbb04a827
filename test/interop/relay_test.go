//go:build interop

package interop_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	// messageLimit is what a gRPC end takes unless it is told otherwise. Nothing
	// may be larger; the relay itself takes more, to see it.
	messageLimit   = 4 << 20
	relayLimit     = 64 << 20
	farewellID     = "farewell"
	farewellAnswer = 10 * time.Second
)

// relay stands on the control stream between one real node and the replica. It
// says there what a node never says by itself, that it leaves, and can keep the
// node from its control plane; the rest it passes on and measures.
type relay struct {
	controllerpb.UnimplementedControllerServiceServer
	endpoint string
	target   string // the southbound listener
	replica  controllerpb.ControllerServiceClient
	answered chan struct{} // gets a value when the farewell is answered
	server   *grpc.Server  // nil while the node is refused
	served   chan error    // gets the server's end

	largest       atomic.Int64 // size of the largest message of either direction
	lastAnnounced atomic.Int64 // when the node last announced or withdrew names, in Unix nanoseconds

	mu      sync.Mutex // guards the following field
	current *relayed
}

// relayed is a node's stream on its way through the relay.
type relayed struct {
	leaving atomic.Bool
	mu      sync.Mutex // held while a message is sent to the replica
	up      grpc.BidiStreamingClient[controllerpb.ControlMessage, controllerpb.ControlMessage]
}

// startRelay runs a relay in front of a southbound listener, with TLS towards that
// unless trust is nil.
func startRelay(t *testing.T, southbound string, trust *tls.Config) *relay {
	t.Helper()
	transport := insecure.NewCredentials()
	if trust != nil {
		transport = credentials.NewTLS(trust)
	}
	connection, err := grpc.NewClient("passthrough:///"+southbound,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(relayLimit)))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{
		endpoint: process.Loopback(process.FreePort(t)),
		target:   southbound,
		replica:  controllerpb.NewControllerServiceClient(connection),
		answered: make(chan struct{}, 1),
	}
	r.serve(t)
	t.Cleanup(func() {
		r.refuse(t)
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// serve lets the node connect.
func (r *relay) serve(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", r.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server, served := grpc.NewServer(grpc.MaxRecvMsgSize(relayLimit)), make(chan error, 1)
	controllerpb.RegisterControllerServiceServer(server, r)
	go func() { served <- server.Serve(listener) }()
	r.server, r.served = server, served
}

// refuse ends the node's stream and refuses its connections until the relay
// serves again.
func (r *relay) refuse(t *testing.T) {
	t.Helper()
	if r.server == nil {
		return
	}
	r.server.Stop()
	r.server = nil
	if err := <-r.served; err != nil {
		t.Error(err)
	}
}

// OpenControlChannel passes one stream on.
func (r *relay) OpenControlChannel(down grpc.BidiStreamingServer[controllerpb.ControlMessage, controllerpb.ControlMessage]) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := r.replica.OpenControlChannel(ctx)
	if err != nil {
		return err
	}
	stream := &relayed{up: up}
	r.mu.Lock()
	r.current = stream
	r.mu.Unlock()
	go func() {
		defer cancel()
		for {
			message, err := down.Recv()
			if err != nil {
				return
			}
			if command := message.GetConfigCommand(); len(command.GetRoutesToSet())+len(command.GetRoutesToDelete()) > 0 {
				r.lastAnnounced.Store(time.Now().UnixNano())
			}
			if stream.send(r.measured(message)) != nil {
				return
			}
		}
	}()
	for {
		message, err := up.Recv()
		if err != nil {
			if stream.leaving.Load() {
				// A node that has said farewell does not register again.
				<-down.Context().Done()
			}
			return err
		}
		if message.GetDeregisterNodeResponse().GetOriginalMessageId() == farewellID {
			r.answered <- struct{}{}
			continue
		}
		if err := down.Send(r.measured(message)); err != nil {
			return err
		}
	}
}

func (s *relayed) send(message *controllerpb.ControlMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up.Send(message)
}

func (r *relay) measured(message *controllerpb.ControlMessage) *controllerpb.ControlMessage {
	size := int64(proto.Size(message))
	for {
		known := r.largest.Load()
		if size <= known || r.largest.CompareAndSwap(known, size) {
			break
		}
	}
	return message
}

func (r *relay) stream() *relayed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// deregister says farewell for the node, and returns when the replica has
// answered.
func (r *relay) deregister(t *testing.T, n nodeSpec) {
	t.Helper()
	stream := r.stream()
	stream.leaving.Store(true)
	if err := stream.send(&controllerpb.ControlMessage{
		MessageId: farewellID,
		Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{DeregisterNodeRequest: &controllerpb.DeregisterNodeRequest{
			Node: &controllerpb.Node{Id: n.id},
		}},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), farewellAnswer)
	defer cancel()
	receive(ctx, t, r.answered, "answer to the deregistration of "+n.fullID())
}
