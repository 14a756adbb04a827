package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// describeTimeout bounds the question how a replica is doing.
	describeTimeout = time.Second
	// maxHealthyLag is how many entries a healthy replica may be behind.
	maxHealthyLag = 1000
	// maxHealthyContact is how long ago a healthy replica heard from its leader.
	maxHealthyContact = 2 * time.Second
	// maxStandstill is how long a healthy replica may lack an entry and write none,
	// and be of another generation.
	maxStandstill = 2 * time.Second
)

// MemberStatus says how a member is doing, as it says itself and as the leader
// sees it.
type MemberStatus struct {
	Member
	BootID  string
	Version string
	Schema  uint32
	Leader  bool
	// Healthy: it answers, follows the same leader and has applied nearly all.
	// Otherwise Problem says what is wrong.
	Healthy bool
	Problem string
	// Ready: it has caught up with its leader and serves nodes.
	Ready bool
	// LastIndex, LastTerm, Applied and Generation are of its log and of its state.
	LastIndex, LastTerm, Applied, Generation uint64
	// Lag is how many entries its state is behind the newest state of a member.
	Lag uint64
	// LastContact is the time since it heard from the leader; negative: never, or
	// it leads.
	LastContact time.Duration
	// LastWrite is the time since its log grew; negative: not known.
	LastWrite time.Duration
	// DiskProblem says why its last write to the log failed, "" if it did not.
	DiskProblem string
	Sessions    uint64
	Draining    bool
	// HeldBack: an operator keeps it from voting.
	HeldBack bool
	// Hashes of its state at the last checkpoints.
	Hashes []*slimcppb.StateHash
	// Distrusted says why its state is not to be used.
	Distrusted string

	reported     string // why it is not healthy, by itself
	follows      string // the leader that it knows
	missesLeader bool   // it hears that one, and cannot call it
}

// Status is the state of the cluster as one replica sees it.
type Status struct {
	ClusterID string
	ReplicaID string // who answers
	LeaderID  string // empty: nobody leads
	// LeaderWorks: the leader has begun its work, and this replica has applied that.
	LeaderWorks bool
	Term        uint64
	Generation  uint64
	Index       uint64
	Schema      uint32 // active
	Members     []MemberStatus
	// FailureTolerance is how many more voters may fail before writes stop; 0 also
	// if they have stopped already. Only those count that are healthy and ready.
	FailureTolerance int
	// QuorumLost: nobody leads for this replica, and it reaches fewer voters than a
	// leader needs.
	QuorumLost bool
	// Alarm says which replicas' states differ, as this replica found when it led
	// last (protocol X4); "" if none do.
	Alarm string
}

// Status asks every member how it is doing.
func (r *Replica) Status(ctx context.Context) Status {
	view := r.store.View()
	s := Status{
		ClusterID: r.ClusterID(), ReplicaID: r.ReplicaID(), LeaderID: r.leaderID(), Term: r.raft.CurrentTerm(),
		Generation: view.Generation(), Index: view.Index(), Schema: view.ActiveSchema(),
	}
	s.LeaderWorks = r.Ready()
	s.Members = r.describeMembers(ctx)
	r.checkpoints.mu.Lock()
	s.Alarm = r.checkpoints.alarm
	r.checkpoints.mu.Unlock()
	s.FailureTolerance, s.QuorumLost = tolerance(s.Members, s.LeaderID)
	return s
}

// tolerance says how many more voters may fail, and whether too many have already: as
// a replica sees it that knows this leader.
func tolerance(members []MemberStatus, leaderID string) (more int, lost bool) {
	voters, answering, good, works := 0, 0, 0, false
	for _, member := range members {
		works = works || member.Leader && member.Healthy
		if !member.Voter {
			continue
		}
		voters++
		if member.BootID != "" {
			answering++
		}
		if member.Healthy && member.Ready {
			good++
		}
	}
	needed := voters/2 + 1
	if works {
		more = max(0, good-needed)
	}
	return more, voters > 0 && leaderID == "" && answering < needed
}

// describeMembers asks all members at once.
func (r *Replica) describeMembers(ctx context.Context) []MemberStatus {
	return r.describeThese(ctx, r.Members())
}

func (r *Replica) describeMember(ctx context.Context, member Member) MemberStatus {
	return r.describeThese(ctx, []Member{member})[0]
}

// describeThese asks members. How far each is behind is judged by the newest state
// among theirs and this replica's, which may be behind itself.
func (r *Replica) describeThese(ctx context.Context, members []Member) []MemberStatus {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	statuses := make([]MemberStatus, len(members))
	var asking sync.WaitGroup
	for i, member := range members {
		asking.Go(func() {
			description, err := r.askDescription(ctx, member)
			if err == nil {
				statuses[i] = memberStatus(member, description)
			} else { // what another replica says at its address is not its own
				statuses[i] = memberStatus(member, nil)
				statuses[i].Problem = "cannot be reached: " + err.Error()
			}
		})
	}
	asking.Wait()
	view := r.store.View()
	newest := view.Index()
	for _, status := range statuses {
		newest = max(newest, status.Applied)
	}
	for i := range statuses {
		r.judgeMember(&statuses[i], view, newest)
	}
	return statuses
}

// judgeMember says whether a member that was asked is healthy.
func (r *Replica) judgeMember(status *MemberStatus, view *fsm.View, newest uint64) {
	if record, ok := view.Replica(status.ReplicaID); ok {
		status.HeldBack = record.HeldBack
		status.Version = cmp.Or(status.Version, record.Version) // what it said when it started
	}
	if status.Problem != "" { // it cannot be reached
		status.Ready = false
		return
	}
	status.Lag = newest - status.Applied
	status.Problem = status.problem(r)
	status.Healthy = status.Problem == ""
}

