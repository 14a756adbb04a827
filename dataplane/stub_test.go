package dataplane

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// stub is a control plane in the test's hands: each stream of a node becomes a
// conversation that says only what the test says.
type stub struct {
	controllerpb.UnimplementedControllerServiceServer
	t        *testing.T
	server   *grpc.Server
	listener *bufconn.Listener

	mu      sync.Mutex // guards the following
	down    bool       // connections are refused
	reset   bool       // connections are accepted and broken
	refuse  error      // RPC status in place of the headers
	mute    bool       // no headers
	streams []*conversation
}

// conversation is one stream.
type conversation struct {
	t      *testing.T
	stream controllerpb.ControllerService_OpenControlChannelServer
	finish chan error

	mu       sync.Mutex // guards the following
	received []*controllerpb.ControlMessage
	ended    bool
}

// inBubble runs a test with a stub in a bubble of its own time. Everything is
// stopped at the end.
func inBubble(t *testing.T, test func(cp *stub, network *Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cp := &stub{t: t, server: grpc.NewServer(), listener: bufconn.Listen(1 << 20)}
		controllerpb.RegisterControllerServiceServer(cp.server, cp)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = cp.server.Serve(cp.listener)
		}()
		network := NewNetwork(NetworkOptions{})
		test(cp, network)
		for _, node := range network.nodes {
			node.Kill()
		}
		cp.server.Stop()
		<-served
	})
}

func (cp *stub) OpenControlChannel(stream controllerpb.ControllerService_OpenControlChannelServer) error {
	cp.mu.Lock()
	refuse, mute := cp.refuse, cp.mute
	if refuse != nil {
		cp.mu.Unlock()
		return refuse
	}
	conv := &conversation{t: cp.t, stream: stream, finish: make(chan error, 1)}
	cp.streams = append(cp.streams, conv)
	cp.mu.Unlock()
	if !mute {
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
	}
	go conv.receive()
	select {
	case err := <-conv.finish:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (cp *stub) dial(ctx context.Context, _ string) (net.Conn, error) {
	cp.mu.Lock()
	down, reset := cp.down, cp.reset
	cp.mu.Unlock()
	switch {
	case down:
		return nil, errors.New("refused")
	case reset:
		near, far := net.Pipe()
		return near, far.Close()
	}
	return cp.listener.DialContext(ctx)
}

func (cp *stub) set(change func(cp *stub)) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	change(cp)
}

// opened is the number of streams so far.
func (cp *stub) opened() int {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return len(cp.streams)
}

// latest returns the newest stream once all is quiet.
func (cp *stub) latest() *conversation {
	cp.t.Helper()
	synctest.Wait()
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if len(cp.streams) == 0 {
		cp.t.Fatal("no stream was opened")
	}
	return cp.streams[len(cp.streams)-1]
}

// start adds a node to the network and starts it.
func (cp *stub) start(network *Network, options NodeOptions, names ...*dataplanepb.Name) *Node {
	cp.t.Helper()
	options.Servers, options.Dialer = []Server{{"stub"}}, cp.dial
	if options.Endpoint == "" {
		options.Endpoint = options.ID + "." + options.Group + ".internal:1"
		options.ExternalEndpoint = options.ID + "." + options.Group + ".example:1"
	}
	node, err := network.NewNode(options)
	if err != nil {
		cp.t.Fatal(err)
	}
	for _, name := range names {
		node.Announce(name)
	}
	if err := node.Start(); err != nil {
		cp.t.Fatal(err)
	}
	return node
}

// join starts a node and accepts its registration. What it said is taken.
func (cp *stub) join(network *Network, group, id string, names ...*dataplanepb.Name) (*Node, *conversation) {
	cp.t.Helper()
	node := cp.start(network, NodeOptions{ID: id, Group: group}, names...)
	conv := cp.latest()
	conv.accept()
	conv.take()
	return node, conv
}

func (conv *conversation) receive() {
	for {
		message, err := conv.stream.Recv()
		conv.mu.Lock()
		if err != nil {
			conv.ended = true
			conv.mu.Unlock()
			return
		}
		conv.received = append(conv.received, message)
		conv.mu.Unlock()
	}
}

// take returns what the node said since the last call, once all is quiet.
func (conv *conversation) take() []*controllerpb.ControlMessage {
	synctest.Wait()
	conv.mu.Lock()
	defer conv.mu.Unlock()
	taken := conv.received
	conv.received = nil
	return taken
}

func (conv *conversation) hasEnded() bool {
	synctest.Wait()
	conv.mu.Lock()
	defer conv.mu.Unlock()
	return conv.ended
}

func (conv *conversation) send(message *controllerpb.ControlMessage) {
	conv.t.Helper()
	if err := conv.stream.Send(message); err != nil {
		conv.t.Fatalf("send to node: %v", err)
	}
}

// answer sends a RegisterNodeResponse.
func (conv *conversation) answer(response *controllerpb.RegisterNodeResponse) {
	conv.t.Helper()
	conv.send(&controllerpb.ControlMessage{MessageId: "answer", Payload: &controllerpb.ControlMessage_RegisterNodeResponse{RegisterNodeResponse: response}})
}

func (conv *conversation) accept() {
	conv.t.Helper()
	conv.answer(&controllerpb.RegisterNodeResponse{Success: true})
	synctest.Wait()
}

// end finishes the stream from the control plane's side.
func (conv *conversation) end(err error) {
	conv.finish <- err
	synctest.Wait()
}

// command sends a command and returns its acknowledgement and what else came.
func (conv *conversation) command(command *controllerpb.ConfigurationCommand) (*controllerpb.ConfigurationCommandAck, []*controllerpb.ConfigurationCommand) {
	conv.t.Helper()
	conv.send(&controllerpb.ControlMessage{MessageId: "command", Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: command}})
	var ack *controllerpb.ConfigurationCommandAck
	var notices []*controllerpb.ConfigurationCommand
	for _, message := range conv.take() {
		if got := message.GetConfigCommandAck(); got != nil {
			if ack != nil || got.GetOriginalMessageId() != "command" {
				conv.t.Fatalf("unexpected acknowledgement %v", got)
			}
			ack = got
			continue
		}
		notices = append(notices, message.GetConfigCommand())
	}
	if ack == nil {
		conv.t.Fatalf("no acknowledgement of %v", command)
	}
	return ack, notices
}

