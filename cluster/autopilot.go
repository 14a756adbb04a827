package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
)

const (
	// autopilotLook is how often autopilot looks at the members, and acts, at most;
	// more often with a short stabilisation time.
	autopilotLook = 2 * time.Second
	// stabilisationLooks is how often it looks while a replica becomes stable.
	stabilisationLooks = 5
	minLook            = 50 * time.Millisecond
)

// Autopilot gives votes to replicas that are well, and removes dead ones.
type Autopilot struct {
	// StabilizationTime is how long a replica must be healthy before it votes.
	StabilizationTime time.Duration
	// DeadServerCleanup removes voters that have been dead for DeadAfter, one at a
	// time, while MinQuorum voters remain and those are healthy.
	DeadServerCleanup bool
	DeadAfter         time.Duration
	MinQuorum         int
}

// pilot is what autopilot knows of this cluster. It is made for one leadership.
type pilot struct {
	*Replica
	ctx context.Context

	mu       sync.Mutex
	statuses map[raft.ServerID]MemberStatus
	seen     map[raft.ServerID]time.Time // when it was last heard of
	removing bool
	// handingOver: somebody else is being asked to lead.
	handingOver bool
}

// heldBackNode is the type of replicas that are not to vote. It is not among those
// that the library counts as voters to be.
const heldBackNode autopilot.NodeType = "held back"

// runAutopilot looks after the members while this replica leads.
func (r *Replica) runAutopilot(ctx context.Context, _ uint64) {
	p := &pilot{Replica: r, ctx: ctx, statuses: map[raft.ServerID]MemberStatus{}, seen: map[raft.ServerID]time.Time{}}
	period := max(minLook, min(autopilotLook, r.options.Peers.Autopilot.StabilizationTime/stabilisationLooks))
	runner := autopilot.New(guardedRaft{Raft: r.raft, pilot: p}, p,
		autopilot.WithLogger(libraryLogger(r.logger)), // which names itself,
		autopilot.WithUpdateInterval(period),
		autopilot.WithReconcileInterval(period),
		autopilot.WithPromoter(heldBackPromoter{Promoter: autopilot.DefaultPromoter(), replica: r}),
	)
	runner.Start(ctx)
	<-ctx.Done()
	<-runner.Stop()
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	settings := p.options.Peers.Autopilot
	return &autopilot.Config{
		CleanupDeadServers:      settings.DeadServerCleanup,
		LastContactThreshold:    maxHealthyContact,
		MaxTrailingLogs:         maxHealthyLag,
		MinQuorum:               uint(max(0, settings.MinQuorum)),
		ServerStabilizationTime: settings.StabilizationTime,
	}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(*autopilot.State) {}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	stats := map[raft.ServerID]*autopilot.ServerStats{}
	p.look(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range servers {
		status, ok := p.statuses[id]
		if !ok || status.BootID == "" {
			continue
		}
		stats[id] = &autopilot.ServerStats{LastContact: max(0, status.LastContact), LastTerm: status.LastTerm, LastIndex: status.LastIndex}
		if status.Problem != "" || status.LastContact < 0 && !status.Leader {
			stats[id].LastContact = time.Hour // never
		}
	}
	return stats
}

// look asks all members how they are.
func (p *pilot) look(ctx context.Context) {
	statuses := p.describeMembers(ctx)
	p.handOverIfMissed(statuses)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.statuses)
	for _, status := range statuses {
		id := raft.ServerID(status.ReplicaID)
		p.statuses[id] = status
		if _, ok := p.seen[id]; !ok || status.BootID != "" {
			p.seen[id] = now
		}
	}
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	servers := map[raft.ServerID]*autopilot.Server{}
	leader := p.ReplicaID()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, member := range p.Members() {
		id := raft.ServerID(member.ReplicaID)
		status, kind := autopilot.NodeAlive, autopilot.NodeVoter
		if p.isDead(id) {
			status = autopilot.NodeFailed
		}
		if !member.Voter && !p.mayVote(member.ReplicaID) {
			kind = heldBackNode
		}
		servers[id] = &autopilot.Server{
			ID: id, Name: ReplicaName(member.ReplicaID), Address: raft.ServerAddress(member.Address),
			NodeStatus: status, Version: p.statuses[id].Version, RaftVersion: int(raft.ProtocolVersionMax),
			IsLeader: member.ReplicaID == leader, NodeType: kind,
		}
	}
	return servers
}

// isDead reports whether a member has not been heard of for DeadAfter. The caller
// holds mu.
func (p *pilot) isDead(id raft.ServerID) bool {
	seen, ok := p.seen[id]
	patience := p.options.Peers.Autopilot.DeadAfter
	return ok && patience > 0 && time.Since(seen) > patience
}

// mayVote reports whether autopilot may give a replica a vote: not if an operator
// keeps it from voting, or its id is barred.
func (r *Replica) mayVote(replicaID string) bool {
	record, ok := r.store.View().Replica(replicaID)
	return !ok || !record.HeldBack && !record.Removed
}

