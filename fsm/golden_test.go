package fsm

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// The golden files of a schema version are made once and never again after its
// release: logs and snapshots of it must mean the same under every later one.
var update = flag.Bool("update", false, "write the golden files of the present schema version")

// hashFile holds the hash of a golden snapshot. Replicas of different builds compare
// hashes, so its encoding stays the same for as long as its version does.
var hashFile = fmt.Sprintf("hash%d", HashVersion)

func goldenPath(what string, schema int) string {
	return filepath.Join("testdata", "golden", fmt.Sprintf("%s-v%d.bin", what, schema))
}

// TestGoldenFiles replays the log of each schema version and compares the
// snapshot, byte for byte.
func TestGoldenFiles(t *testing.T) {
	if *update {
		writeGoldenFiles(t)
	}
	for schema := 1; schema <= SchemaVersion; schema++ {
		t.Run(fmt.Sprintf("v%d", schema), func(t *testing.T) {
			want, err := os.ReadFile(goldenPath("snapshot", schema))
			if err != nil {
				t.Fatal(err)
			}
			store := New()
			replayGolden(t, store, goldenPath("entries", schema), schema)
			if err := store.View().Check(); err != nil {
				t.Fatal(err)
			}
			if got := snapshotBytes(t, store); !bytes.Equal(got, want) {
				t.Fatalf("the snapshot after the log differs:\n%s", differences(t, want, got))
			}
			restored := New()
			if err := restored.Restore(bytes.NewReader(want)); err != nil {
				t.Fatal(err)
			}
			hash, err := os.ReadFile(goldenPath(hashFile, schema))
			if err != nil {
				t.Fatal(err)
			}
			if got := restored.Capture().Hash(); !bytes.Equal(got[:], hash) {
				t.Errorf("the hash is %x, not %x: HashVersion goes up when its encoding changes", got, hash)
			}
			if !bytes.Equal(snapshotBytes(t, restored), want) {
				t.Error("the snapshot differs after it was read and written")
			}
		})
	}
}

