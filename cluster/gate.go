package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster/peer"
)

const (
	// maxTermAhead is how far a term may be above this replica's own: at two elections
	// a second it is reached in 68 years. The library believes any term, counts up from
	// it, and has no larger one behind the largest.
	maxTermAhead = 1 << 32
	// maxIndexAhead is how far an index may be above this replica's own last one.
	maxIndexAhead = 1 << 40
	// maxSnapshotBytes bounds what a leader may announce as a snapshot.
	maxSnapshotBytes = 64 << 30
	// refusalShown is how long a refused request is shown in the cluster's status.
	refusalShown = time.Hour
)

var (
	// errNotMember: who speaks Raft is no member, and this replica has a leader.
	errNotMember = errors.New("caller is not a member of this cluster")
	// errOutOfRange: a term or an index that cannot be.
	errOutOfRange = errors.New("term or index out of range")
	// errMisnamed: a request or an answer in the name of another replica.
	errMisnamed = errors.New("replica speaks in the name of another one")
)

// gate stands between the port and the Raft library. It says which requests and
// answers the library gets to see: the library itself believes whoever connects.
//
// Every request of every caller passes judgeRequest, and every answer judgeAnswer, on
// the goroutine of its connection, before the library has seen any of it. What else
// has to be judged before that belongs there, too.
type gate struct {
	replica *Replica
	logger  hclog.Logger
	// started is closed when the library runs: before that there is nothing to
	// compare with.
	started chan struct{}

	confirmed confirmedLogs

	mu      sync.Mutex
	refused refusal
}

// refusal is the last request that was out of range.
type refusal struct {
	text  string
	at    time.Time
	count uint64
}

func newGate(r *Replica) *gate {
	return &gate{replica: r, logger: r.logger.Named("gate"), started: make(chan struct{})}
}

// isStarted reports whether the library runs, so that there is a configuration and a
// network to look into.
func (g *gate) isStarted() bool {
	select {
	case <-g.started:
		return true
	default:
		return false
	}
}

// judgeRequest decides on a request by the id that its caller said in its hello. It
// may change the request. An error refuses it; an answer that is not nil is sent
// instead of the library's.
func (g *gate) judgeRequest(caller string, command any) (answer any, err error) {
	select {
	case <-g.started:
	case <-g.replica.done:
		return nil, ErrShutdown
	}
	if g.replica.fence.get() != "" {
		return nil, errFenced
	}
	if g.replica.store.View().ReplicaRemoved(caller) {
		return nil, fmt.Errorf("%w: %s", peer.ErrRemoved, caller)
	}
	if err := named(caller, command); err != nil {
		return nil, err
	}
	if err := g.inRange(command); err != nil {
		g.note(caller, err)
		return nil, err
	}
	answer, err = g.maySend(caller, command)
	if answer != nil || err != nil {
		return answer, err
	}
	return nil, g.keepsCommitted(caller, command)
}

// named checks that a request bears its caller's id, and puts the id in the place of
// the address: by that the library remembers whom it voted for, and who leads.
func named(caller string, command any) error {
	header := headerOf(command)
	if header == nil || string(header.ID) != caller {
		return fmt.Errorf("%w: a request of %s", errMisnamed, caller)
	}
	header.Addr = header.ID // the library looks at the older fields only where this is empty
	return nil
}

// headerOf returns the header of a request, nil of anything else.
func headerOf(command any) *raft.RPCHeader {
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		return &request.RPCHeader
	case *raft.RequestVoteRequest:
		return &request.RPCHeader
	case *raft.RequestPreVoteRequest:
		return &request.RPCHeader
	case *raft.InstallSnapshotRequest:
		return &request.RPCHeader
	case *raft.TimeoutNowRequest:
		return &request.RPCHeader
	}
	return nil
}

