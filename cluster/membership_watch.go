package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// membershipLook is how often a replica looks whether it is still what it
	// takes itself for.
	membershipLook = 500 * time.Millisecond
	// suspicion is how long a member hears from no leader until it asks the
	// others whether it is still one: Raft does not tell a removed replica, which
	// would go on as a follower without a leader (hashicorp/raft#524).
	suspicion = 1500 * time.Millisecond
	// retakePause is the least time between two tries of such a member to have its
	// address noted again.
	retakePause = 5 * time.Second
)

// startNetwork serves the cluster port and keeps the replica's membership.
func (r *Replica) startNetwork(ctx context.Context) {
	r.forwarder = newForwarder(r.withLeader)
	slimcppb.RegisterReplicaServiceServer(r.network.server, service{Replica: r})
	r.watch.Go(func() { r.keepMembership(ctx) })
	r.watch.Go(func() { r.catchUp(ctx) })
	r.watch.Go(func() { r.watchProgress(ctx) })
	r.watch.Go(func() { r.watchQuorum(ctx) })
	r.watch.Go(func() { r.watchCalls(ctx) })
	r.LeadWith(r.barRemoved)
	r.LeadWith(r.runAutopilot)
	r.LeadWith(r.keepAddress)
	r.LeadWith(r.runCheckpoints)
}

// ServePeers begins to answer the other replicas. Services for them were
// registered with RegisterPeerService before. A lone replica does nothing.
func (r *Replica) ServePeers() {
	if r.network != nil {
		r.network.serve(r.logger)
	}
}

// RegisterPeerService adds a service to the cluster port, for other replicas
// only. It must come before ServePeers. A lone replica does nothing.
func (r *Replica) RegisterPeerService(register func(grpc.ServiceRegistrar)) {
	if r.network != nil {
		register(r.network.server)
	}
}

// CountSessions sets what counts the sessions on this replica, for its status.
func (r *Replica) CountSessions(count func() int) { r.sessions.Store(&count) }

// ReportServing sets what says whether this replica serves nodes, for its status.
// Without it a replica serves when it is ready.
func (r *Replica) ReportServing(serves func() bool) { r.serving.Store(&serves) }

// serves reports whether this replica has caught up and serves nodes.
func (r *Replica) serves() bool {
	serving := r.serving.Load()
	return r.Ready() && (serving == nil || (*serving)())
}

func (r *Replica) closeNetwork() error {
	if r.network == nil {
		return nil
	}
	r.network.stopServing()
	return r.network.close()
}

// adoptCluster keeps the id of the cluster whose state has arrived.
func (r *Replica) adoptCluster() {
	if id := r.store.View().ClusterID(); id != "" && r.ClusterID() != id {
		if err := r.identity.adopt(id); err != nil {
			r.fail(err)
		}
	}
}

// keepMembership watches this replica's place in the cluster until the context
// ends.
func (r *Replica) keepMembership(ctx context.Context) {
	ticker := time.NewTicker(membershipLook)
	defer ticker.Stop()
	unattended := newUnattended(r)
	var recorded recordedUnder
	var retaken time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		r.adoptCluster()
		r.network.port.Cut(r.store.View().ReplicaRemoved)
		members := r.Members()
		if len(members) == 0 {
			unattended.try(ctx)
			continue
		}
		own, isMember := r.member(r.ReplicaID())
		switch {
		case !isMember && r.ClusterID() != "":
			// The entry that removed it has come.
			r.askMembership(ctx, members)
		case isMember && own.Address != r.network.advertise:
			r.tellAddress(ctx, members)
		case r.isLost():
			r.askMembership(ctx, members)
			if r.Err() == nil && time.Since(retaken) > retakePause {
				r.retakePlace(ctx, members)
				retaken = time.Now()
			}
		case recorded != r.recordsUnder() && r.Ready():
			if under := r.recordsUnder(); r.record(ctx) {
				recorded = under
			}
		}
	}
}

// isLost reports whether this replica has not heard from a leader for a while.
func (r *Replica) isLost() bool {
	if leading, _ := r.Leadership(); leading {
		return false
	}
	contact := r.raft.LastContact()
	return r.ClusterID() != "" && !contact.IsZero() && time.Since(contact) > suspicion
}

// askMembership connects to the other members: one that knows that this replica
// was removed refuses, see refused.
func (r *Replica) askMembership(ctx context.Context, members []Member) {
	for _, member := range members {
		if member.ReplicaID == r.ReplicaID() {
			continue
		}
		r.greet(ctx, member.ReplicaID)
		if ctx.Err() != nil || r.Err() != nil {
			return
		}
	}
}

