package fsm

import (
	"bytes"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// tester is what a test needs of testing.T and rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// history drives a store the way a leader would and keeps the log.
type history struct {
	t       tester
	store   *Store
	log     []Batch
	counter uint64
	clock   time.Time
	seed    uint64
	spoken  map[SessionName]uint64 // last sequence number that announce and claim used
}

const testTerm = 3

func newHistory(t tester) *history { return newHistoryOf(t, 1) }

// newHistoryOf is a history of a cluster that uses a schema.
func newHistoryOf(t tester, schema uint32) *history {
	h := &history{t: t, store: New(), clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), spoken: map[SessionName]uint64{}}
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test-cluster", ActiveSchema: schema}}})
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_LeaderStarted{LeaderStarted: &slimcppb.LeaderStarted{
		Term: testTerm, ReplicaId: "cp-1", BootId: "boot-1",
	}}})
	return h
}

// apply stamps and applies commands as one entry.
func (h *history) apply(commands ...*slimcppb.Command) []Result {
	h.t.Helper()
	for _, command := range commands {
		h.clock = h.clock.Add(time.Second)
		h.seed++
		command.Schema = max(1, command.GetSchema())
		command.TimeUnixNanos = h.clock.UnixNano()
		command.Seed = h.seed
		if command.GetInitCluster() == nil && command.Generation == 0 {
			command.Generation = h.store.state.meta.Generation
		}
	}
	logged := Batch{Index: uint64(len(h.log) + 1), Term: testTerm, Entry: &slimcppb.Entry{Commands: commands}}
	h.log = append(h.log, logged)
	return h.store.ApplyBatch([]Batch{logged})[0]
}

func (h *history) must(command *slimcppb.Command) Result {
	h.t.Helper()
	result := h.apply(command)[0]
	if result.Err != nil {
		h.t.Fatalf("%T: %v", command.GetPayload(), result.Err)
	}
	return result
}

func (h *history) view() *View { return h.store.View() }

func (h *history) sessionName() SessionName {
	h.counter++
	return SessionName{ReplicaID: "cp-1", BootID: "boot-1", Counter: h.counter}
}

func registerCommand(name SessionName, group, node, external string, reported ...*slimcppb.ReportedLink) *slimcppb.Command {
	detail := &slimcppb.ConnectionDetail{Endpoint: "127.0.0.1:1"}
	if external != "" {
		detail.ExternalEndpoint = &external
	}
	return &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
		Session: name.Proto(), Group: group, Node: node,
		Details: []*slimcppb.ConnectionDetail{detail}, Links: reported,
	}}}
}

// register opens a session for a node with an external endpoint.
func (h *history) register(group, node string, reported ...*slimcppb.ReportedLink) SessionName {
	h.t.Helper()
	name := h.sessionName()
	h.must(registerCommand(name, group, node, group+"-"+node+".test:1", reported...))
	return name
}

func announceCommand(name SessionName, sequence uint64, changes ...*slimcppb.NameChange) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: name.Proto(), Sequence: sequence, Changes: changes,
	}}}
}

func claimCommand(name SessionName, sequence uint64, linkID, messageID string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_ClaimLink{ClaimLink: &slimcppb.ClaimLink{
		Session: name.Proto(), Sequence: sequence, LinkId: linkID, MessageId: messageID,
	}}}
}

func lostCommand(name SessionName) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{
		Session: name.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_ENDED,
	}}}
}

func departCommand(id string, last SessionName) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_DepartNode{DepartNode: &slimcppb.DepartNode{
		NodeId: id, LastSession: last.Proto(),
	}}}
}

func reconciledCommand(id string, session SessionName, index uint64, acks ...*slimcppb.LinkAck) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: &slimcppb.NodeReconciled{
		NodeId: id, Session: session.Proto(), Index: index, Links: acks,
	}}}
}

func topologyCommand(segments ...*slimcppb.Segment) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: segments}},
	}}}
}

// linksSegment reads "a~b c~*" as a segment.
func linksSegment(name string, pairs ...[2]string) *slimcppb.Segment {
	segment := &slimcppb.Segment{Name: name}
	for _, pair := range pairs {
		segment.Links = append(segment.Links, &slimcppb.Adjacency{Group: pair[0], Neighbors: []string{pair[1]}})
	}
	return segment
}

func mesh() *slimcppb.Command {
	return topologyCommand(linksSegment(DefaultSegment, [2]string{Wildcard, Wildcard}))
}

func appName(app string, instance byte) Name {
	return Name{C0: "org", C1: "ns", C2: app, ID: InstanceID{15: instance}}
}

func announcing(names ...Name) []*slimcppb.NameChange {
	var changes []*slimcppb.NameChange
	for _, name := range names {
		changes = append(changes, &slimcppb.NameChange{Name: name.Proto()})
	}
	return changes
}

func withdrawing(names ...Name) []*slimcppb.NameChange {
	changes := announcing(names...)
	for _, change := range changes {
		change.Withdraw = true
	}
	return changes
}

func snapshotBytes(t tester, store *Store) []byte {
	t.Helper()
	var buffer bytes.Buffer
	if err := store.Capture().Write(&buffer); err != nil {
		t.Fatalf("write snapshot: %v", err)
	}
	return buffer.Bytes()
}

// reencode passes an entry through its bytes, as the log does.
func reencode(t tester, logged Batch) Batch {
	t.Helper()
	data, err := proto.Marshal(logged.Entry)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	entry := &slimcppb.Entry{}
	if err := proto.Unmarshal(data, entry); err != nil {
		t.Fatalf("unmarshal: %v", err)
	}
	return Batch{Index: logged.Index, Term: logged.Term, Entry: entry}
}

func routeRows(view *View, filter RouteFilter) []string {
	var rows []string
	for route := range view.Routes(filter) {
		rows = append(rows, fmt.Sprintf("%s -> %s %s/%s/%s %d", route.NodeID, route.Announcer.NodeID,
			route.Name.C0, route.Name.C1, route.Name.C2, route.Status))
	}
	return rows
}