// inRange refuses terms and indexes that no replica of this cluster can have.
func (g *gate) inRange(command any) error {
	terms, indexes := []uint64{}, []uint64{}
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		if err := ordered(request); err != nil {
			return err
		}
		terms = append(terms, request.Term, request.PrevLogTerm)
		indexes = append(indexes, request.PrevLogEntry, request.LeaderCommitIndex)
		if last := len(request.Entries) - 1; last >= 0 {
			indexes = append(indexes, request.Entries[last].Index)
		}
	case *raft.RequestVoteRequest:
		terms = append(terms, request.Term, request.LastLogTerm)
		indexes = append(indexes, request.LastLogIndex)
	case *raft.RequestPreVoteRequest:
		terms = append(terms, request.Term, request.LastLogTerm)
		indexes = append(indexes, request.LastLogIndex)
	case *raft.InstallSnapshotRequest:
		if request.LastLogTerm > request.Term {
			return fmt.Errorf("%w: a snapshot of term %d in term %d", errOutOfRange, request.LastLogTerm, request.Term)
		}
		if request.Size < 0 || request.Size > maxSnapshotBytes {
			return fmt.Errorf("%w: a snapshot of %d bytes", errOutOfRange, request.Size)
		}
		terms = append(terms, request.Term)
		indexes = append(indexes, request.LastLogIndex, request.ConfigurationIndex)
	}
	for _, term := range terms {
		if err := g.termInRange(term); err != nil {
			return err
		}
	}
	last := g.replica.raft.LastIndex()
	for _, index := range indexes {
		if index > last+maxIndexAhead {
			return fmt.Errorf("%w: index %d, the last one here is %d", errOutOfRange, index, last)
		}
	}
	return nil
}

func (g *gate) termInRange(term uint64) error {
	if own := g.replica.raft.CurrentTerm(); term > own+maxTermAhead {
		return fmt.Errorf("%w: term %d, the one here is %d", errOutOfRange, term, own)
	}
	return nil
}

// ordered checks that entries follow each other. The library stores what it gets: an
// entry behind a gap ends it when it is committed.
func ordered(request *raft.AppendEntriesRequest) error {
	term := request.PrevLogTerm
	for i, entry := range request.Entries {
		if entry == nil {
			return fmt.Errorf("%w: entry %d is missing", errOutOfRange, i)
		}
		if want := request.PrevLogEntry + 1 + uint64(i); entry.Index != want {
			return fmt.Errorf("%w: entry %d has index %d, not %d", errOutOfRange, i, entry.Index, want)
		}
		if entry.Term < term || entry.Term > request.Term {
			return fmt.Errorf("%w: entry %d of term %d, behind one of term %d, in term %d", errOutOfRange, entry.Index, entry.Term, term, request.Term)
		}
		term = entry.Term
	}
	return nil
}

// maySend decides whether a caller may send a request. A member of the latest
// configuration may; only the leader may have this replica stand for election. One
// that is no member is followed, and voted for, by a replica that neither leads nor
// hears a leader: it may have been away while the members changed. Raft's safety does
// not rest on the receiver's configuration.
func (g *gate) maySend(caller string, command any) (answer any, err error) {
	servers := g.replica.raft.GetConfiguration().Configuration().Servers
	_, known := serverOf(servers, caller)
	_, leader := g.replica.raft.LeaderWithID()
	switch request := command.(type) {
	case *raft.TimeoutNowRequest:
		if !known || string(leader) != caller {
			return nil, fmt.Errorf("%w: %s does not lead", errNotMember, caller)
		}
	case *raft.AppendEntriesRequest, *raft.InstallSnapshotRequest:
		// Without a configuration this replica is joining the caller's cluster, which
		// the hello has shown.
		if !known && len(servers) > 0 && g.led(caller) {
			return nil, fmt.Errorf("%w: %s", errNotMember, caller)
		}
	case *raft.RequestVoteRequest:
		switch {
		case len(servers) == 0 || !known && g.led(caller):
			return nil, fmt.Errorf("%w: %s", errNotMember, caller)
		case !known:
			request.ID = nil // the library would look for it in its configuration
		}
	case *raft.RequestPreVoteRequest:
		switch {
		case len(servers) == 0 || !known && g.led(caller):
			return nil, fmt.Errorf("%w: %s", errNotMember, caller)
		case !known:
			return g.preVote(request), nil
		}
	}
	return nil, nil
}

