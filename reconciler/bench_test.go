package reconciler

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	benchTerm = 1
	// benchChunk is how many names one command announces.
	benchChunk = 1000
)

// desk is a leadership whose work is done by hand, one thing after another, so
// that a benchmark counts all of it and nothing else. Its nodes answer at once.
type desk struct {
	tb       testing.TB
	store    *fsm.Store
	feed     *fsm.Feed
	l        *leadership
	sessions map[string]fsm.SessionName
	sequence uint64

	answers  []func() // of nodes that were asked
	held     map[string]map[routeKey]*controllerpb.Route
	commands int // to nodes
	routes   int // in them
	bytes    int // of them
}

// newDesk has a node in each of two groups, linked once the link is claimed.
func newDesk(tb testing.TB) *desk {
	tb.Helper()
	d := &desk{
		tb: tb, store: fsm.New(), sessions: map[string]fsm.SessionName{},
		held: map[string]map[routeKey]*controllerpb.Route{},
	}
	d.apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "c", ActiveSchema: fsm.SchemaVersion}}})
	d.apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: []*slimcppb.Segment{{
			Name: fsm.DefaultSegment, Links: []*slimcppb.Adjacency{{Group: "a", Neighbors: []string{"b"}}},
		}}}},
	}}})
	for i, group := range []string{"a", "b"} {
		session := fsm.SessionName{ReplicaID: "cp", BootID: "boot", Counter: uint64(i + 1)}
		endpoint := group + ":1"
		d.sessions[group+"/n"] = session
		d.held[group+"/n"] = map[routeKey]*controllerpb.Route{}
		d.apply(&slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
			// Its first command was answered under an earlier leadership.
			Session: session.Proto(), Group: group, Node: "n", Resumed: true,
			Details: []*slimcppb.ConnectionDetail{{ExternalEndpoint: &endpoint}},
		}}})
	}
	d.l = newLeadership(New(Options{Nodes: d, Store: d.store}).options, benchTerm)
	d.feed = d.store.Subscribe()
	tb.Cleanup(func() {
		d.feed.Close()
		for _, q := range []queue{d.l.links, d.l.routes, d.l.clocks} {
			q.ShutDown()
		}
	})
	return d
}

func (d *desk) apply(command *slimcppb.Command) fsm.Result {
	d.tb.Helper()
	command.Generation, command.Seed, command.Term = d.store.View().Generation(), 1, benchTerm
	result := d.store.Apply(d.store.View().Index()+1, benchTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
	if result.Err != nil {
		d.tb.Fatalf("%T: %v", command.GetPayload(), result.Err)
	}
	return result
}

func benchName(number int) fsm.Name {
	return fsm.Name{C0: "org", C1: "bench", C2: fmt.Sprintf("app-%05d", number), ID: fsm.NoInstance}
}

func (d *desk) announce(node string, withdraw bool, from, to int) {
	d.tb.Helper()
	for at := from; at < to; at += benchChunk {
		d.sequence++
		announce := &slimcppb.Announce{Session: d.sessions[node].Proto(), Sequence: d.sequence}
		for number := at; number < min(at+benchChunk, to); number++ {
			announce.Changes = append(announce.Changes, &slimcppb.NameChange{Name: benchName(number).Proto(), Withdraw: withdraw})
		}
		d.apply(&slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: announce}})
	}
}

func (d *desk) link() *fsm.Link {
	d.tb.Helper()
	link, ok := d.store.View().LinkBetween("a", "b")
	if !ok {
		d.tb.Fatal("the groups have no link")
	}
	return link
}

func (d *desk) claim() {
	d.tb.Helper()
	d.sequence++
	link := d.link()
	d.apply(&slimcppb.Command{Payload: &slimcppb.Command_ClaimLink{ClaimLink: &slimcppb.ClaimLink{
		Session: d.sessions[link.EndpointNode].Proto(), Sequence: d.sequence,
		LinkId: link.ID, MessageId: fmt.Sprintf("claim-%d", d.sequence),
	}}})
}

// settle works until nothing is left to do: the feed, the queues, the answers of
// the nodes, the outcomes for the log.
func (d *desk) settle() {
	d.tb.Helper()
	for worked := true; worked; {
		worked = false
		if d.store.View() != d.l.view() {
			changes, view, err := d.feed.Next(d.tb.Context())
			if err != nil {
				d.tb.Fatal(err)
			}
			d.l.take(changes, view)
			worked = true
		}
		worked = d.work(d.l.links, lookLinks) || worked
		worked = d.work(d.l.routes, lookRoutes) || worked
		answers := d.answers
		d.answers = nil
		for _, answer := range answers {
			answer()
			worked = true
		}
		d.l.outbox.mu.Lock()
		proposals := d.l.outbox.waiting
		d.l.outbox.waiting = nil
		d.l.outbox.mu.Unlock()
		for _, proposal := range proposals {
			result := d.apply(proposal.command)
			if proposal.done != nil {
				proposal.done(result, nil)
			}
			worked = true
		}
	}
}

func (d *desk) work(q queue, what look) (worked bool) {
	for q.Len() > 0 {
		id, _ := q.Get()
		d.l.look(id, what)
		q.Done(id)
		worked = true
	}
	return worked
}

// Call implements Nodes.
func (d *desk) Call(call southbound.Call, done func(southbound.Answer)) {
	var answer southbound.Answer
	switch {
	case call.ListConnections:
		answer.Connections = d.connections(call.NodeID)
	case call.ListRoutes:
		answer.Routes = d.table(call.NodeID)
	default:
		d.commands++
		d.bytes += proto.Size(call.Command)
		answer.Ack = d.obey(call.NodeID, call.Command)
	}
	d.answers = append(d.answers, func() { done(answer) })
}