func (r *Replica) askDescription(ctx context.Context, member Member) (*slimcppb.ReplicaDescription, error) {
	if member.ReplicaID == r.ReplicaID() {
		return r.describe(), nil
	}
	if r.network == nil {
		return nil, fmt.Errorf("this replica has no cluster section")
	}
	conn, err := r.connTo(member.ReplicaID, false)
	if err != nil {
		return nil, err
	}
	if err := waitConnected(ctx, conn); err != nil {
		return nil, fmt.Errorf("no connection to %s, last known at %s", member.ReplicaID, member.Address)
	}
	description, err := slimcppb.NewReplicaServiceClient(conn).Describe(ctx, &slimcppb.DescribeRequest{})
	if err == nil && description.GetReplicaId() != member.ReplicaID {
		err = fmt.Errorf("at %s runs %s", member.Address, description.GetReplicaId())
	}
	return description, err
}

func memberStatus(member Member, d *slimcppb.ReplicaDescription) MemberStatus {
	status := MemberStatus{
		Member: member, BootID: d.GetBootId(), Version: d.GetVersion(), Schema: d.GetSchema(),
		Leader:    d.GetReplicaId() != "" && d.GetLeaderId() == d.GetReplicaId(),
		LastIndex: d.GetLastIndex(), LastTerm: d.GetLastTerm(), Applied: d.GetAppliedIndex(),
		Generation: d.GetGeneration(), LastContact: -1, LastWrite: -1, DiskProblem: d.GetDiskProblem(), Sessions: d.GetSessions(), Draining: d.GetDraining(),
		Hashes: d.GetHashes(), Distrusted: d.GetDistrusted(),
	}
	// An older version does not say whether it is ready.
	status.Ready = d != nil && (d.Ready == nil || d.GetReady())
	status.reported, status.follows, status.missesLeader = d.GetProblem(), d.GetLeaderId(), d.GetMissesLeader()
	if d != nil && d.LastContactMs != nil {
		status.LastContact = time.Duration(d.GetLastContactMs()) * time.Millisecond
	}
	if d != nil && d.LastWriteMs != nil {
		status.LastWrite = time.Duration(d.GetLastWriteMs()) * time.Millisecond
	}
	return status
}

// problem says why a member that answers is not healthy, "" if it is.
func (s *MemberStatus) problem(r *Replica) string {
	switch {
	case s.Distrusted != "":
		return s.Distrusted
	case s.Draining:
		return "it is shutting down"
	case s.DiskProblem != "":
		return s.DiskProblem
	case s.reported != "":
		return s.reported
	case s.Leader:
		return ""
	case s.LastContact < 0:
		return "it has not heard from a leader yet"
	case s.LastContact > maxHealthyContact:
		return fmt.Sprintf("it last heard from a leader %s ago", s.LastContact.Round(100*time.Millisecond))
	case s.Lag > maxHealthyLag:
		return fmt.Sprintf("it is %d entries behind", s.Lag)
	case s.LastTerm != 0 && r.raft.State() == raft.Leader && s.LastTerm > r.raft.CurrentTerm():
		return fmt.Sprintf("its log ends in term %d, a newer one", s.LastTerm)
	case s.ofOtherGeneration(r):
		return fmt.Sprintf("its state is of generation %d, the leader's of generation %d", s.Generation, r.store.View().Generation())
	case s.standsStill(r):
		return fmt.Sprintf("it is %d entries behind, and has written none for %s",
			r.raft.LastIndex()-s.LastIndex, s.LastWrite.Round(100*time.Millisecond))
	case s.missesLeader:
		return problemMissesLeader
	}
	return ""
}

// ofOtherGeneration reports whether a member has not the leader's generation, and it
// is not the moment that a restore takes to reach all.
func (s *MemberStatus) ofOtherGeneration(r *Replica) bool {
	return r.raft.State() == raft.Leader && s.Generation != r.store.View().Generation() &&
		r.storage.disk.sinceSnapshot() > maxStandstill
}

// standsStill reports whether a member writes nothing though there is something to
// write: it may be in touch, and no write reach its disk. It needs no memory of
// earlier looks.
func (s *MemberStatus) standsStill(r *Replica) bool {
	return r.raft.State() == raft.Leader && s.LastIndex < r.raft.LastIndex() &&
		s.LastWrite > maxStandstill && r.entryAge(s.LastIndex+1) > maxStandstill
}

// entryAge is how long ago an entry was appended, by the clock of the leader that did
// it: very long if it is not in the log any more.
func (r *Replica) entryAge(index uint64) time.Duration {
	var entry raft.Log
	err := r.storage.logs.GetLog(index, &entry)
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return math.MaxInt64
	case err != nil:
		return 0
	}
	return time.Since(entry.AppendedAt)
}

// transferProblem says why a member cannot lead, "" if it can.
func (s *MemberStatus) transferProblem(last uint64) string {
	switch {
	case !s.Voter:
		return "it has no vote"
	case s.Problem != "" && s.Problem != problemMissesLeader: // that is the present leader's
		return s.Problem
	case s.LastContact > maxTransferContact:
		return fmt.Sprintf("it last heard from the leader %s ago", s.LastContact)
	case s.LastIndex+maxTransferLag < last:
		return fmt.Sprintf("it is %d entries behind", last-s.LastIndex)
	}
	return ""
}

// lastLogTerm returns the term of the last entry of the log.
func (r *Replica) lastLogTerm() (uint64, error) {
	var entry raft.Log
	if err := r.storage.logs.GetLog(r.raft.LastIndex(), &entry); err != nil {
		return 0, err
	}
	return entry.Term, nil
}