// led reports whether this replica leads, or has heard of late from a leader other
// than the caller. That it gave its vote is no contact with a leader, though the
// library counts it as one.
func (g *gate) led(caller string) bool {
	r := g.replica.raft
	if r.State() == raft.Leader {
		return true
	}
	_, leader := r.LeaderWithID()
	return leader != "" && string(leader) != caller && time.Since(r.LastContact()) < g.replica.options.Timings.Heartbeat
}

// preVote answers a candidate that is not in this replica's configuration, as the
// library answers one that is.
func (g *gate) preVote(request *raft.RequestPreVoteRequest) *raft.RequestPreVoteResponse {
	r := g.replica
	stats := r.raft.Stats()
	lastIndex, lastTerm := number(stats, "last_log_index"), number(stats, "last_log_term")
	if snapshot := number(stats, "last_snapshot_index"); snapshot > lastIndex {
		lastIndex, lastTerm = snapshot, number(stats, "last_snapshot_term")
	}
	term := r.raft.CurrentTerm()
	newer := request.LastLogTerm > lastTerm || request.LastLogTerm == lastTerm && request.LastLogIndex >= lastIndex
	return &raft.RequestPreVoteResponse{
		RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(r.ReplicaID()), Addr: []byte(r.network.advertise),
		},
		Term: max(term, request.Term), Granted: request.Term >= term && newer,
	}
}

// number reads one of the library's figures; 0 if it is not there.
func number(stats map[string]string, key string) uint64 {
	value, _ := strconv.ParseUint(stats[key], 10, 64)
	return value
}

// judgeAnswer decides whether the library may believe the answer of a replica that
// it asked.
func (g *gate) judgeAnswer(id raft.ServerID, answer any, term uint64) error {
	select {
	case <-g.started:
	case <-g.replica.done:
		return ErrShutdown
	}
	if header, ok := answer.(raft.WithRPCHeader); ok {
		if said := header.GetRPCHeader().ID; len(said) > 0 && raft.ServerID(said) != id {
			return fmt.Errorf("%w: %s answers for %s", errMisnamed, said, id)
		}
	}
	if err := g.termInRange(term); err != nil {
		g.note(string(id), err)
		return err
	}
	return nil
}

// note keeps what was out of range for the cluster's status.
func (g *gate) note(caller string, err error) {
	if fresh, count := g.setAlarm(fmt.Sprintf("refused a message of %s: %v", caller, err)); fresh {
		g.logger.Error("refused a message that no replica of this cluster can send", "caller", caller, "reason", err, "refused", count)
	}
}

// setAlarm keeps a text for the cluster's status. It is fresh if there was none within a
// minute.
func (g *gate) setAlarm(text string) (fresh bool, count uint64) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh = now.Sub(g.refused.at) > time.Minute
	g.refused = refusal{text: text, at: now, count: g.refused.count + 1}
	return fresh, g.refused.count
}

// Alarm says what this replica was sent within the hour that no replica of its cluster
// can send; empty: nothing.
func (r *Replica) Alarm() string {
	if r.gate == nil {
		return ""
	}
	r.gate.mu.Lock()
	defer r.gate.mu.Unlock()
	if refused := r.gate.refused; refused.count > 0 && time.Since(refused.at) < refusalShown {
		return refused.text
	}
	return ""
}

func serverOf(servers []raft.Server, id string) (raft.Server, bool) {
	for _, server := range servers {
		if string(server.ID) == id {
			return server, true
		}
	}
	return raft.Server{}, false
}