// replayGolden applies a log file. Every command in it succeeds. That of the
// newest version has every kind of command and leaves every kind of record.
func replayGolden(t *testing.T, store *Store, path string, schema int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(bytes.NewReader(data))
	seen := map[protoreflect.Name]bool{}
	payloads := (&slimcppb.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("payload")
	for index := uint64(1); ; index++ {
		entry := &slimcppb.Entry{}
		if err := protodelim.UnmarshalFrom(reader, entry); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for i, result := range store.Apply(index, testTerm, entry) {
			command := entry.GetCommands()[i]
			if result.Err != nil {
				t.Errorf("entry %d: %v: %v", index, command, result.Err)
			}
			if field := command.ProtoReflect().WhichOneof(payloads); field != nil {
				seen[field.Name()] = true
			}
		}
	}
	if schema < SchemaVersion {
		return
	}
	expectAll(t, payloads, seen)
	kinds := (&slimcppb.SnapshotRecord{}).ProtoReflect().Descriptor().Oneofs().ByName("record")
	kept := map[protoreflect.Name]bool{}
	for record := range store.Capture().tables.records() {
		kept[record.ProtoReflect().WhichOneof(kinds).Name()] = true
	}
	expectAll(t, kinds, kept)
}

func expectAll(t *testing.T, oneof protoreflect.OneofDescriptor, seen map[protoreflect.Name]bool) {
	t.Helper()
	for i := range oneof.Fields().Len() {
		if name := oneof.Fields().Get(i).Name(); !seen[name] {
			t.Errorf("the golden history has no %s: extend it, and run with -update before the release", name)
		}
	}
}

// differences lists the records that only one of two snapshots has.
func differences(t *testing.T, want, got []byte) string {
	t.Helper()
	records := func(data []byte) []string {
		snapshot, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{fmt.Sprintf("%+v", snapshot.tables.meta)}
		for record := range snapshot.tables.records() {
			texts = append(texts, record.String())
		}
		return texts
	}
	var out bytes.Buffer
	wanted, found := records(want), records(got)
	for _, record := range wanted {
		if !slices.Contains(found, record) {
			fmt.Fprintf(&out, "- %s\n", record)
		}
	}
	for _, record := range found {
		if !slices.Contains(wanted, record) {
			fmt.Fprintf(&out, "+ %s\n", record)
		}
	}
	return out.String()
}

func writeGoldenFiles(t *testing.T) {
	t.Helper()
	h := goldenHistory(t)
	var entries bytes.Buffer
	options := protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{Deterministic: true}}
	for _, logged := range h.log {
		if _, err := options.MarshalTo(&entries, logged.Entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(goldenPath("entries", SchemaVersion)), 0o755); err != nil {
		t.Fatal(err)
	}
	hash := h.store.Capture().Hash()
	for what, data := range map[string][]byte{
		"entries": entries.Bytes(), "snapshot": snapshotBytes(t, h.store), hashFile: hash[:],
	} {
		if err := os.WriteFile(goldenPath(what, SchemaVersion), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// goldenHistory is a life in which every kind of command succeeds and which
// leaves every kind of record behind.
func goldenHistory(t *testing.T) *history {
	h := newHistory(t)
	h.goldenReplicas()
	h.goldenMembership()
	h.goldenManagedTopology()
	h.goldenFleet()
	h.goldenDepartures()
	h.goldenLinks()
	h.goldenNames()
	h.goldenTemplate()
	h.goldenGroups()
	h.check()
	return h
}

func goldenConfig(auth string, segments ...*slimcppb.Segment) *slimcppb.FleetConfig {
	timeout := uint32(2000)
	config := &slimcppb.FleetConfig{
		Topology:         &slimcppb.Topology{Segments: segments},
		RegistrationAuth: auth,
		EnforcedConnection: &slimcppb.EnforcedConnection{
			TimeoutMs: &timeout, Keepalive: &slimcppb.Keepalive{TcpKeepaliveMs: 60_000, KeepAliveWhileIdle: true},
		},
		Graces: &slimcppb.Graces{FailoverMs: 1000, DepartureMs: 10_000, TombstoneMs: 60_000},
	}
	if auth == SharedSecret {
		config.Secrets = []*slimcppb.GroupSecret{{Group: "from-file", Secret: bytes.Repeat([]byte("f"), MinSecretBytes)}}
	}
	return config
}

func configCommand(config *slimcppb.FleetConfig, replica string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: config, ReplicaId: replica, Fingerprint: []byte("fingerprint of " + replica),
	}}}
}

func (h *history) goldenReplicas() {
	for _, id := range []string{"cp-1", "cp-2", "cp-3", "cp-4"} {
		h.must(recordCommand(id, SchemaVersion))
	}
	h.must(registerCommand(SessionName{ReplicaID: "cp-3", BootID: "boot-1", Counter: 1}, "a", "of-cp-3", ""))
	h.lose(SessionName{ReplicaID: "cp-3", BootID: "boot-1", Counter: 2})
	h.must(removeReplicaCommand("cp-3"))
	h.must(holdCommand("cp-4", true))
	h.must(requested(finalizeCommand(SchemaVersion), "finalize"))
	h.must(requested(finalizeCommand(SchemaVersion), "finalize")) // delivered again
	started := recordCommand("cp-1", SchemaVersion)
	started.GetRecordReplica().Boots = 300
	h.must(started)
	h.must(checkpointCommand())
	h.must(&slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Probe{Probe: &slimcppb.Probe{
		Confirmed: []*slimcppb.ConfirmedIndex{{ReplicaId: "cp-2", Index: 7}},
	}}})
}

func (h *history) goldenMembership() {
	secret := func(group string) *slimcppb.Command {
		return &slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
			Secret: &slimcppb.GroupSecret{Group: group, Secret: bytes.Repeat([]byte(group[:1]), MinSecretBytes)},
		}}}
	}
	h.must(configCommand(goldenConfig(SharedSecret), "cp-1"))
	h.must(configCommand(nil, "cp-2"))
	for _, group := range []string{"a", "evicted"} {
		add := secret(group)
		add.RequestId, add.Caller = "request-"+group, &slimcppb.Caller{Identity: "operator", Address: "127.0.0.1:9"}
		h.must(add)
	}
	for i, group := range []string{"a", "evicted"} {
		register := registerCommand(h.sessionName(), group, "n1", group+".test:1")
		register.GetRegisterNode().TokenHash = []byte{byte(i), 7}
		register.GetRegisterNode().TokenExpiresUnixNanos = h.clock.UnixNano() + 3_600_000_000_000
		h.must(register)
	}
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: "evicted"}}})
}