// notices returns the commands that the node sent by itself.
func (conv *conversation) notices() []*controllerpb.ConfigurationCommand {
	var notices []*controllerpb.ConfigurationCommand
	for _, message := range conv.take() {
		if command := message.GetConfigCommand(); command != nil {
			notices = append(notices, command)
		}
	}
	return notices
}

// connections asks for the node's connection list.
func (conv *conversation) connections() []*controllerpb.ConnectionEntry {
	conv.t.Helper()
	conv.send(&controllerpb.ControlMessage{MessageId: "list", Payload: &controllerpb.ControlMessage_ConnectionListRequest{ConnectionListRequest: &controllerpb.ConnectionListRequest{}}})
	var entries []*controllerpb.ConnectionEntry
	for _, message := range conv.take() {
		entries = append(entries, message.GetConnectionListResponse().GetEntries()...)
	}
	return entries
}

func increment(linkID, endpoint string) *controllerpb.ConfigurationCommand {
	return &controllerpb.ConfigurationCommand{ConnectionsToCreate: []*controllerpb.Connection{{
		LinkId: linkID,
		ConfigData: `{"endpoint":"http://` + endpoint + `","link_id":"` + linkID + `","connection_type":"remote","tls":{"insecure":true},` +
			`"connect_timeout":"2s","backoff":{"type":"fixed_interval","interval":"500ms","max_attempts":2}}`,
	}}}
}

func stateLink(linkID, endpoint string) *controllerpb.Connection {
	return &controllerpb.Connection{
		LinkId:     linkID,
		ConfigData: `{"endpoint":"http://` + endpoint + `","tls_required":false,"auth_method":"none","timeout":null,"backoff":null}`,
	}
}

func setRoute(linkID string, names ...*dataplanepb.Name) *controllerpb.ConfigurationCommand {
	return &controllerpb.ConfigurationCommand{RoutesToSet: routes(linkID, names...)}
}

func deleteRoute(linkID string, names ...*dataplanepb.Name) *controllerpb.ConfigurationCommand {
	return &controllerpb.ConfigurationCommand{RoutesToDelete: routes(linkID, names...)}
}

func routes(linkID string, names ...*dataplanepb.Name) []*controllerpb.Route {
	var routes []*controllerpb.Route
	for _, name := range names {
		routes = append(routes, &controllerpb.Route{Name: name, LinkId: &linkID})
	}
	return routes
}

// routesOver counts the names that the node's table has over a link.
func routesOver(node *Node, linkID string) int {
	count := 0
	for _, entry := range node.Table() {
		for _, connection := range entry.Connections {
			if connection.LinkID == linkID {
				count++
			}
		}
	}
	return count
}

func wantProto(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
