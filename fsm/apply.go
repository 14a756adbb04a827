package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// MaxFailures bounds the failed routes that the state remembers of a node
// (protocol C8).
const MaxFailures = 100

// applier applies one command.
type applier struct {
	*tables
	changes  *changeSet
	position Position
	term     uint64
	command  *slimcppb.Command
	random   *rand.PCG
	// pairsChanged: a group that came or went changed which other groups are
	// linked.
	pairsChanged bool
	// blockedChanges is worked off when the command is.
	blockedChanges blockedChanges
	// loading: a snapshot is being read, nothing is derived yet.
	loading bool
	// linkBudget is what the links that this entry makes and ends may yet cost.
	linkBudget *int
	// known is the newest schema that this binary knows.
	known uint32
	// checkpoint: the state after the entry is to be handed out.
	checkpoint bool
}

func (a *applier) index() uint64 { return a.position.Index }

// now is the state's clock, never the machine's.
func (a *applier) now() time.Time { return a.meta.Clock }

// pick draws one of n candidates, which must be in order, from the command's
// seed. The reduction is our own, so that a release of the library cannot change
// what old entries mean (protocol X5).
func (a *applier) pick(n int) int {
	if a.random == nil {
		stream := a.position.Index<<16 | uint64(a.position.Command)
		a.random = rand.NewPCG(a.command.GetSeed(), stream)
	}
	return int(a.random.Uint64() % uint64(n))
}

// apply runs the fences, then the command. A command that fails changes nothing but
// the clock and, of a session that it names, the sequence number.
func (a *applier) apply() Result {
	schema := a.command.GetSchema()
	switch {
	case schema > a.known:
		return Result{Err: schemaError("command", schema, a.known)}
	case a.command.GetPayload() == nil:
		return Result{Err: ErrUnknownCommand}
	case schema > a.meta.ActiveSchema:
		return Result{Err: fmt.Errorf("%w: command needs schema %d, the cluster uses %d", ErrInactiveSchema, schema, a.meta.ActiveSchema)}
	}
	if id := a.command.GetRequestId(); id != "" {
		return a.once(id, a.fenced)
	}
	return a.fenced()
}

// fenced applies a command unless it was decided under another generation of the
// state or another leadership (protocol X3, C14).
func (a *applier) fenced() Result {
	if init, ok := a.command.GetPayload().(*slimcppb.Command_InitCluster); ok {
		return a.initCluster(init.InitCluster)
	}
	switch {
	case a.meta.ClusterID == "":
		return Result{Err: ErrNotInitialised}
	case a.command.GetGeneration() != a.meta.Generation:
		return Result{Err: ErrStaleGeneration}
	case a.command.GetTerm() != a.term && (a.command.GetTerm() != 0 || leadersWork(a.command)):
		return Result{Err: ErrStaleTerm}
	}
	a.advanceClock()
	result := a.dispatch()
	if a.pairsChanged {
		a.topologyChanged()
	}
	a.settleBlocked()
	return result
}

// leadersWork reports whether only a leadership may decide a command, so that it
// must carry a term (protocol C14).
func leadersWork(command *slimcppb.Command) bool {
	switch command.GetPayload().(type) {
	case *slimcppb.Command_DepartNode, *slimcppb.Command_NodeLeft, *slimcppb.Command_ExpireNodes,
		*slimcppb.Command_NodeReconciled, *slimcppb.Command_Observed, *slimcppb.Command_ReplaceLink,
		*slimcppb.Command_PurgeTombstones, *slimcppb.Command_SetRenderedSegments, *slimcppb.Command_RemoveReplica,
		*slimcppb.Command_HoldReplica, *slimcppb.Command_Checkpoint, *slimcppb.Command_Probe,
		*slimcppb.Command_MakeLinks:
		return true
	}
	return false
}

func (a *applier) advanceClock() {
	if stamped := time.Unix(0, a.command.GetTimeUnixNanos()).UTC(); stamped.After(a.meta.Clock) {
		a.meta.Clock = stamped
	}
}