func (h *history) goldenManagedTopology() {
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "dormant"}}})
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "removed"}}})
	for _, edge := range [][3]string{{DefaultSegment, "a", "b"}, {DefaultSegment, "a", "c"}, {"dormant", "x", "y"}} {
		h.must(&slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{
			Segment: edge[0], GroupA: edge[1], GroupB: edge[2],
		}}})
	}
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_RemoveEdge{RemoveEdge: &slimcppb.RemoveEdge{
		Segment: DefaultSegment, GroupA: "c", GroupB: "a",
	}}})
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: "removed"}}})
}

func (h *history) goldenFleet() {
	h.must(configCommand(goldenConfig("none",
		linksSegment("core", [2]string{"hub", Wildcard}),
		linksSegment("edge-$group", [2]string{"a", "$group"}),
	), "cp-1"))
	for _, group := range []string{"hub", "b", "c", "d"} {
		for _, node := range []string{"n1", "n2"} {
			h.register(group, node)
		}
	}
	detailed := registerCommand(h.sessionName(), "secure", "n1", "secure.test:443")
	detail := detailed.GetRegisterNode().Details[0]
	detail.TlsRequired, detail.AuthMethod = true, slimcppb.AuthMethod_AUTH_METHOD_SPIRE
	detailed.GetRegisterNode().PeerAddress = "[::1]:40000"
	h.must(detailed)
	lone := registerCommand(h.sessionName(), "", "lone", "no address")
	lone.GetRegisterNode().Details[0].ExternalEndpointMalformed = true
	h.must(lone)
	resumed := registerCommand(h.sessionName(), "b", "n1", "b-n1.test:1")
	resumed.GetRegisterNode().Resumed = true
	h.must(resumed)
	provisional := registerCommand(h.sessionName(), "b", "n2", "b-n2.test:1")
	provisional.GetRegisterNode().ProvisionalEpoch = 3
	h.must(provisional)
	h.lose(SessionName{ReplicaID: "cp-2", BootID: "boot-9", Counter: 4}) // not registered yet
}

func (h *history) goldenDepartures() {
	for _, node := range []string{"gone", "expired", "left", "leaving"} {
		session := h.register("d", node)
		h.announce(session, appName(node, 1))
		switch node {
		case "left", "leaving":
			h.deregister(session)
		default:
			h.depart("d/"+node, session)
		}
	}
	h.must(leftCommand("d/left"))
	h.must(&slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_ExpireNodes{ExpireNodes: &slimcppb.ExpireNodes{NodeIds: []string{"d/expired"}}}})
	unreachable := lostCommand(h.register("d", "away"))
	unreachable.GetSessionLost().Reason = slimcppb.LossReason_LOSS_REASON_UNREACHABLE
	h.must(unreachable)
	old := registerCommand(SessionName{ReplicaID: "cp-1", BootID: "boot-0", Counter: 1}, "d", "old-boot", "")
	h.must(old)
	h.must(leaderCommand(testTerm, "cp-1", "boot-1"))
}

