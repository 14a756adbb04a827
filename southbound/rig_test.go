package southbound_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// replica applies commands to a store without a log behind it.
type replica struct {
	store *fsm.Store

	mu       sync.Mutex
	index    uint64
	commands []*slimcppb.Command // that were applied, in order
	results  []fsm.Result
	leader   bool
	stalled  chan struct{} // closed when proposals go on; nil: they do
	// forgetful proposals are applied, but their outcome is not told.
	forgetful int
	// catchUp, if set, is what the replica had not applied yet before a read.
	catchUp func()
}

func newReplica() *replica {
	r := &replica{store: fsm.New(), leader: true}
	r.apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test", ActiveSchema: fsm.SchemaVersion}}})
	r.apply(&slimcppb.Command{Generation: 1, Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: []*slimcppb.Segment{{
			Name: "default", Links: []*slimcppb.Adjacency{{Group: "*", Neighbors: []string{"*"}}},
		}}}},
	}}})
	return r
}

func (r *replica) ReplicaID() string { return "cp-1" }
func (r *replica) BootID() string    { return "boot-1" }

func (r *replica) LeaderKnown() (bool, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, time.Time{}
}

func (r *replica) Read(context.Context) (*fsm.View, error) {
	if known, _ := r.LeaderKnown(); !known {
		return nil, cluster.ErrNoLeader
	}
	r.mu.Lock()
	catchUp := r.catchUp
	r.catchUp = nil
	r.mu.Unlock()
	if catchUp != nil {
		catchUp()
	}
	return r.store.View(), nil
}

func (r *replica) Propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	if known, _ := r.LeaderKnown(); !known {
		return fsm.Result{}, cluster.ErrNoLeader
	}
	r.mu.Lock()
	stalled := r.stalled
	r.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-ctx.Done():
			return fsm.Result{}, &cluster.UnknownOutcomeError{Cause: ctx.Err()}
		}
	}
	// The cluster may use an older schema than this binary's newest, so only the
	// log's proposer may fill it in.
	if command.GetSchema() > 0 {
		return fsm.Result{Err: fsm.ErrInactiveSchema}, nil
	}
	result := r.apply(command)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forgetful > 0 {
		r.forgetful--
		return fsm.Result{}, &cluster.UnknownOutcomeError{Cause: errors.New("leadership lost")}
	}
	return result, nil
}

func (r *replica) apply(command *slimcppb.Command) fsm.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	command = proto.CloneOf(command)
	command.TimeUnixNanos, command.Seed = time.Now().UnixNano(), r.index
	result := r.store.Apply(r.index, 1, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
	r.commands = append(r.commands, command)
	r.results = append(r.results, result)
	return result
}

// as proposes a command in the name of the leader, or of another replica.
func (r *replica) as(t *testing.T, command *slimcppb.Command) fsm.Result {
	t.Helper()
	command.Generation = 1
	result := r.apply(command)
	if result.Err != nil {
		t.Fatalf("apply %v: %v", command, result.Err)
	}
	return result
}

func (r *replica) setLeader(known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = known
}

func (r *replica) stall() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stalled := make(chan struct{})
	r.stalled = stalled
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stalled = nil
		close(stalled)
	}
}

// accepted returns the commands of one kind that Apply accepted.
func accepted[T proto.Message](r *replica, payload func(*slimcppb.Command) T) []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []T
	for i, command := range r.commands {
		if message := payload(command); message.ProtoReflect().IsValid() && r.results[i].Err == nil {
			found = append(found, message)
		}
	}
	return found
}