func (a *applier) dispatch() Result {
	switch payload := a.command.GetPayload().(type) {
	case *slimcppb.Command_RegisterNode:
		return a.registerNode(payload.RegisterNode)
	case *slimcppb.Command_SessionLost:
		return a.sessionLost(payload.SessionLost)
	case *slimcppb.Command_DeregisterNode:
		return a.deregisterNode(payload.DeregisterNode)
	case *slimcppb.Command_DepartNode:
		return a.departNode(payload.DepartNode)
	case *slimcppb.Command_NodeLeft:
		return a.nodeLeft(payload.NodeLeft)
	case *slimcppb.Command_Announce:
		return a.announce(payload.Announce)
	case *slimcppb.Command_ClaimLink:
		return a.claimLink(payload.ClaimLink)
	case *slimcppb.Command_NodeReconciled:
		return a.nodeReconciled(payload.NodeReconciled)
	case *slimcppb.Command_Observed:
		return a.observed(payload.Observed)
	case *slimcppb.Command_ReplaceLink:
		return a.replaceLink(payload.ReplaceLink)
	case *slimcppb.Command_PurgeTombstones:
		return a.purgeTombstones(payload.PurgeTombstones)
	case *slimcppb.Command_LeaderStarted:
		return a.leaderStarted(payload.LeaderStarted)
	case *slimcppb.Command_SetFleetConfig:
		return a.setFleetConfig(payload.SetFleetConfig)
	case *slimcppb.Command_SetRenderedSegments:
		return a.setRenderedSegments(payload.SetRenderedSegments)
	case *slimcppb.Command_AddSegment:
		return a.addSegment(payload.AddSegment)
	case *slimcppb.Command_RemoveSegment:
		return a.removeSegment(payload.RemoveSegment)
	case *slimcppb.Command_AddEdge:
		return a.addEdge(payload.AddEdge)
	case *slimcppb.Command_RemoveEdge:
		return a.removeEdge(payload.RemoveEdge)
	case *slimcppb.Command_AddGroup:
		return a.addGroup(payload.AddGroup)
	case *slimcppb.Command_RemoveGroup:
		return a.removeGroup(payload.RemoveGroup)
	case *slimcppb.Command_ExpireNodes:
		return a.expireNodes(payload.ExpireNodes)
	case *slimcppb.Command_RecordReplica:
		return a.recordReplica(payload.RecordReplica)
	case *slimcppb.Command_RemoveReplica:
		return a.removeReplica(payload.RemoveReplica)
	case *slimcppb.Command_HoldReplica:
		return a.holdReplica(payload.HoldReplica)
	case *slimcppb.Command_FinalizeUpgrade:
		return a.finalizeUpgrade(payload.FinalizeUpgrade)
	case *slimcppb.Command_Checkpoint:
		a.checkpoint = true
		return Result{}
	case *slimcppb.Command_Probe:
		return a.probe(payload.Probe)
	case *slimcppb.Command_MakeLinks:
		return a.makeLinks()
	}
	return Result{Err: ErrUnknownCommand}
}

func (a *applier) initCluster(command *slimcppb.InitCluster) Result {
	switch {
	case command.GetClusterId() == "":
		return Result{Err: fmt.Errorf("%w: empty cluster id", ErrInvalid)}
	case a.meta.ClusterID == command.GetClusterId():
		return Result{}
	case a.meta.ClusterID != "":
		return Result{Err: ErrInitialised}
	case command.GetActiveSchema() > a.known:
		return Result{Err: schemaError("cluster", command.GetActiveSchema(), a.known)}
	}
	a.advanceClock()
	a.meta.ActiveSchema = max(1, command.GetActiveSchema())
	a.meta.ClusterID, a.meta.Generation = command.GetClusterId(), 1
	return Result{}
}

// leaderStarted begins a leadership and ends what older boots of the leader's
// replica left behind: their streams ended with their process (protocol S2).
func (a *applier) leaderStarted(command *slimcppb.LeaderStarted) Result {
	if command.GetTerm() != a.term {
		return Result{Err: ErrStaleTerm}
	}
	replica, boot := command.GetReplicaId(), command.GetBootId()
	a.meta.LeaderTerm, a.meta.LeaderReplica, a.meta.LeaderBoot = command.GetTerm(), replica, boot
	a.endSessions(replica, func(other string) bool { return other != boot })
	return Result{}
}

