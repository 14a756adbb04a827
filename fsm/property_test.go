package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fleet draws random commands against a history. It remembers sessions that it
// opened, live or not, so that commands of old ones are drawn too.
type fleet struct {
	*history
	sessions  []SessionName
	sequences map[SessionName]uint64
	messages  int
}

var (
	testGroups = []string{"a", "b", "c", "d", "hub"}
	testNodes  = []string{"n1", "n2"}
)

func (f *fleet) draw(t *rapid.T) *slimcppb.Command {
	group := rapid.SampledFrom(testGroups).Draw(t, "group")
	node := rapid.SampledFrom(testNodes).Draw(t, "node")
	switch rapid.IntRange(0, 19).Draw(t, "command") {
	case 0, 1, 2:
		return f.drawRegister(t, group, node)
	case 3:
		return lostCommand(f.drawSession(t))
	case 4:
		if node, ok := f.view().Node(NodeID(group, node)); ok {
			return departCommand(node.ID, node.LastSession.Name)
		}
		return departCommand("nobody", SessionName{})
	case 5:
		return &slimcppb.Command{Payload: &slimcppb.Command_DeregisterNode{DeregisterNode: &slimcppb.DeregisterNode{Session: f.drawSession(t).Proto()}}}
	case 6:
		return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_NodeLeft{NodeLeft: &slimcppb.NodeLeft{NodeId: NodeID(group, node)}}}
	case 7, 8, 9:
		return f.drawAnnounce(t)
	case 10, 11:
		return f.drawClaim(t)
	case 12:
		return f.drawReconciled(t)
	case 13:
		return f.drawObserved(t)
	case 14:
		return f.drawLeadersWork(t)
	case 15:
		return f.drawManagedTopology(t, group)
	case 16:
		return f.drawAudit(t)
	case 17:
		return f.drawMembership(t, group, node)
	case 18:
		return f.drawReplica(t)
	default:
		return f.drawTopology(t)
	}
}

func (f *fleet) drawRegister(t *rapid.T, group, node string) *slimcppb.Command {
	name := f.sessionName()
	name.ReplicaID = rapid.SampledFrom([]string{"cp-1", "cp-1", "cp-2"}).Draw(t, "replica")
	if len(f.sessions) > 0 && rapid.IntRange(0, 9).Draw(t, "again") == 0 {
		name = f.drawSession(t)
	}
	f.sessions = append(f.sessions, name)
	external := rapid.SampledFrom([]string{"", group + node + ":1", group + node + ":2"}).Draw(t, "external")
	var reported []*slimcppb.ReportedLink
	for link := range f.view().Links() {
		if rapid.IntRange(0, 2).Draw(t, "report") == 0 {
			reported = append(reported, &slimcppb.ReportedLink{LinkId: link.ID, Incoming: rapid.Bool().Draw(t, "incoming")})
		}
	}
	if rapid.IntRange(0, 12).Draw(t, "groupless") == 0 {
		group = ""
	}
	command := registerCommand(name, group, node, external, reported...)
	command.GetRegisterNode().Resumed = rapid.IntRange(0, 4).Draw(t, "resumed") == 0
	if rapid.IntRange(0, 4).Draw(t, "provisional") == 0 {
		command.GetRegisterNode().ProvisionalEpoch = rapid.Uint64Range(1, f.view().Index()).Draw(t, "epoch")
	}
	return command
}

func (f *fleet) drawSession(t *rapid.T) SessionName {
	if len(f.sessions) == 0 || rapid.IntRange(0, 19).Draw(t, "foreign") == 0 {
		return SessionName{ReplicaID: "cp-1", BootID: "boot-1", Counter: rapid.Uint64Range(1, 1000).Draw(t, "counter") + 1000}
	}
	return rapid.SampledFrom(f.sessions).Draw(t, "session")
}

func (f *fleet) drawSequence(t *rapid.T, session SessionName) uint64 {
	if rapid.IntRange(0, 9).Draw(t, "stale") != 0 {
		f.sequences[session]++
	}
	return f.sequences[session]
}

