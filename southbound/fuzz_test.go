package southbound

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// leaderless is a replica that nobody leads.
type leaderless struct{}

func (leaderless) ReplicaID() string { return "cp-1" }
func (leaderless) BootID() string    { return "boot-1" }
func (leaderless) Propose(context.Context, *slimcppb.Command) (fsm.Result, error) {
	return fsm.Result{}, cluster.ErrNoLeader
}
func (leaderless) Read(context.Context) (*fsm.View, error) { return nil, cluster.ErrNoLeader }
func (leaderless) LeaderKnown() (bool, time.Time)          { return false, time.Time{} }

// FuzzNodeMessage feeds bytes to what reads a node's messages, as the first
// message of a stream and as a later one. Whatever they say must leave a command
// that the log takes, and a state that holds together.
func FuzzNodeMessage(f *testing.F) {
	for _, message := range messagesOfNodes() {
		encoded, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		message := &controllerpb.ControlMessage{}
		if proto.Unmarshal(encoded, message) != nil {
			return // gRPC ends the stream
		}
		log := &fuzzLog{t: t, store: fsm.New()}
		log.apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test", ActiveSchema: fsm.SchemaVersion}}})
		s := New(Options{Proposer: leaderless{}, Store: log.store})
		defer s.Close()
		st := s.newStream(t.Context())
		defer st.cancel(nil)

		peer := &net.TCPAddr{IP: net.IPv6loopback, Port: 1}
		asked, err := parseRegistration(log.store.View(), message, peer)
		if err == nil {
			log.apply(asked.build(s.drawName(), false, 0))
		}
		good, err := parseRegistration(log.store.View(), messagesOfNodes()["registration"], peer)
		if err != nil {
			t.Fatal(err)
		}
		st.registration, st.name = good, s.drawName()
		log.apply(good.build(st.name, false, 0))

		st.handle(message) // early
		st.firstAnswered = true
		st.handle(message)
		p := &proposals{stream: st}
		for p.inFlight = st.pending.take(p.announces); p.inFlight != nil; p.inFlight = st.pending.take(p.announces) {
			p.sequence++
			log.apply(p.batchCommand())
		}
		if err := log.store.View().Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzLog applies commands that a log would take.
type fuzzLog struct {
	t     *testing.T
	store *fsm.Store
	index uint64
}

func (l *fuzzLog) apply(command *slimcppb.Command) {
	l.t.Helper()
	command.Generation = l.store.View().Generation()
	encoded, err := proto.Marshal(command)
	if err != nil || len(encoded) > cluster.MaxCommandBytes {
		l.t.Fatalf("command of %d bytes cannot be logged: %v", len(encoded), err)
	}
	l.index++
	l.store.Apply(l.index, 1, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})
}

func messagesOfNodes() map[string]*controllerpb.ControlMessage {
	group, external, link := "a", "a.example:1", "3f0f3c1e-1b1b-8d7c-9a6e-1f2f3f4f5f6f"
	whole := fsm.Name{C0: "org", C1: "ns", C2: "app", ID: fsm.NoInstance}.Wire()
	incoming := &controllerpb.ConnectionEntry{
		LinkId: &link, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING, ConfigData: "{}",
	}
	return map[string]*controllerpb.ControlMessage{
		"registration": {
			MessageId: "1",
			Payload: &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: &controllerpb.RegisterNodeRequest{
				NodeId: "n", DomainName: &group,
				ConnectionDetails: []*controllerpb.ConnectionDetails{
					{Endpoint: "0.0.0.0:1", ExternalEndpoint: &external, AuthMethod: controllerpb.AuthMethod_AUTH_METHOD_JWT},
					{Endpoint: "[::]:1", TlsRequired: true}, {Endpoint: ":1"}, {Endpoint: "x", AuthMethod: 9},
				},
				Connections: []*controllerpb.ConnectionEntry{incoming},
				Routes:      []*controllerpb.Route{{Name: whole}},
			}},
		},
		"command": {
			MessageId: "2",
			Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: &controllerpb.ConfigurationCommand{
				RoutesToSet:         []*controllerpb.Route{{Name: whole}, {}, {Name: whole, LinkId: &link}},
				RoutesToDelete:      []*controllerpb.Route{{Name: whole}},
				ConnectionsReceived: []*controllerpb.ConnectionEntry{incoming, {}},
			}},
		},
		"ack": {Payload: &controllerpb.ControlMessage_ConfigCommandAck{ConfigCommandAck: &controllerpb.ConfigurationCommandAck{
			OriginalMessageId: "x", ConnectionsStatus: []*controllerpb.ConnectionAck{{}}, RoutesStatus: []*controllerpb.RouteAck{{}},
		}}},
		"connections": {Payload: &controllerpb.ControlMessage_ConnectionListResponse{
			ConnectionListResponse: &controllerpb.ConnectionListResponse{OriginalMessageId: "x", Entries: []*controllerpb.ConnectionEntry{incoming}},
		}},
		"routes": {Payload: &controllerpb.ControlMessage_RouteListResponse{
			RouteListResponse: &controllerpb.RouteListResponse{OriginalMessageId: "x", Entries: []*controllerpb.RouteEntry{{Name: whole}}, Done: true},
		}},
		"goodbye": {Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{}},
		"empty":   {},
	}
}
