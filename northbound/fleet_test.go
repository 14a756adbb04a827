package northbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// callTimeout bounds a call of a test's client.
const callTimeout = 20 * time.Second

// epoch is when a test's fleet begins, by the leader's clock.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// term is that of the only leader.
const term = 1

// fleet is a state that tests drive as a leader would: with commands.
type fleet struct {
	tb       rapid.TB
	store    *fsm.Store
	index    uint64
	clock    time.Time
	sessions map[string]*session
	counter  uint64
	seed     uint64
}

type session struct {
	name     *slimcppb.SessionName
	sequence uint64
}

func newFleet(tb rapid.TB, segments ...*slimcppb.Segment) *fleet {
	tb.Helper()
	f := &fleet{tb: tb, store: fsm.New(), clock: epoch, sessions: map[string]*session{}, seed: 1}
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test", ActiveSchema: fsm.SchemaVersion}}})
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_LeaderStarted{
		LeaderStarted: &slimcppb.LeaderStarted{Term: term, ReplicaId: "r1", BootId: "b1"},
	}})
	f.setTopology(segments...)
	return f
}

// mesh links every group with every other.
func mesh() *slimcppb.Segment {
	return &slimcppb.Segment{Name: fsm.DefaultSegment, Links: []*slimcppb.Adjacency{{Group: "*", Neighbors: []string{"*"}}}}
}

// star links every group with a hub.
func star(hub string) *slimcppb.Segment {
	return &slimcppb.Segment{Name: fsm.DefaultSegment, Links: []*slimcppb.Adjacency{{Group: "*", Neighbors: []string{hub}}}}
}

func (f *fleet) view() *fsm.View { return f.store.View() }

func (f *fleet) try(command *slimcppb.Command) fsm.Result {
	f.index++
	f.seed++
	f.clock = f.clock.Add(time.Second)
	command.Schema, command.Generation, command.Seed = f.store.View().ActiveSchema(), 1, f.seed
	command.TimeUnixNanos = f.clock.UnixNano()
	return f.store.Apply(f.index, term, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
}

// apply applies what the leader decided.
func (f *fleet) apply(command *slimcppb.Command) fsm.Result {
	f.tb.Helper()
	command.Term = term
	result := f.try(command)
	if result.Err != nil {
		f.tb.Fatalf("%v: %v", command, result.Err)
	}
	return result
}

func (f *fleet) setTopology(segments ...*slimcppb.Segment) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: segments}},
	}}})
}

// useSharedSecrets leaves the topology to the API and has groups prove
// themselves; the file gives the secrets of some.
func (f *fleet) useSharedSecrets(groups ...string) {
	f.tb.Helper()
	config := &slimcppb.FleetConfig{RegistrationAuth: fsm.SharedSecret}
	for _, group := range groups {
		config.Secrets = append(config.Secrets, &slimcppb.GroupSecret{Group: group, Secret: []byte(goodSecret)})
	}
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{Config: config}}})
}

// goodSecret is as short as a registration secret may be.
const goodSecret = "0123456789abcdef0123456789abcdef"

// register opens a session of a node ("group/node", or a bare id).
func (f *fleet) register(id string, details ...*slimcppb.ConnectionDetail) {
	f.tb.Helper()
	group, node, grouped := strings.Cut(id, "/")
	if !grouped {
		group, node = "", id
	}
	f.counter++
	name := &slimcppb.SessionName{ReplicaId: "r1", BootId: "b1", Counter: f.counter}
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
		Session: name, Group: group, Node: node, Details: details, PeerAddress: fmt.Sprintf("192.0.2.1:%d", f.counter),
	}}})
	f.sessions[id] = &session{name: name}
}

// gateway is what a node offers that others can dial.
func gateway(address string) *slimcppb.ConnectionDetail {
	return &slimcppb.ConnectionDetail{Endpoint: "0.0.0.0:46357", ExternalEndpoint: proto.String(address)}
}

// inner is what a node offers that nobody outside its group can dial.
func inner() *slimcppb.ConnectionDetail {
	return &slimcppb.ConnectionDetail{Endpoint: "10.0.0.1:46357"}
}

func (f *fleet) lose(id string) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{
		Session: f.sessions[id].name, Reason: slimcppb.LossReason_LOSS_REASON_ENDED,
	}}})
}

func (f *fleet) depart(id string) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_DepartNode{DepartNode: &slimcppb.DepartNode{
		NodeId: id, LastSession: f.sessions[id].name,
	}}})
}

func (f *fleet) silence(id string) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_Observed{Observed: &slimcppb.Observed{
		NodeId: id, Session: f.sessions[id].name, Silent: proto.Bool(true),
	}}})
}

func appName(app string) *slimcppb.Name {
	return &slimcppb.Name{Component0: "org", Component1: "ns", Component2: app}
}

func (f *fleet) announce(id string, apps ...string) { f.tb.Helper(); f.change(id, false, apps...) }
func (f *fleet) withdraw(id string, apps ...string) { f.tb.Helper(); f.change(id, true, apps...) }

func (f *fleet) change(id string, withdraw bool, apps ...string) {
	f.tb.Helper()
	var changes []*slimcppb.NameChange
	for _, app := range apps {
		changes = append(changes, &slimcppb.NameChange{Name: appName(app), Withdraw: withdraw})
	}
	f.sessions[id].sequence++
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: f.sessions[id].name, Sequence: f.sessions[id].sequence, Changes: changes,
	}}})
}

// link returns the live link of two groups.
func (f *fleet) link(a, b string) *fsm.Link {
	f.tb.Helper()
	link, ok := f.view().LinkBetween(a, b)
	if !ok {
		f.tb.Fatalf("groups %s and %s have no link", a, b)
	}
	return link
}

