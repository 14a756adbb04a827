package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// What a test does to a history and asks of its state, one line each.

// meshed begins a history under a full mesh.
func meshed(t tester) *history {
	h := newHistory(t)
	h.must(mesh())
	return h
}

// star begins a history in which every group is linked with the group hub.
func star(t tester) *history {
	h := newHistory(t)
	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"hub", Wildcard})))
	return h
}

// chain begins a history in which each group is linked with the next.
func chain(t tester, groups ...string) *history {
	h := newHistory(t)
	h.must(topologyCommand(linksSegment(DefaultSegment, chainPairs(groups...)...)))
	return h
}

func chainPairs(groups ...string) [][2]string {
	var pairs [][2]string
	for i := 1; i < len(groups); i++ {
		pairs = append(pairs, [2]string{groups[i-1], groups[i]})
	}
	return pairs
}

// refuse applies a command that must be answered with the error and returns the
// state after it.
func (h *history) refuse(command *slimcppb.Command, want error) {
	h.t.Helper()
	if result := h.apply(command)[0]; !errors.Is(result.Err, want) {
		h.t.Fatalf("%T: %v, not %v", command.GetPayload(), result.Err, want)
	}
}

func (h *history) nextSequence(session SessionName) uint64 {
	h.spoken[session]++
	return h.spoken[session]
}

func (h *history) announce(session SessionName, names ...Name) {
	h.t.Helper()
	h.must(announceCommand(session, h.nextSequence(session), announcing(names...)...))
}

func (h *history) withdraw(session SessionName, names ...Name) {
	h.t.Helper()
	h.must(announceCommand(session, h.nextSequence(session), withdrawing(names...)...))
}

func (h *history) claim(session SessionName, linkID, messageID string) {
	h.t.Helper()
	h.must(claimCommand(session, h.nextSequence(session), linkID, messageID))
}

func (h *history) lose(session SessionName) {
	h.t.Helper()
	h.must(lostCommand(session))
}

// depart loses the session, the node's only one, and gives the node up.
func (h *history) depart(nodeID string, session SessionName) {
	h.t.Helper()
	h.lose(session)
	h.must(departCommand(nodeID, session))
}

func (h *history) deregister(session SessionName) Result {
	h.t.Helper()
	return h.must(deregisterCommand(session))
}

func deregisterCommand(session SessionName) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_DeregisterNode{DeregisterNode: &slimcppb.DeregisterNode{Session: session.Proto()}}}
}

func leaderCommand(term uint64, replica, boot string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_LeaderStarted{LeaderStarted: &slimcppb.LeaderStarted{
		Term: term, ReplicaId: replica, BootId: boot,
	}}}
}

// reopen goes on with a store that was restored from a snapshot of the state.
func (h *history) reopen() {
	h.t.Helper()
	restored := New()
	if err := restored.Restore(bytes.NewReader(snapshotBytes(h.t, h.store))); err != nil {
		h.t.Fatalf("restore: %v", err)
	}
	h.store = restored
}

func leftCommand(id string) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_NodeLeft{NodeLeft: &slimcppb.NodeLeft{NodeId: id}}}
}

func observedCommand(id string, session SessionName, seen ...*slimcppb.LinkObservation) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Observed{Observed: &slimcppb.Observed{
		NodeId: id, Session: session.Proto(), Links: seen,
	}}}
}

func silentCommand(id string, session SessionName, silent bool) *slimcppb.Command {
	command := observedCommand(id, session)
	command.GetObserved().Silent = &silent
	return command
}

func seenUp(link *Link, node string) *slimcppb.LinkObservation {
	return &slimcppb.LinkObservation{
		LinkId: link.ID, Revision: link.SourceRevision, Seen: &slimcppb.LinkObservation_Up{Up: node},
	}
}

func seenDown(link *Link, why string) *slimcppb.LinkObservation {
	return &slimcppb.LinkObservation{
		LinkId: link.ID, Revision: link.SourceRevision, Seen: &slimcppb.LinkObservation_Down{Down: why},
	}
}

func dialled(link *Link) *slimcppb.LinkAck {
	return &slimcppb.LinkAck{LinkId: link.ID, Revision: link.SourceRevision, Success: true}
}

func refused(link *Link, why string) *slimcppb.LinkAck {
	return &slimcppb.LinkAck{LinkId: link.ID, Revision: link.SourceRevision, Error: why}
}

func replaceCommand(link *Link) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, Reason: "replaced by the test",
	}}}
}

func purgeCommand(tombstones []*Tombstone, linkIDs ...string) *slimcppb.Command {
	purge := &slimcppb.PurgeTombstones{LinkIds: linkIDs}
	for _, tombstone := range tombstones {
		purge.Keys = append(purge.Keys, &slimcppb.TombstoneKey{
			Name: tombstone.Name.Proto(), NodeId: tombstone.Announcer.NodeID, Revision: tombstone.Revision,
		})
	}
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_PurgeTombstones{PurgeTombstones: purge}}
}