func (a *applier) forgetEnded(replica string, over func(boot string) bool) {
	var forget []endedSession
	for ended := range a.ended.from(endedSession{name: SessionName{ReplicaID: replica}}) {
		if ended.name.ReplicaID != replica {
			break
		}
		if over(ended.name.BootID) {
			forget = append(forget, ended)
		}
	}
	for _, ended := range forget {
		a.unbar(ended)
	}
}

// setFleetConfig replaces the fleet configuration, and notes what the file of the
// replica that presents it says (protocol T1, T2).
func (a *applier) setFleetConfig(command *slimcppb.SetFleetConfig) Result {
	if err := a.acceptRendered(command.GetConfig(), command.GetRendered()); err != nil {
		return Result{Err: err}
	}
	if id := command.GetReplicaId(); id != "" {
		if err := a.presentFile(id, command.GetFingerprint()); err != nil {
			return Result{Err: err}
		}
	}
	if command.GetConfig() == nil {
		return Result{}
	}
	before, rendered := a.fleet, a.rendered
	a.fleet, a.rendered = command.GetConfig(), command.GetRendered()
	a.meta.FleetRevision = a.index()
	a.changes.Fleet = true
	if !proto.Equal(before.GetTopology(), a.fleet.GetTopology()) || !sameSegments(rendered, a.rendered) {
		a.topologyChanged() // anything else leaves the paths as they are
	}
	return Result{}
}

// topologyChanged ends the links that the topology no longer allows and makes
// those that it asks for.
func (a *applier) topologyChanged() {
	a.graph = a.expand(a.presentGroups())
	a.blockedChanges.all = true
	a.treesChanged()
	if a.meta.ActiveSchema >= 2 {
		for _, group := range a.presentGroups() {
			a.compareLinks(UnlinkedGroup{Group: group}, "")
		}
		return
	}
	var forbidden []*Link
	for pair := range a.pairs.all() {
		if link, ok := a.Link(pair.linkID); ok && !a.graph.allowed(pair.a, pair.b) {
			forbidden = append(forbidden, link)
		}
	}
	for _, link := range forbidden {
		a.deleteLink(link, notAllowed)
	}
	for _, group := range a.presentGroups() {
		a.ensureLinks(group, "")
	}
}

// presentGroups returns the groups that the topology is expanded for, in order.
func (t *tables) presentGroups() []string {
	var present []string
	for group := range t.Groups() {
		if group.Present > 0 && group.Name != "" {
			present = append(present, group.Name)
		}
	}
	return present
}

func (a *applier) treesChanged() {
	a.meta.TreesRevision = a.index()
	a.changes.Trees = true
}

// regroup follows a group that came (or went) with its first (or last) present
// node.
func (a *applier) regroup(group string, came bool) {
	if group == "" || a.loading {
		return
	}
	before := a.graph
	a.graph = a.expand(a.presentGroups())
	bigger, smaller, moved := a.graph, before, movedGroup{group: group}
	if !came {
		bigger, smaller, moved.before = before, a.graph, before
	}
	a.blockedChanges.groups = append(a.blockedChanges.groups, group)
	a.blockedChanges.moved = append(a.blockedChanges.moved, moved)
	// An instance of a template may link groups other than the one it is for.
	if len(bigger.segments) != len(smaller.segments) && bigger.edgesWithout(group) != smaller.edgesWithout(group) {
		a.pairsChanged = true
	}
}

// purgeTombstones drops what the leader found confirmed and old enough.
func (a *applier) purgeTombstones(command *slimcppb.PurgeTombstones) Result {
	for _, key := range command.GetKeys() {
		name, err := nameFromProto(key.GetName())
		if err != nil {
			continue
		}
		wanted := &Tombstone{Name: name, Announcer: Announcer{NodeID: key.GetNodeId()}}
		if tombstone, ok := a.tombstones.get(wanted); ok && tombstone.Revision == key.GetRevision() {
			a.tombstones.delete(tombstone)
		}
	}
	for _, id := range command.GetLinkIds() {
		if link, ok := a.Link(id); ok && link.Gone {
			a.removeLink(link)
		}
	}
	return Result{}
}

// withoutSession returns sessions without one of them, nil if none are left.
func withoutSession(sessions []Session, name SessionName) []Session {
	return slices.DeleteFunc(slices.Clone(sessions), func(s Session) bool { return s.Name == name })
}