// rig is one replica's southbound with nodes that a test plays.
type rig struct {
	t       *testing.T
	replica *replica
	service *southbound.Service
	logs    *logBuffer
	conns   *bufconn.Listener
	wrap    func(net.Conn) net.Conn // of the nodes' connections; nil: as they are
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// lines returns the log lines that hold all the words.
func (b *logBuffer) lines(words ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []string
next:
	for _, line := range strings.Split(b.text.String(), "\n") {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}

// run plays a test in a bubble: time passes only when all wait, and a goroutine
// that is left over fails the test.
func run(t *testing.T, play func(t *testing.T, r *rig)) {
	t.Helper()
	runWith(t, southbound.Options{}, play)
}

// runWith is run for a service with these options.
func runWith(t *testing.T, options southbound.Options, play func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { playIn(t, options, play) })
}

func playIn(t *testing.T, options southbound.Options, play func(t *testing.T, r *rig)) {
	t.Helper()
	r := &rig{t: t, replica: newReplica(), logs: &logBuffer{}, conns: bufconn.Listen(1 << 20)}
	options.Proposer, options.Store = r.replica, r.replica.store
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: r.logs, Level: hclog.Debug})
	r.service = southbound.New(options)
	server := grpc.NewServer(r.service.ServerOptions()...)
	r.service.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(r.conns) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		r.service.Close()
	}()
	play(t, r)
}

// node is a node that a test plays.
type node struct {
	t      *testing.T
	id     string
	conn   *grpc.ClientConn
	stream controllerpb.ControllerService_OpenControlChannelClient
	inbox  chan *controllerpb.ControlMessage
	ended  chan error // holds why the stream ended
	hangUp context.CancelFunc
}

// open connects a node and opens its stream. With read false it never reads.
func (r *rig) open(read bool) *node {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///southbound",
		grpc.WithContextDialer(r.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	n := &node{t: r.t, conn: conn, hangUp: cancel, inbox: make(chan *controllerpb.ControlMessage, 4096), ended: make(chan error, 1)}
	r.t.Cleanup(func() { cancel(); _ = conn.Close() })
	n.stream, err = controllerpb.NewControllerServiceClient(conn).OpenControlChannel(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if read {
		go n.read()
	}
	return n
}

// dial connects a node to the replica.
func (r *rig) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := r.conns.DialContext(ctx)
	if err == nil && r.wrap != nil {
		conn = r.wrap(conn)
	}
	return conn, err
}

func (n *node) read() {
	for {
		message, err := n.stream.Recv()
		if err != nil {
			n.ended <- err
			close(n.inbox)
			return
		}
		n.inbox <- message
	}
}

func (n *node) send(message *controllerpb.ControlMessage) string {
	n.t.Helper()
	if message.MessageId == "" {
		message.MessageId = uuid.NewString()
	}
	if err := n.stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
		n.t.Fatalf("send: %v", err)
	}
	return message.MessageId
}

// next returns the next message, which must come within a minute.
func (n *node) next() *controllerpb.ControlMessage {
	n.t.Helper()
	select {
	case message, ok := <-n.inbox:
		if !ok {
			err := <-n.ended
			n.ended <- err
			n.t.Fatalf("node %s: stream ended (%v), expected a message", n.id, err)
		}
		return message
	case <-time.After(time.Minute):
		n.t.Fatalf("node %s: no message", n.id)
		return nil
	}
}

// silent fails the test if there is a message, or the stream's end, now.
func (n *node) silent() {
	n.t.Helper()
	synctest.Wait()
	select {
	case message, ok := <-n.inbox:
		n.t.Fatalf("node %s: got %v (open %v), expected nothing", n.id, message, ok)
	default:
	}
}

// end waits for the stream's end and returns its code; messages are dropped.
func (n *node) end() codes.Code {
	n.t.Helper()
	for range n.inbox {
	}
	return status.Code(<-n.ended)
}

// ack reads the initial Ack.
func (n *node) ack() {
	n.t.Helper()
	if message := n.next(); !message.GetAck().GetSuccess() {
		n.t.Fatalf("first message is %v, expected an ack", message)
	}
}

func request(group, id string, details ...*controllerpb.ConnectionDetails) *controllerpb.RegisterNodeRequest {
	request := &controllerpb.RegisterNodeRequest{NodeId: id, ConnectionDetails: details}
	if group != "" {
		request.DomainName = &group
	}
	return request
}

func external(endpoint string) *controllerpb.ConnectionDetails {
	return &controllerpb.ConnectionDetails{Endpoint: "10.0.0.1:1", ExternalEndpoint: &endpoint}
}

func registerMessage(r *controllerpb.RegisterNodeRequest) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: r}}
}

// register registers a node up to its first message, which it returns.
func (r *rig) register(request *controllerpb.RegisterNodeRequest) (*node, *controllerpb.ControlMessage) {
	r.t.Helper()
	n := r.open(true)
	n.id = request.GetNodeId()
	n.ack()
	id := n.send(registerMessage(request))
	n.registered(id)
	return n, n.next()
}