// RemoveFailedServer implements autopilot.ApplicationIntegration: one removal at a
// time.
func (p *pilot) RemoveFailedServer(server *autopilot.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removing {
		return
	}
	p.removing = p.calls.run(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.removing = false
		}()
		if err := p.removeDead(server.ID); err != nil {
			p.logger.Warn("a dead replica was not removed", "replica", server.ID, "error", err)
			return
		}
		p.logger.Warn("removed a replica that was dead for too long", "replica", server.ID)
	})
}

// removeDead removes a member that is still dead, by the same guarded way as an
// operator, and as long as MinQuorum voters remain: the library also counts those
// that do not vote yet.
func (p *pilot) removeDead(id raft.ServerID) error {
	return p.changeNow(id, func(member Member) error {
		p.mu.Lock()
		dead := p.isDead(id)
		p.mu.Unlock()
		if !dead {
			return fmt.Errorf("%w: %s is back", ErrMembership, id)
		}
		if err := p.keepsMinQuorum(member); err != nil {
			return err
		}
		if err := p.keepsQuorum(p.ctx, member); err != nil {
			return err
		}
		return p.remove(p.ctx, member)
	})
}

// keepsMinQuorum refuses to take a voter away if fewer than MinQuorum remain in
// Raft's configuration.
func (p *pilot) keepsMinQuorum(leaving Member) error {
	if !leaving.Voter {
		return nil
	}
	remaining, least := -1, p.options.Peers.Autopilot.MinQuorum
	for _, member := range p.Members() {
		if member.Voter {
			remaining++
		}
	}
	if remaining < least {
		return fmt.Errorf("%w: without %s %d voters remain, and min_quorum is %d", ErrMembership, leaving.ReplicaID, remaining, least)
	}
	return nil
}

// changeNow makes a change of one member as it is now. What autopilot decides by is
// a look old: since then an operator may have removed the member, which a change by
// Raft itself would bring back.
func (p *pilot) changeNow(id raft.ServerID, change func(Member) error) error {
	if err := p.requireLeader(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.ctx, changeTimeout)
	defer cancel()
	if err := p.members.lock(ctx); err != nil {
		return err
	}
	defer p.members.unlock()
	member, ok := p.member(string(id))
	switch {
	case !ok:
		return fmt.Errorf("%w: %s is no member any more", ErrUnknownReplica, id)
	case member.ReplicaID == p.ReplicaID():
		return fmt.Errorf("%w: %s leads", ErrMembership, id)
	}
	return change(member)
}

// heldBackPromoter is the library's promoter, which would give votes to replicas
// that an operator has demoted or removed.
type heldBackPromoter struct {
	autopilot.Promoter
	replica *Replica
}

func (p heldBackPromoter) CalculatePromotionsAndDemotions(config *autopilot.Config, state *autopilot.State) autopilot.RaftChanges {
	changes := p.Promoter.CalculatePromotionsAndDemotions(config, state)
	var promoted []raft.ServerID
	for _, id := range changes.Promotions {
		if p.replica.mayVote(string(id)) {
			promoted = append(promoted, id)
		}
	}
	changes.Promotions = promoted
	return changes
}

// guardedRaft is the library as autopilot may change it: by the way of an operator's
// changes, one at a time and with deadlines. Index and address that autopilot gives
// may be old ones, and are not used.
type guardedRaft struct {
	*raft.Raft
	pilot *pilot
}

// AddVoter gives a vote to a member that may still have one.
func (g guardedRaft) AddVoter(id raft.ServerID, _ raft.ServerAddress, _ uint64, _ time.Duration) raft.IndexFuture {
	return settled{err: g.pilot.changeNow(id, func(member Member) error {
		if !g.pilot.mayVote(member.ReplicaID) {
			return fmt.Errorf("%w: %s is not to vote", ErrMembership, id)
		}
		return g.pilot.giveVote(g.pilot.ctx, member)
	})}
}

// AddNonvoter is refused: replicas ask to join.
func (g guardedRaft) AddNonvoter(id raft.ServerID, _ raft.ServerAddress, _ uint64, _ time.Duration) raft.IndexFuture {
	return settled{err: fmt.Errorf("%w: %s has not asked to join", ErrMembership, id)}
}

// DemoteVoter takes a vote if those that remain are enough.
func (g guardedRaft) DemoteVoter(id raft.ServerID, _ uint64, _ time.Duration) raft.IndexFuture {
	return settled{err: g.pilot.changeNow(id, func(member Member) error {
		if err := g.pilot.keepsMinQuorum(member); err != nil {
			return err
		}
		if err := g.pilot.keepsQuorum(g.pilot.ctx, member); err != nil {
			return err
		}
		return g.pilot.takeVote(g.pilot.ctx, member)
	})}
}

// RemoveServer removes a member if it is dead.
func (g guardedRaft) RemoveServer(id raft.ServerID, _ uint64, _ time.Duration) raft.IndexFuture {
	return settled{err: g.pilot.removeDead(id)}
}

// settled is the future of a change whose outcome is known. Autopilot asks for no
// index.
type settled struct{ err error }

func (s settled) Error() error { return s.err }
func (settled) Index() uint64  { return 0 }