func (d *desk) obey(node string, command *controllerpb.ConfigurationCommand) *controllerpb.ConfigurationCommandAck {
	ack := &controllerpb.ConfigurationCommandAck{}
	for _, link := range command.GetConnectionsToDelete() {
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, &controllerpb.ConnectionAck{LinkId: link, Success: true})
	}
	for _, link := range command.GetConnectionsToCreate() {
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, &controllerpb.ConnectionAck{LinkId: link.GetLinkId(), Success: true})
	}
	acknowledge := func(route *controllerpb.Route) routeKey {
		d.routes++
		status := &controllerpb.RouteAck{Route: route, Success: true}
		ack.RoutesStatus = append(ack.RoutesStatus, status)
		for key := range routeAcks(&controllerpb.ConfigurationCommandAck{RoutesStatus: []*controllerpb.RouteAck{status}}) {
			return key
		}
		d.tb.Fatalf("a route without a name or a link: %v", route)
		return routeKey{}
	}
	for _, route := range command.GetRoutesToSet() {
		d.held[node][acknowledge(route)] = route
	}
	for _, route := range command.GetRoutesToDelete() {
		delete(d.held[node], acknowledge(route))
	}
	return ack
}

// connections lists the links that stand.
func (d *desk) connections(node string) []*controllerpb.ConnectionEntry {
	var entries []*controllerpb.ConnectionEntry
	for link := range d.store.View().LinksOf(node) {
		if link.Status != fsm.LinkApplied {
			continue
		}
		peer, direction := "n", controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING
		if link.SourceNode == node {
			direction = controllerpb.ConnectionDirection_CONNECTION_DIRECTION_OUTGOING
		}
		entries = append(entries, &controllerpb.ConnectionEntry{
			Id: 1, ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE,
			LinkId: &link.ID, Direction: direction, PeerNodeId: &peer,
		})
	}
	return entries
}

// table lists what the node forwards, and what applications on it serve.
func (d *desk) table(node string) []*controllerpb.RouteEntry {
	var entries []*controllerpb.RouteEntry
	for _, connection := range d.connections(node) {
		for key, route := range d.held[node] {
			if key.linkID == connection.GetLinkId() {
				entries = append(entries, &controllerpb.RouteEntry{Name: route.GetName(), Connections: []*controllerpb.ConnectionEntry{connection}})
			}
		}
	}
	application := &controllerpb.ConnectionEntry{ConnectionType: controllerpb.ConnectionType_CONNECTION_TYPE_EDGE}
	for name := range d.store.View().NamesOf(node) {
		entries = append(entries, &controllerpb.RouteEntry{Name: name.Wire(), Connections: []*controllerpb.ConnectionEntry{application}})
	}
	return entries
}

// FirstCommand implements Nodes.
func (d *desk) FirstCommand(fsm.SessionName) (southbound.First, bool) {
	return southbound.First{Continued: true}, false
}

// End implements Nodes.
func (d *desk) End(_ uint64, _ fsm.SessionName, _ bool, done func(error)) { go done(nil) }

// SetHooks implements Nodes.
func (d *desk) SetHooks(*southbound.Hooks) {}

// Reached implements Nodes.
func (d *desk) Reached(string) bool { return true }

// carried is a desk at which one node forwards names of the other group.
func carried(tb testing.TB, names int) *desk {
	tb.Helper()
	d := newDesk(tb)
	d.announce("b/n", false, 0, names)
	d.settle()
	d.claim()
	d.settle()
	d.wantRoutes(names)
	return d
}

func (d *desk) wantRoutes(names int) {
	d.tb.Helper()
	if held := len(d.held["a/n"]); held != names {
		d.tb.Fatalf("the node holds %d routes, want %d", held, names)
	}
}

// BenchmarkOneChange announces and withdraws one name at the far side of a node
// with many routes: all that the leader does for a change, from Apply over the
// push to the node's confirmation in the log. The cost must be that of the change,
// not of the routes (protocol N1).
func BenchmarkOneChange(b *testing.B) {
	for _, routes := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("routes=%d", routes), func(b *testing.B) {
			d := carried(b, routes)
			d.commands, d.routes, d.bytes = 0, 0, 0
			b.ReportAllocs()
			changes := 0
			for b.Loop() {
				d.announce("b/n", changes%2 == 1, routes, routes+1)
				d.settle()
				changes++
			}
			d.wantRoutes(routes + changes%2)
			if d.commands != changes || d.routes != changes {
				b.Errorf("%d changes took %d commands with %d routes, want one each", changes, d.commands, d.routes)
			}
		})
	}
}

// BenchmarkClaim claims a link over which many names travel: the entry, and all
// that the leader sends and records until the node has confirmed each route.
func BenchmarkClaim(b *testing.B) {
	for _, routes := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("names=%d", routes), func(b *testing.B) {
			d := carried(b, routes)
			claims := 0
			d.commands, d.bytes = 0, 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				commands, bytes := d.commands, d.bytes
				link := d.link()
				d.apply(&slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
					LinkId: link.ID, Revision: link.SourceRevision, Reason: "benchmark",
				}}})
				clear(d.held["a/n"]) // they went with the connection
				d.settle()
				d.commands, d.bytes = commands, bytes
				b.StartTimer()
				d.claim()
				d.settle()
				claims++
				d.wantRoutes(routes)
			}
			b.ReportMetric(float64(d.commands)/float64(claims), "pushes/op")
			b.ReportMetric(float64(d.bytes)/float64(claims), "pushed-B/op")
		})
	}
}