func (h *history) goldenLinks() {
	end := func(link *Link) SessionName { return h.commandSession(link.EndpointNode) }
	source := func(link *Link) SessionName { return h.commandSession(link.SourceNode) }
	for _, group := range []string{"b", "c", "d"} {
		link := h.between("hub", group)
		h.must(reconciledCommand(link.SourceNode, source(link), h.view().Index(), dialled(link)))
		h.claim(end(link), link.ID, "claim-"+group)
	}
	h.stand()
	failed := h.must(replaceCommand(h.between("hub", "c"))).LinkID
	h.must(reconciledCommand(h.link(failed).SourceNode, source(h.link(failed)), 0, refused(h.link(failed), "connection refused")))
	rerouted := replaceCommand(h.link(failed))
	rerouted.GetReplaceLink().SourceNodeId, rerouted.GetReplaceLink().DialledNodeId = "c/n2", "hub/n2"
	last := h.link(h.must(rerouted).LinkID)
	full := replaceCommand(last)
	full.GetReplaceLink().FullState = true
	h.must(full)

	down := h.between("a", "b")
	h.must(observedCommand(down.SourceNode, source(down), seenDown(down, "reset by peer")))
	down = h.between("a", "b")
	h.must(reconciledCommand(down.SourceNode, source(down), 0, dialled(down)))
	up := h.between("a", "d")
	observed := observedCommand(up.SourceNode, source(up), seenUp(up, "n1"))
	observed.GetObserved().DriftedLinks = []string{up.ID}
	h.must(observed)
	h.must(silentCommand("d/n2", h.commandSession("d/n2"), true))

	disputed := h.between("hub", "b")
	h.claim(h.commandSession(sibling(disputed.DestNode)), disputed.ID, "dispute")

	replaced := h.between("hub", "d")
	h.must(replaceCommand(replaced))
	gone := reconciledCommand(replaced.SourceNode, source(replaced), 0)
	gone.GetNodeReconciled().GoneLinks = []string{replaced.ID}
	h.must(gone)
	h.must(purgeCommand(nil, replaced.ID))
	h.must(replaceCommand(h.between("hub", "d"))) // stays listed
}

// sibling is the other of the two nodes of a golden group.
func sibling(nodeID string) string {
	if group, first := strings.CutSuffix(nodeID, "1"); first {
		return group + "2"
	}
	return strings.TrimSuffix(nodeID, "2") + "1"
}

func (h *history) goldenNames() {
	b, c, hub := h.commandSession("b/n1"), h.commandSession("c/n1"), h.commandSession("hub/n1")
	x, y, z := appName("x", 1), appName("y", 1), appName("z", 1)
	whole := Name{C0: "org", C1: "ns", C2: "whole", ID: NoInstance}
	h.apply(announceCommand(c, h.nextSequence(c), announcing(x, y)...), announceCommand(b, h.nextSequence(b), announcing(x, whole)...))
	h.say(hub, replaying(x, z)...)
	early := append(withdrawing(x), announcing(appName("early", 1))...)
	for _, change := range early {
		change.Early = true
	}
	h.say(b, early...)
	h.withdraw(b, z) // a hint
	h.withdraw(c, y)
	h.withdraw(hub, z) // doubted
	h.withdraw(c, x)   // doubted, then gone
	h.audit("c/n1", &slimcppb.Audit{Absent: []*slimcppb.Name{x.Proto()}, Present: []*slimcppb.Name{appName("found", 1).Proto()}})
	h.announce(b, whole)
	h.withdraw(b, whole) // doubted, then kept
	h.audit("b/n1", &slimcppb.Audit{Kept: []*slimcppb.Name{whole.Proto()}})
	for tombstone := range h.view().Tombstones() {
		if tombstone.Name.C2 == "gone" {
			h.must(purgeCommand([]*Tombstone{tombstone}))
		}
	}
	for node := range h.view().Nodes() {
		if session, ok := node.CommandSession(); ok && node.State == NodePresent {
			report := reconciledCommand(node.ID, session.Name, h.view().Index()-1)
			if node.ID == h.between("hub", "b").End("b") {
				h.failing(report, "no such connection", x)
			}
			h.must(report)
		}
	}
}

// goldenGroups has groups come whose links are too many for one entry: each is linked
// with two others.
func (h *history) goldenGroups() {
	h.must(makeLinksCommand())
	var commands []*slimcppb.Command
	for i := range entryLinkBudget/linkCost/2 + 3 {
		commands = append(commands, registerCommand(h.sessionName(), fmt.Sprintf("w%02d", i), "n", ""))
	}
	h.apply(commands...)
}

// goldenTemplate has the same segments made from a template, which then fails.
func (h *history) goldenTemplate() {
	segments := expandSegments(h.view().Fleet().GetTopology(), h.view().presentGroups())
	segments = append(segments, linksSegment("edges", [2]string{"a", Wildcard})) // for groups that come
	h.must(templateCommand(h, goldenConfig(NoAuth), segments...))
	h.must(renderedCommand(FailedSegments(testTemplate, h.view().TemplateGroups(), errors.New("undefined value"))))
}

func goldenSnapshot(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(goldenPath("snapshot", SchemaVersion))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