// greet connects to a replica, so that each of the two hears of the other.
func (r *Replica) greet(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if conn, err := r.dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, id); err == nil {
		_ = conn.Close()
	}
}

// enterAgain tells a member where this replica, which is one too, can be reached.
func (r *Replica) enterAgain(ctx context.Context, id string) error {
	conn, err := r.connTo(id, false)
	if err != nil {
		return err
	}
	return r.enter(ctx, conn, r.ClusterID())
}

// retakePlace has the leader note this replica's address once more: another process,
// of a copied data directory, may have had it changed. Mostly it changes nothing, and
// without a leader it cannot: that is logged by others.
func (r *Replica) retakePlace(ctx context.Context, members []Member) {
	for _, member := range members {
		if member.ReplicaID == r.ReplicaID() || ctx.Err() != nil {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, reachTimeout)
		err := r.enterAgain(bounded, member.ReplicaID)
		cancel()
		if err == nil {
			return
		}
	}
}

// tellAddress has the leader note the address at which this replica can be
// reached now.
func (r *Replica) tellAddress(ctx context.Context, members []Member) {
	if leading, _ := r.Leadership(); leading {
		return // keepAddress does it
	}
	for _, member := range members {
		if member.ReplicaID == r.ReplicaID() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		err := r.enterAgain(ctx, member.ReplicaID)
		cancel()
		if err == nil {
			return
		}
		r.logger.Warn("this replica's new address is not known to the others yet",
			"advertise", r.network.advertise, "asked", member.Address, "error", err)
	}
}

// keepAddress has a leader note its own address: that of a lone replica that got
// a cluster section, or of one that moved.
func (r *Replica) keepAddress(ctx context.Context, _ uint64) {
	for {
		own, ok := r.member(r.ReplicaID())
		if !ok || own.Address == r.network.advertise {
			return
		}
		err := r.members.lock(ctx)
		if err == nil {
			err = r.addMember(ctx, &slimcppb.JoinRequest{ReplicaId: r.ReplicaID(), Advertise: r.network.advertise})
			r.members.unlock()
		}
		if err == nil {
			return
		}
		r.logger.Warn("this replica's address could not be noted", "advertise", r.network.advertise, "error", err)
		select {
		case <-time.After(membershipLook):
		case <-ctx.Done():
			return
		}
	}
}

// recordedUnder is what decides what the state has of this replica: a restore brings an
// earlier record back, and a newer schema takes more into it.
type recordedUnder struct {
	generation uint64
	schema     uint32
}

func (r *Replica) recordsUnder() recordedUnder {
	view := r.store.View()
	return recordedUnder{generation: view.Generation(), schema: view.ActiveSchema()}
}

// record notes in the state what this replica is.
func (r *Replica) record(ctx context.Context) bool {
	name, boot := r.options.Name, r.bootID
	known, ok := r.store.View().Replica(r.ReplicaID())
	if ok && known.BootID == boot && known.Address == r.network.advertise &&
		(known.Boots == r.identity.boots() || r.store.View().ActiveSchema() < 2) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	result, err := r.Propose(ctx, &slimcppb.Command{Payload: &slimcppb.Command_RecordReplica{RecordReplica: &slimcppb.RecordReplica{
		ReplicaId: r.ReplicaID(), BootId: boot, Name: name, Address: r.network.advertise,
		Version: r.options.Version, Schema: fsm.SchemaVersion, Boots: r.identity.boots(),
	}}})
	switch {
	case errors.Is(result.Err, fsm.ErrReplicaRemoved):
		r.failRemoved(fmt.Errorf("%w: %w", ErrRemoved, result.Err))
	case errors.Is(result.Err, fsm.ErrEarlierStart):
		r.fail(fmt.Errorf("%w: %w", ErrDuplicate, result.Err))
	}
	return err == nil && result.Err == nil
}

// barRemoved bars the ids of replicas that the state knows and Raft does not any
// more: a leader died between the two steps of their removal.
func (r *Replica) barRemoved(ctx context.Context, term uint64) {
	var gone []string
	members := r.Members()
	for record := range r.store.View().Replicas() {
		isMember := slices.ContainsFunc(members, func(m Member) bool { return m.ReplicaID == record.ID })
		if !record.Removed && record.BootID != "" && !isMember {
			gone = append(gone, record.ID)
		}
	}
	for _, id := range gone {
		if err := r.bar(ctx, id); err != nil {
			r.logger.Warn("a removed replica could not be barred yet", "removed", id, "error", err)
		}
	}
	_ = term
}
