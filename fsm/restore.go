package fsm

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// ErrOtherCluster is wrapped by the error for a snapshot of another cluster.
var ErrOtherCluster = errors.New("snapshot is of another cluster")

// RestoreOptions say how a snapshot is to be made fit for a restore.
type RestoreOptions struct {
	// Now is the leader's time.
	Now time.Time
	// Force takes a snapshot of another cluster, whose nodes, links, names and
	// fleet configuration become this cluster's.
	Force bool
	// Own: the file is this cluster's own state, and not from outside.
	Own bool
}

// SnapshotInfo says what a snapshot holds.
type SnapshotInfo struct {
	ClusterID  string
	Generation uint64
	Index      uint64 // of the last command applied
	Term       uint64 // of that command
	Schema     uint32 // that was active, so what reading the file needs
	Clock      time.Time
	Records    []RecordCount // every kind, in the order of the file
}

// RecordCount is the number of records of a kind.
type RecordCount struct {
	Kind  string // for people: "nodes", "links"
	Count int
}

// Info returns what the snapshot holds.
func (s *Snapshot) Info() SnapshotInfo {
	t := &s.tables
	info := SnapshotInfo{
		ClusterID: t.meta.ClusterID, Generation: t.meta.Generation, Index: t.meta.Index, Term: t.meta.Term,
		Schema: t.meta.ActiveSchema, Clock: t.meta.Clock,
	}
	info.Records = t.recordCounts()
	return info
}

// recordCounts counts what a state holds as lists do: what was deleted or removed and
// is only remembered is a kind of its own.
func (t *tables) recordCounts() []RecordCount {
	deleted, removed := 0, 0
	for link := range t.Links() {
		if !link.Live() {
			deleted++
		}
	}
	for replica := range t.Replicas() {
		if replica.Removed {
			removed++
		}
	}
	var counts []RecordCount
	for kind, count := range t.sizes() {
		switch name := recordKinds[kind]; name {
		case "links":
			counts = append(counts, RecordCount{name, count - deleted}, RecordCount{"deleted links", deleted})
		case "replicas":
			counts = append(counts, RecordCount{name, count - removed}, RecordCount{"removed replicas", removed})
		case "segments": // those of a file have no records
			counts = append(counts, RecordCount{name, t.segmentCount()})
		default:
			counts = append(counts, RecordCount{name, count})
		}
	}
	return counts
}

// InspectSnapshot reads and judges a whole snapshot, as a restore does, and says
// what it holds. Its errors wrap ErrSnapshot, and a StateError that lists all that is
// wrong with what it holds.
func InspectSnapshot(r io.Reader) (SnapshotInfo, error) {
	snapshot, err := ReadSnapshot(r)
	if err != nil {
		return SnapshotInfo{}, err
	}
	return snapshot.Info(), nil
}

// RewriteSnapshot reads a snapshot from r and writes to w the one that the
// cluster, whose present state the leader gives, is to be restored from (protocol
// X3). Nothing is written before the file was read to its end and checked.
//
// What the fleet is comes from the file: nodes, links under their ids, names,
// fleet configuration, topology, secrets. It has no sessions; each node counts as
// one whose stream ended now. What the cluster is comes from the present: its id,
// replicas and removed ids, the fingerprints of their files, the active schema, the
// leadership, results of requests. The generation is higher than both, so that what
// was decided before the restore changes nothing, and so are index and term: what the
// file's records refer to has to be below.
//
// The returned info is that of what was written. The errors are ErrSnapshot for a
// file that cannot be read, ErrOtherCluster without Force, ErrInactiveSchema for a
// file that needs an upgrade that is not finalized here, ErrNotInitialised for a
// present state without a cluster, and those of w.
func RewriteSnapshot(w io.Writer, r io.Reader, present *View, options RestoreOptions) (SnapshotInfo, error) {
	return rewriteSnapshot(w, r, present, options, SchemaVersion)
}

func rewriteSnapshot(w io.Writer, r io.Reader, present *View, options RestoreOptions, known uint32) (SnapshotInfo, error) {
	if present.ClusterID() == "" {
		return SnapshotInfo{}, ErrNotInitialised
	}
	file, err := readSnapshot(r, known, !options.Own)
	if err != nil {
		return SnapshotInfo{}, err
	}
	if err := fits(&file.tables, present, options); err != nil {
		return SnapshotInfo{}, err
	}
	rewritten := &Snapshot{tables: restored(&file.tables, &present.tables, options.Now)}
	if err := rewritten.Write(w); err != nil {
		return SnapshotInfo{}, fmt.Errorf("write the snapshot: %w", err)
	}
	return rewritten.Info(), nil
}

func fits(file *tables, present *View, options RestoreOptions) error {
	j := &judge{tables: file}
	j.within(&present.meta, options.Now)
	if err := j.err(); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return fitsCluster(&file.meta, present, options)
}

func fitsCluster(file *meta, present *View, options RestoreOptions) error {
	if file.ClusterID != present.ClusterID() && !options.Force {
		return fmt.Errorf("%w: it is of %q, this cluster is %q", ErrOtherCluster, file.ClusterID, present.ClusterID())
	}
	if file.ActiveSchema > present.ActiveSchema() {
		return fmt.Errorf("%w: snapshot needs schema %d, the cluster uses %d", ErrInactiveSchema, file.ActiveSchema, present.ActiveSchema())
	}
	return nil
}

// restored merges a snapshot with the present state. Of the result only the
// records count; the indexes are made when it is read.
func restored(file, present *tables, now time.Time) tables {
	t := file.copy()
	t.meta = meta{
		ClusterID:    present.meta.ClusterID,
		Generation:   max(file.meta.Generation, present.meta.Generation) + 1,
		Index:        max(file.meta.Index, present.meta.Index),
		Term:         max(file.meta.Term, present.meta.Term),
		Clock:        slices.MaxFunc([]time.Time{file.meta.Clock, present.meta.Clock, now.UTC()}, time.Time.Compare),
		LeaderTerm:   present.meta.LeaderTerm,
		ActiveSchema: present.meta.ActiveSchema,

		LeaderReplica: present.meta.LeaderReplica,
		LeaderBoot:    present.meta.LeaderBoot,
		TreesRevision: file.meta.TreesRevision,
		FleetRevision: file.meta.FleetRevision,
	}
	for node := range file.nodes.all() {
		t.nodes.set(withoutSessions(node, &t.meta))
	}
	fresh := newTables()
	t.ended, t.replicas, t.requestOrder = fresh.ended, fresh.replicas, fresh.requestOrder
	// The present tables belong to a view: they are read, not copied.
	for replica := range present.replicas.all() {
		t.replicas.set(replica)
	}
	for result := range present.requestOrder.all() {
		t.requestOrder.set(result)
	}
	for token := range present.tokens.all() { // one that was used stays used
		t.tokens.set(token)
	}
	return t
}

// withoutSessions returns a node as one whose stream ended now (protocol X3). A
// node that departed before keeps the time since when it is away.
func withoutSessions(old *Node, now *meta) *Node {
	node := *old
	last := old.LastSession.Name
	if session, ok := old.CommandSession(); ok {
		last = session.Name
	}
	if old.Connected() || old.State != NodeDeparted {
		node.LastSession = LostSession{
			Name: last, Reason: slimcppb.LossReason_LOSS_REASON_ENDED, At: now.Clock, Index: now.Index,
		}
	}
	node.Sessions = nil
	node.Acked = 0
	node.Failures = nil
	node.Silent = false
	return &node
}
