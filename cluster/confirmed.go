package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// wentBackInterval is how often a replica is told that it has lost entries.
const wentBackInterval = time.Second

// errWentBack: a follower's log ends before what it has confirmed.
var errWentBack = errors.New("replica has lost entries that it confirmed")

// confirmedLogs is how far followers' logs reach, as they confirmed it to this leader in
// its term. Only the leader of a later term may have them cut anything off.
type confirmedLogs struct {
	mu    sync.Mutex
	term  uint64
	index map[string]uint64    // by replica id
	told  map[string]time.Time // that it has lost entries
}

func (c *confirmedLogs) of(id string, term uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term != c.term {
		return 0
	}
	return c.index[id]
}

func (c *confirmedLogs) note(id string, term, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term < c.term {
		return
	}
	if term > c.term || c.index == nil {
		c.term, c.index = term, map[string]uint64{}
	}
	c.index[id] = max(c.index[id], index)
}

// all returns what was confirmed in a term, by replica id.
func (c *confirmedLogs) all(term uint64) []*slimcppb.ConfirmedIndex {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term != c.term {
		return nil
	}
	var all []*slimcppb.ConfirmedIndex
	for id, index := range c.index {
		all = append(all, &slimcppb.ConfirmedIndex{ReplicaId: id, Index: index})
	}
	slices.SortFunc(all, func(a, b *slimcppb.ConfirmedIndex) int { return strings.Compare(a.GetReplicaId(), b.GetReplicaId()) })
	return all
}

// mayTell reports whether a replica has to be told, and notes that it was.
func (c *confirmedLogs) mayTell(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.told[id]) < wentBackInterval {
		return false
	}
	if c.told == nil || len(c.told) >= maxSeenPeers {
		c.told = map[string]time.Time{}
	}
	c.told[id] = time.Now()
	return true
}

// mustHave returns an index up to which the log of a replica must reach that is asked
// from now on: it confirmed that to this leader, or to an earlier one, who had the state
// keep it.
func (g *gate) mustHave(id string, term uint64) uint64 {
	return max(g.confirmed.of(id, term), g.inState(id))
}

// inState is what the state knows of the end of a replica's log. It is committed.
func (g *gate) inState(id string) uint64 {
	record, ok := g.replica.store.View().Replica(id)
	if !ok {
		return 0
	}
	return record.Confirmed
}

// judgeLog refuses the answer of a follower whose log ends before what it must have, and
// notes what it confirms. An error keeps the library from sending the lost entries again,
// and a heartbeat from counting for the leader's lease: a replica that has lost entries
// may have lost votes too.
func (g *gate) judgeLog(id raft.ServerID, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse, must uint64) error {
	if response.Term > request.Term {
		return nil // a later leader may have had it cut off what this one sent
	}
	if response.LastLog < must {
		return g.wentBack(string(id), must, response.LastLog)
	}
	if response.Success && !isHeartbeat(request) {
		g.confirmed.note(string(id), request.Term, request.PrevLogEntry+uint64(len(request.Entries)))
	}
	return nil
}

// wentBack shows that a replica has lost entries, and has it told.
func (g *gate) wentBack(id string, must, last uint64) error {
	reason := fmt.Sprintf("%s has confirmed entries up to index %d, and its log ends at index %d: it has lost entries and votes, "+
		"as after its disk was put back to an older image; set its data directory aside and let it join anew", id, must, last)
	if g.confirmed.mayTell(id) {
		if fresh, _ := g.setAlarm(reason); fresh {
			g.logger.Error("a replica has lost entries that it confirmed", "replica", id, "confirmed", must, "last", last)
		}
		g.replica.calls.run(func() { g.replica.tellWentBack(id, reason, must) })
	}
	return fmt.Errorf("%w: up to index %d, and its log ends at index %d", errWentBack, must, last)
}

// tellWentBack has a replica that has lost entries leave Raft.
func (r *Replica) tellWentBack(id, reason string, must uint64) {
	ctx, cancel := context.WithTimeout(r.life, describeTimeout)
	defer cancel()
	conn, err := r.connTo(id, false)
	if err == nil {
		_, err = slimcppb.NewReplicaServiceClient(conn).Distrust(ctx, &slimcppb.DistrustRequest{Reason: reason, ConfirmedIndex: must})
	}
	if err != nil {
		r.logger.Warn("a replica that has lost entries could not be told", "replica", id, "error", err)
	}
}

// lastIndex is the index of the last entry of this replica's log.
func (r *Replica) lastIndex() uint64 {
	if r.gate.isStarted() {
		return r.raft.LastIndex()
	}
	return r.startIndex // nothing is appended before the gate is open
}
