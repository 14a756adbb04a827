package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Errors of the commands about replicas.
var (
	// ErrReplicaRemoved: the replica's id was removed from the cluster. It is never
	// let in again: the replica sets its data aside and joins under a new id.
	ErrReplicaRemoved = errors.New("replica id was removed from the cluster")
	// ErrInactiveSchema: the command, or the snapshot, needs a schema that the
	// cluster has not been upgraded to (protocol X5).
	ErrInactiveSchema = errors.New("schema is not active before the upgrade is finalized")
	// ErrOldSchema: a replica knows only older schemas than it has to.
	ErrOldSchema = errors.New("replica's version is too old")
	// ErrEarlierStart: a later start of the replica's data directory is known. The one
	// that speaks is a copy of it, or an older image that was put back.
	ErrEarlierStart = errors.New("a later start of this replica is known: its data directory was copied, or put back from an older image")
)

// Replica is what the state knows of a replica.
type Replica struct {
	ID string
	// Fingerprint of what its file presented last; empty if it has presented none
	// (protocol T2).
	Fingerprint []byte

	// What it said of itself when it started last.
	BootID  string
	Name    string
	Address string // of its cluster port
	Version string
	Schema  uint32 // the newest that it knows; 0 if it has not said so
	Boots   uint64 // how often its data directory was started; 0 if it has not said so

	// Confirmed is an index up to which its log had all that is committed; 0 if nobody has
	// noted one.
	Confirmed uint64

	// HeldBack: an operator keeps it from voting.
	HeldBack bool
	// Removed replicas are kept, so that their id stays barred.
	Removed bool
}

// Presented reports whether the replica's file was presented before; the record
// alone says only that the replica has started (protocol T2).
func (r *Replica) Presented() bool { return len(r.Fingerprint) > 0 }

// Replicas yields the replicas that the state knows, the removed ones too, by id.
func (t *tables) Replicas() iter.Seq[*Replica] { return t.replicas.all() }

// Replica returns what the state knows of a replica, also of one that was removed.
func (t *tables) Replica(id string) (*Replica, bool) { return t.replicas.get(&Replica{ID: id}) }

// ReplicaRemoved reports whether the id was removed from the cluster.
func (t *tables) ReplicaRemoved(id string) bool {
	replica, ok := t.Replica(id)
	return ok && replica.Removed
}

// ActiveSchema is the newest schema that a command may need (protocol X5). It is 1
// until an upgrade is finalized.
func (t *tables) ActiveSchema() uint32 { return t.meta.ActiveSchema }

// recordReplica notes what a replica says of itself when it starts.
func (a *applier) recordReplica(command *slimcppb.RecordReplica) Result {
	replica, err := a.replicaToChange(command.GetReplicaId())
	if err != nil {
		return Result{Err: err}
	}
	if schema := command.GetSchema(); schema < a.meta.ActiveSchema {
		return Result{Err: fmt.Errorf("%w: it knows schema %d, the cluster uses schema %d", ErrOldSchema, schema, a.meta.ActiveSchema)}
	}
	if a.meta.ActiveSchema >= 2 {
		if replica.startedAfter(command.GetBoots(), command.GetBootId()) {
			return Result{Err: fmt.Errorf("%w: start %d of %q, %d is known", ErrEarlierStart, command.GetBoots(), replica.ID, replica.Boots)}
		}
		replica.Boots = max(replica.Boots, command.GetBoots())
	}
	replica.BootID, replica.Name, replica.Address = command.GetBootId(), command.GetName(), command.GetAddress()
	replica.Version, replica.Schema = command.GetVersion(), command.GetSchema()
	a.setReplica(replica)
	return Result{}
}

// confirmLogs notes how far replicas' logs reach, as the leader knows it. A replica whose
// log ends before that later has lost entries: those up to there are committed with the
// entry that says so.
func (a *applier) confirmLogs(confirmed []*slimcppb.ConfirmedIndex) {
	for _, log := range confirmed {
		replica, ok := a.Replica(log.GetReplicaId())
		if !ok || replica.Removed || log.GetIndex() <= replica.Confirmed || log.GetIndex() >= a.index() {
			continue
		}
		changed := *replica
		changed.Confirmed = log.GetIndex()
		a.setReplica(changed)
	}
}

// startedAfter reports whether the record is of a later start of the replica than one
// that says its number and its boot id, or of another start with the same number: the
// number is written down before it is used, so two starts have it only if the data
// directory was copied. 0 is the number of a start that does not say it.
func (r *Replica) startedAfter(boots uint64, bootID string) bool {
	return boots != 0 && (boots < r.Boots || boots == r.Boots && bootID != r.BootID)
}

// presentFile notes the fingerprint of what a replica's file presented (protocol
// T2).
func (a *applier) presentFile(id string, fingerprint []byte) error {
	replica, err := a.replicaToChange(id)
	if err != nil {
		return err
	}
	replica.Fingerprint = bytes.Clone(fingerprint)
	a.setReplica(replica)
	return nil
}