func (f *fleet) drawAnnounce(t *rapid.T) *slimcppb.Command {
	session := f.drawSession(t)
	var changes []*slimcppb.NameChange
	for range rapid.IntRange(1, 4).Draw(t, "names") {
		name := appName(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "app"), byte(rapid.IntRange(0, 1).Draw(t, "instance")))
		changes = append(changes, &slimcppb.NameChange{
			Name:     name.Proto(),
			Withdraw: rapid.IntRange(0, 2).Draw(t, "withdraw") == 0,
			Early:    rapid.IntRange(0, 5).Draw(t, "early") == 0,
			Replay:   rapid.IntRange(0, 5).Draw(t, "replay") == 0,
		})
	}
	return announceCommand(session, f.drawSequence(t, session), changes...)
}

func (f *fleet) drawLink(t *rapid.T) *Link {
	links := slices.Collect(f.view().Links())
	if len(links) == 0 {
		return &Link{ID: "none"}
	}
	return rapid.SampledFrom(links).Draw(t, "link")
}

func (f *fleet) drawClaim(t *rapid.T) *slimcppb.Command {
	session := f.drawSession(t)
	link := f.drawLink(t)
	if node, ok := f.view().Node(link.EndpointNode); ok && node.Connected() && rapid.Bool().Draw(t, "endpoint") {
		session = node.Sessions[0].Name
	}
	f.messages++
	return claimCommand(session, f.drawSequence(t, session), link.ID, fmt.Sprint("m", f.messages))
}

func (f *fleet) drawReconciled(t *rapid.T) *slimcppb.Command {
	link := f.drawLink(t)
	node, ok := f.view().Node(link.SourceNode)
	if !ok || !node.Connected() {
		return reconciledCommand("nobody", SessionName{}, 0)
	}
	session, _ := node.CommandSession()
	ack := &slimcppb.LinkAck{LinkId: link.ID, Revision: link.SourceRevision, Success: rapid.Bool().Draw(t, "success"), Error: "refused"}
	command := reconciledCommand(node.ID, session.Name, rapid.Uint64Range(0, f.view().Index()+2).Draw(t, "index"), ack)
	for record := range f.view().Names() {
		if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
			command.GetNodeReconciled().Failures = append(command.GetNodeReconciled().Failures, &slimcppb.RouteFailure{
				Name: record.Name.Proto(), LinkId: link.ID, Revision: f.view().Index(), Error: "no",
			})
		}
	}
	return command
}

func (f *fleet) drawObserved(t *rapid.T) *slimcppb.Command {
	link := f.drawLink(t)
	node, ok := f.view().Node(link.SourceNode)
	if !ok || !node.Connected() {
		return reconciledCommand("nobody", SessionName{}, 0)
	}
	session, _ := node.CommandSession()
	observed := &slimcppb.Observed{NodeId: node.ID, Session: session.Name.Proto()}
	seen := &slimcppb.LinkObservation{LinkId: link.ID, Revision: link.SourceRevision}
	if rapid.Bool().Draw(t, "up") {
		seen.Seen = &slimcppb.LinkObservation_Up{Up: rapid.SampledFrom(testNodes).Draw(t, "peer")}
	} else {
		seen.Seen = &slimcppb.LinkObservation_Down{Down: "gone"}
	}
	observed.Links = append(observed.Links, seen)
	if rapid.IntRange(0, 2).Draw(t, "silence") == 0 {
		silent := rapid.Bool().Draw(t, "silent")
		observed.Silent = &silent
	}
	if rapid.IntRange(0, 4).Draw(t, "drift") == 0 {
		observed.DriftedLinks = []string{link.ID, f.drawLink(t).ID}
	}
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Observed{Observed: observed}}
}

func (f *fleet) drawLeadersWork(t *rapid.T) *slimcppb.Command {
	link := f.drawLink(t)
	if rapid.IntRange(0, 2).Draw(t, "in vain") == 0 {
		return f.drawExhausted(t)
	}
	if rapid.Bool().Draw(t, "replace") {
		if rapid.Bool().Draw(t, "by others") {
			return f.drawReroute(t, link)
		}
		return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
			LinkId: link.ID, Revision: link.SourceRevision, Reason: "test",
		}}}
	}
	purge := &slimcppb.PurgeTombstones{LinkIds: []string{link.ID}}
	for tombstone := range f.view().Tombstones() {
		if rapid.Bool().Draw(t, "purge") {
			purge.Keys = append(purge.Keys, &slimcppb.TombstoneKey{
				Name: tombstone.Name.Proto(), NodeId: tombstone.Announcer.NodeID, Revision: tombstone.Revision,
			})
		}
	}
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_PurgeTombstones{PurgeTombstones: purge}}
}

