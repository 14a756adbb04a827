package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// changeTimeout bounds one change of the membership.
	changeTimeout = 10 * time.Second
	// maxReplicas bounds a cluster. More voters make each write slower and no
	// failure less likely.
	maxReplicas = 9
	// maxTransferLag is how many entries a replica that is to lead may be behind.
	maxTransferLag = 1024
	// maxTransferContact is how long ago the leader may have heard of it.
	maxTransferContact = 2 * time.Second
)

// members serialises changes of the membership: Raft makes one at a time, and
// what was checked must still hold.
type members struct {
	changing chan struct{} // holds a token during a change
	// made is closed when Raft has answered the last change. Who made it may have
	// given up on it before. It belongs to whoever holds the lock.
	made    <-chan struct{}
	pledged pledge
	joins   joins
	// refused are the terms in which a transfer to a member failed. A second one in
	// the same term can leave the library refusing every write later on
	// (hashicorp/raft#696).
	refused map[string]uint64
}

// lock waits for its turn; unlock ends it. A change may take a minute, so whoever
// waits for one does not wait longer than its context. A change that its maker gave
// up on is waited for too: Raft could make it after the next one's checks, and does
// not tell the index of its configuration, which would make it refuse the next one.
func (m *members) lock(ctx context.Context) error {
	select {
	case m.changing <- struct{}{}:
	case <-ctx.Done():
		return changeUnderWay(ctx)
	}
	if m.made == nil {
		return nil
	}
	select {
	case <-m.made:
		return nil
	case <-ctx.Done():
		m.unlock()
		return changeUnderWay(ctx)
	}
}

func changeUnderWay(ctx context.Context) error {
	return fmt.Errorf("%w: another change of the cluster is under way: %w", ErrMembership, ctx.Err())
}

func (m *members) unlock() { <-m.changing }

// Member is a replica in Raft's configuration.
type Member struct {
	ReplicaID string
	Address   string
	Voter     bool
}

// Members returns Raft's configuration as this replica knows it, never a copy of
// our own (openziti/ziti#3501).
func (r *Replica) Members() []Member {
	var members []Member
	for _, server := range r.raft.GetConfiguration().Configuration().Servers {
		members = append(members, Member{
			ReplicaID: string(server.ID), Address: hostPort(server.Address), Voter: server.Suffrage == raft.Voter,
		})
	}
	return members
}

func (r *Replica) member(id string) (Member, bool) {
	for _, member := range r.Members() {
		if member.ReplicaID == id {
			return member, true
		}
	}
	return Member{}, false
}