func (f *fleet) claim(id string, link *fsm.Link) {
	f.tb.Helper()
	f.sessions[id].sequence++
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_ClaimLink{ClaimLink: &slimcppb.ClaimLink{
		Session: f.sessions[id].name, Sequence: f.sessions[id].sequence, LinkId: link.ID, MessageId: fmt.Sprint("claim-", f.index),
	}}})
}

// reconciled confirms a node's routes up to now, but for the failures.
func (f *fleet) reconciled(id string, acks []*slimcppb.LinkAck, failures ...*slimcppb.RouteFailure) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: &slimcppb.NodeReconciled{
		NodeId: id, Session: f.sessions[id].name, Index: f.index, Links: acks, Failures: failures,
	}}})
}

// dropped says that a link's source has let go of it.
func (f *fleet) dropped(link *fsm.Link) {
	f.tb.Helper()
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: &slimcppb.NodeReconciled{
		NodeId: link.SourceNode, Session: f.sessions[link.SourceNode].name, Index: f.index, GoneLinks: []string{link.ID},
	}}})
}

// dialled is the source's answer to the dial of a link.
func dialled(link *fsm.Link, refusal string) []*slimcppb.LinkAck {
	return []*slimcppb.LinkAck{{LinkId: link.ID, Revision: link.SourceRevision, Success: refusal == "", Error: refusal}}
}

// reader is a Reader over the fleet's store.
type reader struct {
	store *fsm.Store
	err   error
	hangs bool // Read waits for its context
}

func (r *reader) View() *fsm.View { return r.store.View() }

func (r *reader) Read(ctx context.Context) (*fsm.View, error) {
	if r.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.store.View(), nil
}

// table is a NodeLister of one canned table for all nodes.
type table struct {
	connections []*controllerpb.ConnectionEntry
	routes      []*controllerpb.RouteEntry
	err         error
	hangs       bool
	asked       []string
}

func (t *table) ask(ctx context.Context, nodeID string) error {
	t.asked = append(t.asked, nodeID)
	if t.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return t.err
}

func (t *table) ListConnections(ctx context.Context, nodeID string) ([]*controllerpb.ConnectionEntry, error) {
	err := t.ask(ctx, nodeID)
	return t.connections, err
}

func (t *table) ListRoutes(ctx context.Context, nodeID string) ([]*controllerpb.RouteEntry, error) {
	err := t.ask(ctx, nodeID)
	return t.routes, err
}

// proposer is a Proposer that applies to the fleet's store, or fails.
type proposer struct {
	fleet    *fleet
	err      error
	hangs    bool // ProposeNow waits for its context
	before   func()
	commands []*slimcppb.Command
}

func (p *proposer) ProposeNow(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	p.commands = append(p.commands, command)
	if p.before != nil {
		p.before()
	}
	if p.hangs {
		<-ctx.Done()
		return fsm.Result{}, fmt.Errorf("not proposed: %w", ctx.Err())
	}
	if p.err != nil {
		return fsm.Result{}, p.err
	}
	return p.fleet.try(command), nil
}

// client is an operator's connection to a server with the given options.
type client struct {
	controlplanepb.ControlPlaneServiceClient
	slimcppb.ClusterServiceClient
	connection *grpc.ClientConn
	health     *Health
}

// dial serves the options until the test ends.
func dial(tb testing.TB, options Options, serverOptions ...grpc.ServerOption) *client {
	tb.Helper()
	health := NewHealth()
	connection := connect(tb, NewServer(NewService(options), health, serverOptions...))
	return &client{
		controlplanepb.NewControlPlaneServiceClient(connection), slimcppb.NewClusterServiceClient(connection), connection, health,
	}
}

// operator asks the fleet; its nodes answer nothing.
func (f *fleet) operator(tb testing.TB) *client {
	tb.Helper()
	return dial(tb, f.options())
}

// options are those of a replica that leads the fleet a second after the last
// command.
func (f *fleet) options() Options {
	return Options{
		Reader:   &reader{store: f.store},
		Proposer: &proposer{fleet: f},
		Nodes:    &table{},
		Now:      func() time.Time { return f.clock.Add(time.Second) },
	}
}

func connect(tb testing.TB, server *grpc.Server, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	listener := bufconn.Listen(1 << 16)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	connection, err := grpc.NewClient("passthrough:///replica", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := connection.Close(); err != nil {
			tb.Error(err)
		}
		server.Stop()
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return connection
}

// collect reads a streamed list to its end.
func collect[Request, Entry any](
	ctx context.Context, list func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Entry], error),
	request *Request, options ...grpc.CallOption,
) ([]*Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := list(ctx, request, options...)
	if err != nil {
		return nil, err
	}
	var entries []*Entry
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
}

func (c *client) nodes(tb testing.TB) []*controlplanepb.NodeEntry {
	tb.Helper()
	entries, err := collect(tb.Context(), c.ListNodes, &controlplanepb.NodeListRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	return entries
}

func (c *client) links(tb testing.TB, source, dest string) []*controlplanepb.LinkEntry {
	tb.Helper()
	entries, err := collect(tb.Context(), c.ListLinks, &controlplanepb.LinkListRequest{SrcNodeId: source, DestNodeId: dest})
	if err != nil {
		tb.Fatal(err)
	}
	return entries
}

func (c *client) routes(tb testing.TB, source, dest string) []*controlplanepb.RouteEntry {
	tb.Helper()
	entries, err := collect(tb.Context(), c.ListRoutes, &controlplanepb.RouteListRequest{SrcNodeId: source, DestNodeId: dest})
	if err != nil {
		tb.Fatal(err)
	}
	return entries
}