// commandSession returns the session that a node is pushed to.
func (h *history) commandSession(nodeID string) SessionName {
	h.t.Helper()
	session, ok := h.node(nodeID).CommandSession()
	if !ok {
		h.t.Fatalf("node %s has no session", nodeID)
	}
	return session.Name
}

// stand claims every live link that has no end by the node whose endpoint is
// dialled, so that all links are applied.
func (h *history) stand() {
	h.t.Helper()
	for link := range h.view().Links() {
		if link.Live() && link.Status != LinkApplied {
			h.claim(h.commandSession(link.EndpointNode), link.ID, fmt.Sprint("claim-", h.view().Index()))
		}
	}
}

// confirm lets nodes confirm everything up to now.
func (h *history) confirm(nodeIDs ...string) {
	h.t.Helper()
	index := h.view().Index()
	for _, id := range nodeIDs {
		h.must(reconciledCommand(id, h.commandSession(id), index))
	}
}

func (h *history) node(id string) *Node {
	h.t.Helper()
	node, ok := h.view().Node(id)
	if !ok {
		h.t.Fatalf("no node %s", id)
	}
	return node
}

func (h *history) link(id string) *Link {
	h.t.Helper()
	link, ok := h.view().Link(id)
	if !ok {
		h.t.Fatalf("no link %s", id)
	}
	return link
}

// between returns the live link of two groups.
func (h *history) between(a, b string) *Link {
	h.t.Helper()
	link, ok := h.view().LinkBetween(a, b)
	if !ok {
		h.t.Fatalf("no link %s~%s", a, b)
	}
	return link
}

func (h *history) unlinked(a, b string) {
	h.t.Helper()
	if link, ok := h.view().LinkBetween(a, b); ok {
		h.t.Fatalf("link %s~%s: %+v", a, b, *link)
	}
}

// check verifies the invariants.
func (h *history) check() {
	h.t.Helper()
	if err := h.view().Check(); err != nil {
		h.t.Fatalf("%v", err)
	}
}

// changesOf returns what the feed says of the commands that do applies.
func (h *history) changesOf(do func()) Changes {
	h.t.Helper()
	feed := h.store.Subscribe()
	defer feed.Close()
	next := func() Changes {
		changes, _, err := feed.Next(context.Background())
		if err != nil {
			h.t.Fatalf("feed: %v", err)
		}
		return changes
	}
	if first := next(); !first.All {
		h.t.Fatalf("the first batch of a feed is not All")
	}
	do()
	return next()
}

// announcers returns the ids of a name's announcers, the oldest first.
func (h *history) announcers(name Name) []string {
	var ids []string
	if record, ok := h.view().NameRecord(name); ok {
		for _, announcer := range record.Announcers {
			ids = append(ids, announcer.NodeID)
		}
	}
	return ids
}

// forwards returns the peer groups that a node should forward a name to.
func (h *history) forwards(nodeID string, name Name) []string {
	h.t.Helper()
	var peers []string
	for link, record := range h.view().NodeRoutes(nodeID) {
		if record.Name == name {
			peers = append(peers, link.PeerGroup(h.node(nodeID).Group))
		}
	}
	return peers
}

// expectForwards checks where nodes forward a name to: "b/n1": {"a", "c"}. Nodes
// that are not named forward it nowhere.
func (h *history) expectForwards(name Name, want map[string][]string) {
	h.t.Helper()
	for node := range h.view().Nodes() {
		if got := h.forwards(node.ID, name); !slices.Equal(got, want[node.ID]) {
			h.t.Fatalf("%s forwards %s to %q, not to %q", node.ID, name, got, want[node.ID])
		}
	}
}

// status returns the status of the one route of a node for a name towards an
// announcer.
func (h *history) status(nodeID, announcerID string, name Name) (RouteStatus, string) {
	h.t.Helper()
	var found []Route
	for route := range h.view().Routes(RouteFilter{Source: nodeID, Dest: announcerID}) {
		if route.Name == name {
			found = append(found, route)
		}
	}
	if len(found) != 1 {
		h.t.Fatalf("%d routes of %s towards %s, not 1: %+v", len(found), nodeID, announcerID, found)
	}
	return found[0].Status, found[0].Message
}

func (h *history) expectStatus(nodeID, announcerID string, name Name, want RouteStatus) {
	h.t.Helper()
	if got, message := h.status(nodeID, announcerID, name); got != want {
		h.t.Fatalf("route of %s towards %s is %d (%s), not %d", nodeID, announcerID, got, message, want)
	}
}

// equal fails unless two values are the same.
func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is %v, not %v", what, got, want)
	}
}
