package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// cloneProbe bounds the look whether a replica still lives at its last address.
const cloneProbe = time.Second

// maxSeenPeers are remembered. More ids than a cluster can have are made up: with
// the cluster's id anybody may name any.
const maxSeenPeers = 8 * maxReplicas

// seenPeers are the replicas that said hello, by id: a data directory that
// was copied shows as one id with two lives.
type seenPeers struct {
	mu    sync.Mutex
	known map[string]seenPeer
}

type seenPeer struct {
	bootID, advertise string
	boots             uint64 // 0: its binary does not count starts
}

func (a *seenPeers) get(id string) (seenPeer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.known[id]
	return known, ok
}

func (a *seenPeers) set(id string, now seenPeer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) >= maxSeenPeers {
		a.known = map[string]seenPeer{}
	}
	a.known[id] = now
}

// admit judges who connects to the cluster port. Two clusters' logs look alike to
// Raft, which would merge them, so nobody passes on trust (hashicorp/raft#122,
// openziti/ziti#4104).
func (r *Replica) admit(ctx context.Context, hello *slimcppb.Hello) error {
	own, theirs := r.identity.allegiance(), hello.GetClusterId()
	stranger := theirs == "" && hello.GetKind() == slimcppb.ConnectionKind_CONNECTION_KIND_RPC
	switch {
	case hello.GetReplicaId() == r.ReplicaID() && hello.GetBootId() != r.bootID:
		return fmt.Errorf("%w: %s, at %s, runs already at %s: its data directory was copied", peer.ErrDuplicate,
			hello.GetReplicaId(), hello.GetAdvertise(), r.options.Peers.Advertise)
	case stranger:
		return nil // may ask to join: see guard
	case own == "":
		return fmt.Errorf("%w: %s waits for init or join", peer.ErrNoCluster, r.ReplicaID())
	case theirs != own:
		return fmt.Errorf("%w: %s belongs to %s, %s to %s", peer.ErrWrongCluster,
			r.ReplicaID(), own, hello.GetReplicaId(), cmp.Or(theirs, "none"))
	case r.store.View().ReplicaRemoved(hello.GetReplicaId()):
		return fmt.Errorf("%w: set the data directory of %s aside and let it join anew", peer.ErrRemoved, hello.GetReplicaId())
	}
	return r.checkStart(ctx, hello)
}

// checkStart refuses who speaks for a replica and is not its present start: a copy of
// its data directory, or an older image of it that was put back. The latter has
// forgotten votes that it gave and entries that it confirmed. The number of the start
// tells the older one; a higher number alone may be a copy, too, so where the replica
// lived last is looked at.
func (r *Replica) checkStart(ctx context.Context, hello *slimcppb.Hello) error {
	id := hello.GetReplicaId()
	now := seenPeer{bootID: hello.GetBootId(), advertise: hello.GetAdvertise(), boots: hello.GetBoots()}
	if err := r.checkBoots(id, now.boots, now.bootID); err != nil {
		return err
	}
	before, _ := r.seenPeers.get(id)
	if address := r.formerAddress(id, now, before); address != "" && r.livesAt(ctx, address, id, now.bootID) {
		return fmt.Errorf("%w: %s, at %s, runs already at %s: its data directory was copied", peer.ErrDuplicate,
			id, now.advertise, address)
	}
	now.boots = max(now.boots, before.boots) // an older binary does not count, and takes none back
	r.seenPeers.set(id, now)
	if before.bootID != now.bootID && r.gate.isStarted() { // it may have been called before it calls
		r.network.port.CutEarlier(id, now.bootID)
	}
	return nil
}

// formerAddress is where a replica lived before a start that is met for the first time:
// as it said itself, or, if it never called this replica, as Raft's configuration has
// it. It is empty if there is nothing to ask.
func (r *Replica) formerAddress(id string, now, before seenPeer) string {
	if before.bootID == now.bootID || !r.gate.isStarted() {
		return ""
	}
	if before.bootID != "" {
		return before.advertise
	}
	if present, ok := r.member(id); ok && present.Address != now.advertise {
		return present.Address
	}
	return ""
}