func (f *fleet) drawTopology(t *rapid.T) *slimcppb.Command {
	return rapid.SampledFrom([]func() *slimcppb.Command{
		mesh,
		func() *slimcppb.Command {
			return topologyCommand(linksSegment(DefaultSegment, [2]string{"hub", Wildcard}))
		},
		func() *slimcppb.Command {
			return topologyCommand(linksSegment(DefaultSegment, [2]string{"a", "b"}, [2]string{"b", "c"}, [2]string{"c", "d"}))
		},
		func() *slimcppb.Command {
			return topologyCommand(linksSegment(DefaultSegment, [2]string{"a", "b"}, [2]string{"c", "d"}, [2]string{"b", "hub"}, [2]string{"hub", "a"}))
		},
		func() *slimcppb.Command { return topologyCommand() },
		func() *slimcppb.Command {
			return topologyCommand(linksSegment("one", [2]string{"a", "b"}, [2]string{"b", "hub"}), linksSegment("two", [2]string{"c", "hub"}, [2]string{"a", "d"}))
		},
		func() *slimcppb.Command {
			return topologyCommand(linksSegment("one-$group", [2]string{"hub", "$group"}), linksSegment("two-$group", [2]string{"a", "$group"}))
		},
		func() *slimcppb.Command {
			return topologyCommand(linksSegment("one-$group", [2]string{"hub", "$group"}), linksSegment("two-$group", [2]string{"a", "$group"}))
		},
		func() *slimcppb.Command {
			return topologyCommand(linksSegment("to-$group", [2]string{"hub", "$group"}, [2]string{"a", "$group"}))
		},
		func() *slimcppb.Command {
			return topologyCommand(
				linksSegment("1", [2]string{"a", "b"}, [2]string{"b", "c"}),
				linksSegment("2", [2]string{"a", "c"}, [2]string{"c", "d"}),
				linksSegment("3", [2]string{"hub", Wildcard}))
		},
	}).Draw(t, "topology")()
}

// drawReroute lets others make a link, or the same ones by a full state.
func (f *fleet) drawReroute(t *rapid.T, link *Link) *slimcppb.Command {
	command := replaceCommand(link)
	replace := command.GetReplaceLink()
	groups := []string{link.SourceGroup, link.DestGroup}
	if rapid.Bool().Draw(t, "the other way") {
		slices.Reverse(groups)
	}
	replace.SourceNodeId = NodeID(groups[0], rapid.SampledFrom(testNodes).Draw(t, "source"))
	replace.DialledNodeId = NodeID(groups[1], rapid.SampledFrom(testNodes).Draw(t, "dialled"))
	replace.FullState = rapid.IntRange(0, 3).Draw(t, "full state") == 0
	replace.Exhausted = replace.FullState && rapid.Bool().Draw(t, "exhausted")
	return command
}

// drawExhausted gives a link up, mostly one that failed.
func (f *fleet) drawExhausted(t *rapid.T) *slimcppb.Command {
	link := f.drawLink(t)
	for candidate := range f.view().Links() {
		if candidate.Status == LinkFailed && rapid.Bool().Draw(t, "this") {
			link = candidate
		}
	}
	return exhaustCommand(link)
}

// drawManagedTopology draws work on the topology of the API, which is refused
// while a file gives one.
func (f *fleet) drawManagedTopology(t *rapid.T, group string) *slimcppb.Command {
	segment := rapid.SampledFrom([]string{DefaultSegment, "one", "two"}).Draw(t, "segment")
	peer := rapid.SampledFrom(testGroups).Draw(t, "peer")
	switch rapid.IntRange(0, 5).Draw(t, "managed") {
	case 0:
		return &slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: segment}}}
	case 1:
		return &slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: segment}}}
	case 2:
		return &slimcppb.Command{Payload: &slimcppb.Command_RemoveEdge{RemoveEdge: &slimcppb.RemoveEdge{Segment: segment, GroupA: group, GroupB: peer}}}
	default:
		return &slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{Segment: segment, GroupA: group, GroupB: peer}}}
	}
}