// findMember finds a member by its id, or by its name if only one has it.
func (r *Replica) findMember(nameOrID string) (Member, error) {
	var found []Member
	for _, member := range r.Members() {
		if member.ReplicaID == nameOrID {
			return member, nil
		}
		if ReplicaName(member.ReplicaID) == nameOrID {
			found = append(found, member)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Member{}, fmt.Errorf("%w: %q is neither the name nor the id of a member", ErrUnknownReplica, nameOrID)
	}
	return Member{}, fmt.Errorf("%w: %d members are called %q, give the id of one", ErrMembership, len(found), nameOrID)
}

// ReplicaName returns the name in a replica id, which is the name and eight
// hexadecimal digits.
func ReplicaName(replicaID string) string {
	if at := strings.LastIndexByte(replicaID, '-'); at > 0 {
		return replicaID[:at]
	}
	return replicaID
}

// change makes one change of Raft's configuration, with a deadline that the
// library does not have. The caller holds the lock.
func (r *Replica) change(ctx context.Context, what string, apply func() raft.IndexFuture) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	made := make(chan struct{})
	r.members.made = made
	err := r.calls.await(ctx, func() error {
		defer close(made)
		return apply().Error()
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return fmt.Errorf("%w: %s", ErrNotLeader, what)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrRaftShutdown),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &UnknownOutcomeError{Cause: fmt.Errorf("%s: %w", what, err)}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// changed finishes a change: connections to former members are closed.
func (r *Replica) changed() {
	members := map[string]bool{}
	for _, member := range r.Members() {
		members[member.ReplicaID] = true
	}
	r.network.forget(func(id string) bool { return members[id] })
}

// requireLeader returns nil on a leader that has started its work.
func (r *Replica) requireLeader() error {
	if r.network == nil {
		return fmt.Errorf("%w: this replica has no cluster section", ErrMembership)
	}
	return r.leads()
}

// changeMember makes a change of one member, the only one at a time. It is the
// leader's.
func (r *Replica) changeMember(ctx context.Context, nameOrID string, change func(Member) error) error {
	if err := r.requireLeader(); err != nil {
		return err
	}
	if err := r.members.lock(ctx); err != nil {
		return err
	}
	defer r.members.unlock()
	member, err := r.findMember(nameOrID)
	if err != nil {
		return err
	}
	return change(member)
}

// changeFollower is changeMember for what would end the leadership if the leader
// did it to itself.
func (r *Replica) changeFollower(ctx context.Context, nameOrID string, change func(Member) error) error {
	return r.changeMember(ctx, nameOrID, func(member Member) error {
		if member.ReplicaID == r.ReplicaID() {
			return fmt.Errorf("%w: %s leads: transfer the leadership first", ErrMembership, member.ReplicaID)
		}
		return change(member)
	})
}

// Remove removes a member for good: its id never joins again. It is the leader's;
// a leader that is to go hands over first. Removing what is not a member, but was
// one, does nothing, by its name too unless a member has that name now.
func (r *Replica) Remove(ctx context.Context, nameOrID string) error {
	err := r.changeFollower(ctx, nameOrID, func(member Member) error {
		if err := r.keepsQuorum(ctx, member); err != nil {
			return err
		}
		return r.remove(ctx, member)
	})
	if errors.Is(err, ErrUnknownReplica) && r.finishRemoval(ctx, nameOrID) {
		return nil
	}
	return err
}

// finishRemoval reports whether only removed replicas had that name or id. It bars
// those whose removal stopped half way, which else the next leadership does.
func (r *Replica) finishRemoval(ctx context.Context, nameOrID string) bool {
	if err := r.members.lock(ctx); err != nil {
		return false
	}
	defer r.members.unlock()
	if _, err := r.findMember(nameOrID); err == nil {
		return false // it has joined in between
	}
	removed := false
	for record := range r.store.View().Replicas() {
		if record.ID != nameOrID && ReplicaName(record.ID) != nameOrID {
			continue
		}
		if !record.Removed {
			if record.BootID == "" || r.bar(ctx, record.ID) != nil {
				return false // it never was a member, or has to be tried again
			}
			go r.sayFarewell(Member{ReplicaID: record.ID, Address: record.Address})
		}
		removed = true
	}
	return removed
}

// finishGivenUp ends a removal that its caller has given up on: Raft may yet make
// it, and the replica would go on as a stranger whose id is not barred.
func (r *Replica) finishGivenUp(member Member) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*changeTimeout)
	defer cancel()
	go func() {
		select {
		case <-r.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := r.members.lock(ctx); err != nil {
		return
	}
	defer r.members.unlock()
	if _, stays := r.member(member.ReplicaID); stays {
		return
	}
	if err := r.bar(ctx, member.ReplicaID); err != nil {
		r.logger.Warn("a removed replica could not be barred yet", "removed", member.ReplicaID, "error", err)
		return
	}
	go r.sayFarewell(member)
}

// remove takes a member out of Raft, bars its id and tells it.
func (r *Replica) remove(ctx context.Context, member Member) error {
	err := r.change(ctx, "remove "+member.ReplicaID, func() raft.IndexFuture {
		return r.raft.RemoveServer(raft.ServerID(member.ReplicaID), 0, changeTimeout)
	})
	if errors.Is(err, ErrUnknownOutcome) {
		go r.finishGivenUp(member)
	}
	if err != nil {
		return err
	}
	r.logger.Info("removed a replica", "removed", member.ReplicaID, "address", member.Address)
	if err := r.bar(ctx, member.ReplicaID); err != nil {
		// The next leadership does it: see barRemoved.
		return &UnknownOutcomeError{Cause: fmt.Errorf("%s is removed, its id is not barred yet: %w", member.ReplicaID, err)}
	}
	go r.sayFarewell(member)
	return nil
}

// bar notes in the state that an id never joins again.
func (r *Replica) bar(ctx context.Context, replicaID string) error {
	_, term := r.Leadership()
	return accepted(r.ProposeAsLeader(ctx, term, &slimcppb.Command{
		Payload: &slimcppb.Command_RemoveReplica{RemoveReplica: &slimcppb.RemoveReplica{ReplicaId: replicaID}},
	}))
}

// sayFarewell tells a removed replica, which Raft does not. It may be dead.
func (r *Replica) sayFarewell(member Member) {
	ctx, cancel := context.WithTimeout(context.Background(), transportTimeout)
	defer cancel()
	conn, err := r.connTo(member.ReplicaID, false)
	if err == nil {
		_, err = slimcppb.NewReplicaServiceClient(conn).Farewell(ctx, &slimcppb.FarewellRequest{ReplicaId: member.ReplicaID})
	}
	if err != nil {
		r.logger.Info("a removed replica could not be told", "removed", member.ReplicaID, "error", err)
	}
	r.changed()
}

// removedFile says in the data directory that its replica was removed: its log need
// not hold the entry that did it.
const removedFile = "removed"

// failRemoved stops a replica that was removed.
func (r *Replica) failRemoved(err error) {
	if r.Err() != nil {
		return
	}
	r.noteRemoval.Do(func() {
		noted := r.calls.await(context.Background(), func() error { // not behind the end of a shutdown
			return writeDurably(filepath.Join(r.options.DataDir, removedFile), []byte(err.Error()+"\n"))
		})
		if noted != nil {
			r.logger.Warn("that this replica was removed could not be kept", "error", noted)
		}
	})
	r.fail(err)
}

// Farewell is told to a replica that was removed.
func (s service) Farewell(_ context.Context, request *slimcppb.FarewellRequest) (*slimcppb.FarewellResponse, error) {
	if request.GetReplicaId() == s.ReplicaID() {
		s.failRemoved(fmt.Errorf("%w %s", ErrRemoved, s.ClusterID()))
	}
	return &slimcppb.FarewellResponse{}, nil
}

// keepsQuorum refuses to remove or demote a voter if those that remain and answer
// are fewer than a quorum of them (hashicorp/consul#5922).
func (r *Replica) keepsQuorum(ctx context.Context, leaving Member) error {
	if !leaving.Voter {
		return nil
	}
	voters, healthy := 0, 0
	for _, status := range r.describeMembers(ctx) {
		if !status.Voter || status.ReplicaID == leaving.ReplicaID {
			continue
		}
		voters++
		if status.Healthy {
			healthy++
		}
	}
	switch {
	case voters == 0:
		return fmt.Errorf("%w: %s is the last voter", ErrMembership, leaving.ReplicaID)
	case healthy < voters/2+1:
		return fmt.Errorf("%w: without %s only %d of %d voters are healthy, and %d are needed: bring another replica back first",
			ErrMembership, leaving.ReplicaID, healthy, voters, voters/2+1)
	}
	return nil
}

// Promote makes a member a voter. It is the leader's.
func (r *Replica) Promote(ctx context.Context, nameOrID string) error {
	return r.changeMember(ctx, nameOrID, func(member Member) error {
		if err := r.giveVote(ctx, member); err != nil {
			return err
		}
		return r.holdBack(ctx, member.ReplicaID, false)
	})
}

// giveVote makes a member that is well a voter, never one whose id is barred: its
// process ends. The caller holds the lock.
func (r *Replica) giveVote(ctx context.Context, member Member) error {
	if member.Voter {
		return nil
	}
	if r.store.View().ReplicaRemoved(member.ReplicaID) {
		return fmt.Errorf("%w: %s was removed from the cluster", ErrMembership, member.ReplicaID)
	}
	if status := r.describeMember(ctx, member); !status.Healthy {
		return fmt.Errorf("%w: %s cannot vote yet: %s", ErrMembership, member.ReplicaID, status.Problem)
	}
	return r.change(ctx, "promote "+member.ReplicaID, func() raft.IndexFuture {
		return r.raft.AddVoter(raft.ServerID(member.ReplicaID), r.addressInRaft(member.ReplicaID, member.Address), 0, changeTimeout)
	})
}

// takeVote makes a voter a member without a vote. The caller holds the lock.
func (r *Replica) takeVote(ctx context.Context, member Member) error {
	if !member.Voter {
		return nil
	}
	return r.change(ctx, "demote "+member.ReplicaID, func() raft.IndexFuture {
		return r.raft.DemoteVoter(raft.ServerID(member.ReplicaID), 0, changeTimeout)
	})
}

// Demote takes the vote of a member, and autopilot does not give it back. It is
// the leader's, which cannot demote itself.
func (r *Replica) Demote(ctx context.Context, nameOrID string) error {
	return r.changeFollower(ctx, nameOrID, func(member Member) error {
		if err := r.keepsQuorum(ctx, member); err != nil {
			return err
		}
		if err := r.holdBack(ctx, member.ReplicaID, true); err != nil {
			return err
		}
		return r.takeVote(ctx, member)
	})
}

// holdBack notes whether an operator keeps a replica from voting.
func (r *Replica) holdBack(ctx context.Context, replicaID string, held bool) error {
	if record, ok := r.store.View().Replica(replicaID); ok && record.HeldBack == held || !ok && !held {
		return nil
	}
	_, term := r.Leadership()
	return accepted(r.ProposeAsLeader(ctx, term, &slimcppb.Command{
		Payload: &slimcppb.Command_HoldReplica{HoldReplica: &slimcppb.HoldReplica{ReplicaId: replicaID, Held: held}},
	}))
}

// TransferLeadership hands over to a member, or to the one that is most up to
// date if none is named. It is the leader's.
func (r *Replica) TransferLeadership(ctx context.Context, nameOrID string) (to string, err error) {
	if err := r.requireLeader(); err != nil {
		return "", err
	}
	if err := r.members.lock(ctx); err != nil {
		return "", err
	}
	defer r.members.unlock()
	target, err := r.transferTarget(ctx, nameOrID)
	if err != nil || target.ReplicaID == r.ReplicaID() {
		return target.ReplicaID, err
	}
	term := r.raft.CurrentTerm()
	if failed, ok := r.members.refused[target.ReplicaID]; ok && failed == term {
		return "", fmt.Errorf("%w: a transfer to %s failed in this term already, name another one", ErrMembership, target.ReplicaID)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	changed := r.readiness.watch()
	err = r.calls.await(ctx, func() error {
		return r.raft.LeadershipTransferToServer(raft.ServerID(target.ReplicaID), raft.ServerAddress(target.Address)).Error()
	})
	if err != nil {
		if r.members.refused == nil {
			r.members.refused = map[string]uint64{}
		}
		r.members.refused[target.ReplicaID] = term
		return "", fmt.Errorf("transfer of the leadership to %s: %w", target.ReplicaID, err)
	}
	for r.leaderID() != target.ReplicaID {
		if !r.waitLeaderChange(ctx, changed) {
			return "", &UnknownOutcomeError{Cause: fmt.Errorf("%s was told to lead", target.ReplicaID)}
		}
		changed = r.readiness.watch()
	}
	return target.ReplicaID, nil
}

// transferTarget chooses who is to lead: the library would take whoever was sent
// most, dead or not.
func (r *Replica) transferTarget(ctx context.Context, nameOrID string) (Member, error) {
	var best *MemberStatus
	failed, term := "", r.raft.CurrentTerm()
	for _, status := range r.describeMembers(ctx) {
		named := nameOrID == status.ReplicaID || nameOrID == ReplicaName(status.ReplicaID)
		if nameOrID != "" && !named {
			continue
		}
		if named && status.ReplicaID == r.ReplicaID() {
			return status.Member, nil
		}
		problem := status.transferProblem(r.raft.LastIndex())
		if named && problem != "" {
			return Member{}, fmt.Errorf("%w: %s cannot lead: %s", ErrMembership, status.ReplicaID, problem)
		}
		if refused, ok := r.members.refused[status.ReplicaID]; ok && refused == term {
			failed = fmt.Sprintf("; a transfer to %s failed, it can be tried again in another term", status.ReplicaID)
			if !named {
				continue
			}
		}
		if status.ReplicaID != r.ReplicaID() && problem == "" && (best == nil || status.LastIndex > best.LastIndex) {
			best = &status
		}
	}
	switch {
	case best != nil:
		return best.Member, nil
	case nameOrID != "":
		_, err := r.findMember(nameOrID)
		return Member{}, err
	}
	return Member{}, fmt.Errorf("%w: no other voter is healthy and up to date%s", ErrMembership, failed)
}

// FinalizeUpgrade lets the cluster use what the newest schema has that all
// members can apply (protocol X5).
func (r *Replica) FinalizeUpgrade(ctx context.Context) (schema uint32, err error) {
	if err := r.requireLeader(); err != nil {
		return 0, err
	}
	schema = fsm.SchemaVersion
	for _, status := range r.describeMembers(ctx) {
		if status.Problem != "" && status.Schema == 0 {
			return 0, fmt.Errorf("%w: %s cannot be asked for its version: %s", ErrMembership, status.ReplicaID, status.Problem)
		}
		schema = min(schema, status.Schema)
	}
	_, term := r.Leadership()
	err = accepted(r.ProposeAsLeader(ctx, term, &slimcppb.Command{
		Payload: &slimcppb.Command_FinalizeUpgrade{FinalizeUpgrade: &slimcppb.FinalizeUpgrade{Schema: schema}},
	}))
	return schema, err
}
