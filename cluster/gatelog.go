package cluster

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// mayCall refuses to ask others for a replica that is fenced.
func (g *gate) mayCall() error {
	if g.replica.fence.get() != "" {
		return errFenced
	}
	return nil
}

// keepsCommitted fences this replica if a leader has other entries in the place of
// committed ones. It is no true leader then: the leader of a term has all entries that
// were committed in earlier terms. One that was elected by a replica that lost a part of
// its log (its disk was put back to an older image) may lack some.
func (g *gate) keepsCommitted(caller string, command any) error {
	// The order matters: what is known to be committed now was committed in the term that
	// is read behind it, or earlier, and a request of an earlier term says nothing.
	known := g.replica.storage.committed.position()
	own := g.replica.raft.CurrentTerm()
	var term uint64
	var claimed logPosition
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		term, claimed = request.Term, lastClaim(request, known.index)
	case *raft.InstallSnapshotRequest:
		term, claimed = request.Term, logPosition{index: request.LastLogIndex, term: request.LastLogTerm}
	}
	if term < own || claimed.index == 0 || claimed.index > known.index {
		return nil
	}
	if here, ok := g.termAt(known, claimed.index); !ok || here == claimed.term {
		return nil
	}
	reason := fmt.Sprintf("%s leads in term %d and has another entry at index %d, of term %d; the entries here are committed up to index %d: "+
		"changes that were acknowledged are lost on the other replicas, and are in this one's log",
		caller, term, claimed.index, claimed.term, known.index)
	g.replica.fenceOff(reason)
	return fmt.Errorf("%w: index %d", errDropsCommitted, claimed.index)
}

// lastClaim is the last place up to an index at which a request says what the leader's
// log has. Two logs that have the same term there are the same up to there, so it is
// enough to look at one place.
func lastClaim(request *raft.AppendEntriesRequest, until uint64) logPosition {
	for i := len(request.Entries) - 1; i >= 0; i-- {
		if entry := request.Entries[i]; entry.Index <= until {
			return logPosition{index: entry.Index, term: entry.Term}
		}
	}
	return logPosition{index: request.PrevLogEntry, term: request.PrevLogTerm}
}

// termAt returns the term of a committed entry of this replica; false if it is not in
// the log any more.
func (g *gate) termAt(known logPosition, index uint64) (term uint64, ok bool) {
	if index == known.index && known.term != 0 {
		return known.term, true
	}
	var entry raft.Log
	if err := g.replica.storage.logs.GetLog(index, &entry); err == nil {
		return entry.Term, true
	}
	if stats := g.replica.raft.Stats(); number(stats, "last_snapshot_index") == index {
		return number(stats, "last_snapshot_term"), true
	}
	return 0, false
}