// drawAudit draws what a connected node's own list says of any names.
func (f *fleet) drawAudit(t *rapid.T) *slimcppb.Command {
	node, ok := f.view().SessionNode(f.drawSession(t))
	if !ok {
		return observedCommand("nobody", SessionName{})
	}
	session, _ := node.CommandSession()
	command := observedCommand(node.ID, session.Name)
	audit := &slimcppb.Audit{Asked: rapid.Uint64Range(0, f.view().Index()).Draw(t, "asked")}
	for _, app := range []string{"x", "y", "z"} {
		name := appName(app, 0).Proto()
		switch rapid.IntRange(0, 3).Draw(t, "found") {
		case 0:
			audit.Present = append(audit.Present, name)
		case 1:
			audit.Absent = append(audit.Absent, name)
		case 2:
			audit.Kept = append(audit.Kept, name)
		}
	}
	command.GetObserved().Audit = audit
	return command
}

func (f *fleet) drawMembership(t *rapid.T, group, node string) *slimcppb.Command {
	switch rapid.IntRange(0, 4).Draw(t, "membership") {
	case 0:
		return &slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
			Secret: &slimcppb.GroupSecret{Group: group, Secret: bytes.Repeat([]byte("s"), MinSecretBytes)},
		}}}
	case 1:
		return &slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: group}}}
	case 2:
		config := &slimcppb.FleetConfig{RegistrationAuth: rapid.SampledFrom([]string{"none", SharedSecret}).Draw(t, "auth")}
		return configCommand(config, "cp-1")
	default:
		return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_ExpireNodes{ExpireNodes: &slimcppb.ExpireNodes{NodeIds: []string{NodeID(group, node)}}}}
	}
}

// drawReplica draws the life of a replica that has some of the sessions.
func (f *fleet) drawReplica(t *rapid.T) *slimcppb.Command {
	id := rapid.SampledFrom([]string{"cp-2", "cp-3"}).Draw(t, "replica")
	switch rapid.IntRange(0, 9).Draw(t, "bookkeeping") {
	case 0:
		return removeReplicaCommand(id)
	case 1, 2:
		return holdCommand(id, rapid.Bool().Draw(t, "held"))
	case 3:
		return finalizeCommand(1)
	case 4:
		return checkpointCommand()
	case 5:
		return configCommand(nil, id)
	default:
		return recordCommand(id, 1)
	}
}

func newFleet(t tester) *fleet { return newFleetOf(t, 1) }

func newFleetOf(t tester, schema uint32) *fleet {
	f := &fleet{history: newHistoryOf(t, schema), sequences: map[SessionName]uint64{}}
	f.must(mesh())
	return f
}

// TestRandomCommands draws command sequences. After every command the
// invariants hold; a replay of the log, and a restore of a snapshot taken
// anywhere followed by the rest of the log, end in the same bytes.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleetOf(t, rapid.Uint32Range(1, SchemaVersion).Draw(t, "schema"))
		// Of a small budget something is left over by many entries.
		budget := rapid.SampledFrom([]int{1, 2, linkCost, 2 * linkCost, entryLinkBudget}).Draw(t, "budget for links")
		f.store.linkBudget = budget
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		cut := rapid.IntRange(0, steps).Draw(t, "snapshot after")
		var snapshot []byte
		var snapshotIndex uint64
		for step := range steps + 1 {
			if step == cut {
				snapshot, snapshotIndex = snapshotBytes(t, f.store), f.view().Index()
			}
			commands := []*slimcppb.Command{f.draw(t)}
			if f.view().UnlinkedGroups() > 0 && rapid.Bool().Draw(t, "go on with links") {
				commands = append(commands, makeLinksCommand())
			}
			if rapid.IntRange(0, 3).Draw(t, "shared entry") == 0 {
				commands = append(commands, f.draw(t))
			}
			f.apply(commands...)
			if err := f.view().Check(); err != nil {
				t.Fatalf("after %v: %v", commands, err)
			}
		}
		f.makeLinks()
		f.check()
		want := snapshotBytes(t, f.store)

		replayed, restored := New(), New()
		replayed.linkBudget, restored.linkBudget = budget, budget
		if err := restored.Restore(bytes.NewReader(snapshot)); err != nil {
			t.Fatalf("restore: %v", err)
		}
		for _, logged := range f.log {
			replayed.ApplyBatch([]Batch{reencode(t, logged)})
			if logged.Index > snapshotIndex {
				restored.ApplyBatch([]Batch{reencode(t, logged)})
			}
		}
		if !bytes.Equal(want, snapshotBytes(t, replayed)) {
			t.Fatalf("replay differs")
		}
		if !bytes.Equal(want, snapshotBytes(t, restored)) {
			t.Fatalf("snapshot at %d and the rest of the log differ", snapshotIndex)
		}
	})
}