// registered reads the answer to a registration.
func (n *node) registered(requestID string) {
	n.t.Helper()
	response := n.next().GetRegisterNodeResponse()
	if !response.GetSuccess() || response.GetOriginalMessageId() != requestID {
		n.t.Fatalf("node %s: answer is %v", n.id, response)
	}
	if len(response.GetConnections())+len(response.GetRoutes()) > 0 {
		n.t.Fatalf("node %s: answer is not empty: %v", n.id, response)
	}
}

// join registers a node and answers its first message.
func (r *rig) join(group, id string, details ...*controllerpb.ConnectionDetails) *node {
	r.t.Helper()
	n, first := r.register(request(group, id, details...))
	n.answer(first)
	return n
}

// answer answers a command or a request for connections with success.
func (n *node) answer(message *controllerpb.ControlMessage) {
	n.t.Helper()
	if message.GetConnectionListRequest() != nil {
		n.send(connectionList(message.GetMessageId(), true))
		return
	}
	ack := &controllerpb.ConfigurationCommandAck{OriginalMessageId: message.GetMessageId()}
	for _, connection := range message.GetConfigCommand().GetConnectionsToCreate() {
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, &controllerpb.ConnectionAck{LinkId: connection.GetLinkId(), Success: true})
	}
	n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_ConfigCommandAck{ConfigCommandAck: ack}})
}

func connectionList(to string, done bool, entries ...*controllerpb.ConnectionEntry) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_ConnectionListResponse{
		ConnectionListResponse: &controllerpb.ConnectionListResponse{OriginalMessageId: to, Entries: entries, Done: done},
	}}
}

func (n *node) say(command *controllerpb.ConfigurationCommand) {
	n.t.Helper()
	n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: command}})
}

func (n *node) announce(names ...string) {
	n.t.Helper()
	n.say(&controllerpb.ConfigurationCommand{RoutesToSet: routes(names...)})
}

func (n *node) withdraw(names ...string) {
	n.t.Helper()
	n.say(&controllerpb.ConfigurationCommand{RoutesToDelete: routes(names...)})
}

func (n *node) claim(linkID string) {
	n.t.Helper()
	n.say(&controllerpb.ConfigurationCommand{ConnectionsReceived: []*controllerpb.ConnectionEntry{{
		LinkId: &linkID, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING,
	}}})
}

func name(text string) fsm.Name { return fsm.Name{C0: "org", C1: "ns", C2: text, ID: fsm.NoInstance} }

func routes(names ...string) []*controllerpb.Route {
	var routes []*controllerpb.Route
	for _, text := range names {
		routes = append(routes, &controllerpb.Route{Name: name(text).Wire()})
	}
	return routes
}

// announced returns what the state has a node announce, without what it doubts.
func (r *rig) announced(nodeID string) string {
	var names []string
	view := r.replica.store.View()
	for name := range view.NamesOf(nodeID) {
		record, _ := view.NameRecord(name)
		for _, announcer := range record.Announcers {
			if announcer.NodeID == nodeID && announcer.DoubtedAt == 0 {
				names = append(names, name.C2)
			}
		}
	}
	return strings.Join(names, " ")
}

// session returns the command session of a node.
func (r *rig) session(nodeID string) fsm.SessionName {
	r.t.Helper()
	synctest.Wait()
	known, ok := r.replica.store.View().Node(nodeID)
	if !ok {
		r.t.Fatalf("no node %s", nodeID)
	}
	session, ok := known.CommandSession()
	if !ok {
		r.t.Fatalf("node %s has no session", nodeID)
	}
	return session.Name
}

// call makes a call and returns a channel that gets its answer.
func (r *rig) call(call southbound.Call) <-chan southbound.Answer {
	answers := make(chan southbound.Answer, 2)
	r.service.Call(call, func(answer southbound.Answer) { answers <- answer })
	return answers
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 600 {
		synctest.Wait()
		if holds() {
			return
		}
		pass(100 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

func names(prefix string, from, to int) []string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("%s%06d", prefix, i))
	}
	return names
}