// checkBoots refuses an earlier start of a replica than the last one that is known:
// from its hellos, or from the state, which survives the restart of those who heard
// them.
func (r *Replica) checkBoots(id string, boots uint64, bootID string) error {
	if boots == 0 {
		return nil
	}
	earlier := func(known uint64, knownBoot string) bool {
		return boots < known || boots == known && bootID != knownBoot
	}
	last := uint64(0)
	if before, ok := r.seenPeers.get(id); ok && earlier(before.boots, before.bootID) {
		last = before.boots
	}
	if record, ok := r.store.View().Replica(id); ok && earlier(record.Boots, record.BootID) {
		last = max(last, record.Boots)
	}
	if last == 0 {
		return nil
	}
	return fmt.Errorf("%w: this is start %d of %s, and start %d is known: its data directory was copied, or put back from an older image; "+
		"set it aside and let the replica join anew", peer.ErrDuplicate, boots, id, last)
}

// refused takes a refusal by another replica that ends this one's life. Only a
// replica of the same cluster can give it. One that knows a leader is a member: who
// says that it was removed was itself made a cluster of its own by a recovery.
func (r *Replica) refused(answer *slimcppb.HelloAnswer, err error) {
	if answer.GetClusterId() == "" || answer.GetClusterId() != r.identity.allegiance() {
		return
	}
	known, _ := r.LeaderKnown() // Raft may be starting yet
	switch {
	case errors.Is(err, peer.ErrRemoved) && known:
		// The leader of a replica that was just removed is known for a moment.
		if r.removals.stay(answer.GetReplicaId(), time.Now()) {
			r.logger.Warn("a replica says that this one was removed, and its leader does not", "replica", answer.GetReplicaId())
		}
	case errors.Is(err, peer.ErrRemoved):
		r.failRemoved(fmt.Errorf("%w: %w", ErrRemoved, err))
	case errors.Is(err, peer.ErrDuplicate):
		r.fail(fmt.Errorf("%w: %w", ErrDuplicate, err))
	}
}

const (
	// removalDoubt is for how long a replica says that this one was removed, which has
	// a leader, until it is worth a line in the log.
	removalDoubt = 15 * time.Second
	// removalMemory ends the doubt of which nothing was heard.
	removalMemory = time.Minute
)

// removals are what other replicas say of this one's removal.
type removals struct {
	mu          sync.Mutex
	from        string
	first, last time.Time
}

// stay notes what a replica says, and reports whether it has said so for a while.
func (d *removals) stay(replicaID string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.from != replicaID || now.Sub(d.last) > removalMemory {
		d.from, d.first = replicaID, now
	}
	d.last = now
	return now.Sub(d.first) >= removalDoubt
}

// openToStrangers are the calls that a replica without a cluster may make.
var openToStrangers = map[string]bool{
	slimcppb.ReplicaService_Describe_FullMethodName: true,
	slimcppb.ReplicaService_Join_FullMethodName:     true,
	slimcppb.ReplicaService_Pledge_FullMethodName:   true,
}

// guard refuses calls of replicas that are not members. The cluster's id alone
// proves nothing: whoever connects is told it. A replica that has just joined does
// not know the members yet.
func (r *Replica) guard(ctx context.Context, method string) error {
	hello := callerHello(ctx)
	if openToStrangers[method] {
		return nil
	}
	if hello.GetClusterId() != "" && hello.GetClusterId() == r.identity.allegiance() {
		if _, known := r.member(hello.GetReplicaId()); known || len(r.Members()) == 0 {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "%s is not a member of cluster %s", hello.GetReplicaId(), r.identity.allegiance())
}

// callerHello returns what the caller of an RPC on the cluster port said of
// itself.
func callerHello(ctx context.Context) *slimcppb.Hello {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if address, ok := p.Addr.(peer.Addr); ok {
			return address.Hello
		}
	}
	return nil
}

// CallerReplica returns the id of the replica that made a call on the cluster
// port.
func CallerReplica(ctx context.Context) string { return callerHello(ctx).GetReplicaId() }

func (r *Replica) guardUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := r.guard(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (r *Replica) guardStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := r.guard(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(service, stream)
}
