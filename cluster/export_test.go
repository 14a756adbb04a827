package cluster

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Limits that tests fill up.
const (
	MaxProposals       = maxProposals
	MaxProposalBytes   = maxProposalBytes
	MaxEntryCommands   = maxEntryCommands
	MaxEntriesInFlight = maxEntriesInFlight
	StoreLimit         = storeLimit
)

// WithLogs puts a fault between the library and the log store.
func (o Options) WithLogs(wrap func(raft.LogStore) raft.LogStore) Options {
	o.wrapLogs = wrap
	return o
}

// WithStable puts a fault between the library and the stable store.
func (o Options) WithStable(wrap func(raft.StableStore) raft.StableStore) Options {
	o.wrapStable = wrap
	return o
}

// PeerTransport is what a replica needs of a transport.
type PeerTransport = peerTransport

// WithTransport puts a fault between the library and its transport.
func (o Options) WithTransport(wrap func(PeerTransport) PeerTransport) Options {
	o.wrapTransport = wrap
	return o
}

// WithTrailingLogs keeps fewer entries after a snapshot.
func (o Options) WithTrailingLogs(n uint64) Options {
	o.trailingLogs = n
	return o
}

// WithMaxLogBytes bounds the log's bytes below what is accepted, and looks at them more
// often.
func (o Options) WithMaxLogBytes(n uint64) Options {
	o.maxLogBytes, o.logSizePeriod = n, 20*time.Millisecond
	return o
}

// LogBytes returns the bytes of the log's entries.
func (r *Replica) LogBytes() uint64 { return r.storage.size.bytes() }

// LastLogIndex returns the index of the last entry of raft's log.
func (r *Replica) LastLogIndex() uint64 { return r.raft.LastIndex() }

// FirstLogIndex returns the index of the first entry that is still in the log.
func (r *Replica) FirstLogIndex() (uint64, error) { return r.storage.logs.FirstIndex() }

// Poke makes the replica look again who leads.
func (r *Replica) Poke() { r.readiness.poke() }

// Lead tells the replica that it was elected, or is not any more, as raft does.
func (r *Replica) Lead(elected bool) { r.leadership.set(elected) }

// WithCheckpoints compares the replicas' states more often.
func (o Options) WithCheckpoints(period time.Duration) Options {
	o.checkpointPeriod = period
	return o
}

// Remedies switch off what keeps public faults of the library away.
type Remedies = remedies

// Without switches a remedy off.
func (o Options) Without(change func(*Remedies)) Options {
	change(&o.without)
	return o
}

// The remedies.
func WithoutMainLoopHeartbeats(r *Remedies) { r.mainLoopHeartbeats = true }
func WithoutSingleFlight(r *Remedies)       { r.singleFlight = true }
func WithoutReadConfirmation(r *Remedies)   { r.readConfirmation = true }

// RestoreMark returns what a restore that begins now notes on the disk.
func (r *Replica) RestoreMark() []byte {
	return fmt.Appendf(nil, `{"term":%d,"last_index":%d}`, r.raft.CurrentTerm(), r.raft.LastIndex())
}

// Fenced says why the replica takes no part in Raft, "" if it does.
func (r *Replica) Fenced() string { return r.fence.get() }

// CutLog deletes the end of the log as the library does it.
func (r *Replica) CutLog(first, last uint64) error {
	logs := guardedLogs{LogStore: r.storage.logs, storage: r.storage, fence: r.fenceOff}
	return logs.DeleteRange(first, last)
}

// HasLogEntry reports whether an entry is in raft's log.
func (r *Replica) HasLogEntry(index uint64) bool {
	var entry raft.Log
	return r.storage.logs.GetLog(index, &entry) == nil
}

// Raft returns the library's replica.
func (r *Replica) Raft() *raft.Raft { return r.raft }