// replicaToChange returns a copy of the record of a replica, an empty one if there
// is none.
func (a *applier) replicaToChange(id string) (Replica, error) {
	if id == "" {
		return Replica{}, fmt.Errorf("%w: no replica id", ErrInvalid)
	}
	replica, ok := a.Replica(id)
	switch {
	case !ok:
		return Replica{ID: id}, nil
	case replica.Removed:
		return Replica{}, fmt.Errorf("%w: %q", ErrReplicaRemoved, id)
	}
	return *replica, nil
}

func (a *applier) setReplica(replica Replica) { a.replicas.set(&replica) }

// holdReplica notes whether an operator keeps a replica from voting, so that it is
// not promoted by itself.
func (a *applier) holdReplica(command *slimcppb.HoldReplica) Result {
	replica, err := a.replicaToChange(command.GetReplicaId())
	if err != nil {
		return Result{Err: err}
	}
	replica.HeldBack = command.GetHeld()
	a.setReplica(replica)
	return Result{}
}

// removeReplica bars the id of a replica and ends its sessions: nobody else would.
// Its process may live, and has yet to send its nodes elsewhere: they get the time of
// those of a replica that drains (protocol D2).
func (a *applier) removeReplica(command *slimcppb.RemoveReplica) Result {
	id := command.GetReplicaId()
	if a.ReplicaRemoved(id) {
		return Result{}
	}
	replica, err := a.replicaToChange(id)
	if err != nil {
		return Result{Err: err}
	}
	a.setReplica(Replica{ID: id, Name: replica.Name, Address: replica.Address, Version: replica.Version, Boots: replica.Boots, Removed: true})
	a.endSessionsFor(id, slimcppb.LossReason_LOSS_REASON_DRAINING, func(string) bool { return true })
	return Result{}
}

// endSessions ends the sessions of those boots of a replica that are over: their
// streams have ended.
func (a *applier) endSessions(replica string, over func(boot string) bool) {
	a.endSessionsFor(replica, slimcppb.LossReason_LOSS_REASON_ENDED, over)
}

// endSessionsFor ends the sessions of those boots of a replica that are over, and
// forgets which of theirs ended before.
func (a *applier) endSessionsFor(replica string, reason slimcppb.LossReason, over func(boot string) bool) {
	var ending []SessionName
	for key := range a.sessions.from(sessionKey{name: SessionName{ReplicaID: replica}}) {
		if key.name.ReplicaID != replica {
			break
		}
		if over(key.name.BootID) {
			ending = append(ending, key.name)
		}
	}
	for _, name := range ending {
		a.endSession(name, reason)
	}
	a.forgetEnded(replica, over)
}

// finalizeUpgrade makes a newer schema the active one (protocol X5). What it
// answers depends on the state alone, not on what this binary knows.
func (a *applier) finalizeUpgrade(command *slimcppb.FinalizeUpgrade) Result {
	schema := command.GetSchema()
	if schema <= a.meta.ActiveSchema {
		return Result{}
	}
	var old []string
	able := 0
	for replica := range a.Replicas() {
		switch {
		case replica.Schema == 0: // removed, or it has not started yet
		case replica.Schema < schema:
			old = append(old, fmt.Sprintf("%s (schema %d)", replica.label(), replica.Schema))
		default:
			able++
		}
	}
	if len(old) > 0 {
		return Result{Err: fmt.Errorf("%w for schema %d: %s", ErrOldSchema, schema, strings.Join(old, ", "))}
	}
	if able == 0 {
		return Result{Err: fmt.Errorf("%w for schema %d: no replica has said which schema it knows", ErrOldSchema, schema)}
	}
	if schema > a.known {
		// Cannot be while this replica's own record is right.
		return Result{Err: schemaError("cluster", schema, a.known)}
	}
	a.meta.ActiveSchema = schema
	return Result{}
}

func schemaError(what string, needs, known uint32) error {
	return fmt.Errorf("%w: %s needs schema %d, this binary knows %d", ErrSchema, what, needs, known)
}

// label is what messages call a replica.
func (r *Replica) label() string {
	if r.Name == "" || r.Name == r.ID {
		return r.ID
	}
	return r.Name + " " + r.ID
}

func (r *Replica) proto() *slimcppb.ReplicaRecord {
	return &slimcppb.ReplicaRecord{
		ReplicaId: r.ID, Fingerprint: r.Fingerprint, Name: r.Name, Address: r.Address,
		Version: r.Version, Schema: r.Schema, BootId: r.BootID, Removed: r.Removed,
		HeldBack: r.HeldBack, Boots: r.Boots, Confirmed: r.Confirmed,
	}
}

func replicaFromProto(record *slimcppb.ReplicaRecord) *Replica {
	return &Replica{
		ID: record.GetReplicaId(), Fingerprint: slices.Clone(record.GetFingerprint()),
		Name: record.GetName(), Address: record.GetAddress(), Version: record.GetVersion(),
		Schema: record.GetSchema(), BootID: record.GetBootId(), Removed: record.GetRemoved(),
		HeldBack: record.GetHeldBack(), Boots: record.GetBoots(), Confirmed: record.GetConfirmed(),
	}
}
