package cluster

import (
	"context"
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
}

// runAutopilot looks after the members while this replica leads.
func (r *Replica) runAutopilot(ctx context.Context, _ uint64) {
	p := &pilot{Replica: r, ctx: ctx, statuses: map[raft.ServerID]MemberStatus{}, seen: map[raft.ServerID]time.Time{}}
	period := max(minLook, min(autopilotLook, r.options.Peers.Autopilot.StabilizationTime/stabilisationLooks))
	runner := autopilot.New(boundedRaft{r.raft}, p,
		autopilot.WithLogger(r.logger.Named("autopilot")),
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
		if status.LastContact < 0 && !status.Leader {
			stats[id].LastContact = time.Hour // never
		}
	}
	return stats
}

// look asks all members how they are.
func (p *pilot) look(ctx context.Context) {
	statuses := p.describeMembers(ctx)
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
	now, leader := time.Now(), p.ReplicaID()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, member := range p.Members() {
		id := raft.ServerID(member.ReplicaID)
		status := autopilot.NodeAlive
		if seen, ok := p.seen[id]; ok && p.options.Peers.Autopilot.DeadAfter > 0 && now.Sub(seen) > p.options.Peers.Autopilot.DeadAfter {
			status = autopilot.NodeFailed
		}
		servers[id] = &autopilot.Server{
			ID: id, Name: ReplicaName(member.ReplicaID), Address: raft.ServerAddress(member.Address),
			NodeStatus: status, Version: p.statuses[id].Version, RaftVersion: int(raft.ProtocolVersionMax),
			IsLeader: member.ReplicaID == leader, NodeType: autopilot.NodeVoter,
		}
	}
	return servers
}

// RemoveFailedServer implements autopilot.ApplicationIntegration: one removal at a
// time, by the same guarded way as an operator's.
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
		if err := p.Remove(p.ctx, string(server.ID)); err != nil {
			p.logger.Warn("a dead replica was not removed", "replica", server.ID, "error", err)
		}
	})
}

// heldBackPromoter is the library's promoter, which would give their votes back to
// replicas that an operator has demoted.
type heldBackPromoter struct {
	autopilot.Promoter
	replica *Replica
}

func (p heldBackPromoter) CalculatePromotionsAndDemotions(config *autopilot.Config, state *autopilot.State) autopilot.RaftChanges {
	changes := p.Promoter.CalculatePromotionsAndDemotions(config, state)
	view := p.replica.store.View()
	var promoted []raft.ServerID
	for _, id := range changes.Promotions {
		if record, ok := view.Replica(string(id)); !ok || !record.HeldBack {
			promoted = append(promoted, id)
		}
	}
	changes.Promotions = promoted
	return changes
}

// boundedRaft is the library with deadlines: autopilot waits for its changes
// without any.
type boundedRaft struct {
	*raft.Raft
}

func (b boundedRaft) AddVoter(id raft.ServerID, address raft.ServerAddress, prevIndex uint64, _ time.Duration) raft.IndexFuture {
	return bounded{b.Raft.AddVoter(id, address, prevIndex, changeTimeout)}
}

func (b boundedRaft) AddNonvoter(id raft.ServerID, address raft.ServerAddress, prevIndex uint64, _ time.Duration) raft.IndexFuture {
	return bounded{b.Raft.AddNonvoter(id, address, prevIndex, changeTimeout)}
}

func (b boundedRaft) DemoteVoter(id raft.ServerID, prevIndex uint64, _ time.Duration) raft.IndexFuture {
	return bounded{b.Raft.DemoteVoter(id, prevIndex, changeTimeout)}
}

func (b boundedRaft) RemoveServer(id raft.ServerID, prevIndex uint64, _ time.Duration) raft.IndexFuture {
	return bounded{b.Raft.RemoveServer(id, prevIndex, changeTimeout)}
}

// bounded is a future whose wait ends.
type bounded struct {
	raft.IndexFuture
}

func (b bounded) Error() error {
	done := make(chan error, 1)
	go func() { done <- b.IndexFuture.Error() }()
	select {
	case err := <-done:
		return err
	case <-time.After(changeTimeout):
		return context.DeadlineExceeded
	}
}
