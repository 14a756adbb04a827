package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// reachTimeout bounds the proof that a joiner can be reached.
const reachTimeout = 3 * time.Second

// Init makes this replica the first member of a new cluster. It is refused where
// another one of the join list is a member already. On a member it does nothing.
func (r *Replica) Init(ctx context.Context) error {
	if r.network == nil {
		return nil // a lone replica has made itself one
	}
	for _, address := range r.options.Peers.Join {
		description, err := r.describeAddress(ctx, address)
		if err == nil && description.GetReplicaId() != r.ReplicaID() && description.GetClusterId() != "" && r.ClusterID() == "" {
			return fmt.Errorf("%w: %s is a member of cluster %s: join it instead", ErrMembership, address, description.GetClusterId())
		}
	}
	return r.bootstrap(ctx)
}

// bootstrap makes this replica the only voter of a new cluster.
func (r *Replica) bootstrap(ctx context.Context) error {
	if err := r.members.lock(ctx); err != nil {
		return err
	}
	defer r.members.unlock()
	if len(r.Members()) == 0 {
		if joining := r.identity.allegiance(); joining != "" {
			return fmt.Errorf("%w: this replica is joining cluster %s: let it join that, or set its data directory aside", ErrMembership, joining)
		}
		configuration := raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: raft.ServerID(r.ReplicaID()), Address: raft.ServerAddress(r.network.advertise),
		}}}
		err := r.calls.await(ctx, func() error { return r.raft.BootstrapCluster(configuration).Error() })
		if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
			return fmt.Errorf("init: %w", err)
		}
	}
	if r.ClusterID() != "" {
		return nil // whether it has a leader now is another matter
	}
	if err := r.WaitReady(ctx); err != nil {
		return fmt.Errorf("initialised, and not ready yet: %w", err)
	}
	return nil
}

// Join makes this replica a member of the cluster of the replica at an address:
// at first without a vote. It returns when the leader has taken it in; the state
// arrives after that. On a member of that cluster it does nothing. After an error
// that is ErrUnknownOutcome it may be a member, after any other it is none.
func (r *Replica) Join(ctx context.Context, address string) error {
	if r.network == nil {
		return fmt.Errorf("%w: this replica has no cluster section", ErrMembership)
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	description, err := r.describeAddress(ctx, address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMembership, err)
	}
	clusterID := description.GetClusterId()
	switch own := r.ClusterID(); {
	case description.GetReplicaId() == r.ReplicaID():
		return fmt.Errorf("%w: %s is this replica", ErrMembership, address)
	case clusterID == "":
		return fmt.Errorf("%w: %s is not a member of a cluster: initialise one first", ErrMembership, address)
	case own != "" && own != clusterID:
		return fmt.Errorf("%w: this replica belongs to cluster %s, %s to %s; set its data directory aside to let it join",
			ErrMembership, own, address, clusterID)
	}
	conn, err := r.connAt(address)
	if err == nil {
		err = r.enterSoon(ctx, conn, clusterID)
	}
	if err == nil {
		r.logger.Info("joined a cluster", "cluster", clusterID, "through", address)
	}
	return err
}

// enterSoon is enter that waits for a leader, as other changes do.
func (r *Replica) enterSoon(ctx context.Context, conn *grpc.ClientConn, clusterID string) error {
	waiting, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	for {
		changed := r.readiness.watch()
		err := r.enter(ctx, conn, clusterID)
		again := errors.Is(err, ErrNoLeader) || errors.Is(err, ErrNotLeader)
		if !again || !r.waitLeaderChange(waiting, changed) {
			return err
		}
	}
}

// enter asks a member for membership, under the cluster id that it told.
func (r *Replica) enter(ctx context.Context, conn *grpc.ClientConn, clusterID string) (err error) {
	if r.ClusterID() == "" {
		if err := r.pledgeAllegiance(ctx, clusterID); err != nil {
			return err
		}
		defer func() {
			if failed := r.settleAllegiance(err); failed != nil {
				err = fmt.Errorf("%w, and that is not noted: %w", err, failed)
			}
		}()
	}
	err = callMember(ctx, conn, func(header grpc.CallOption) error {
		_, err := slimcppb.NewReplicaServiceClient(conn).Join(ctx, &slimcppb.JoinRequest{
			ReplicaId: r.ReplicaID(), BootId: r.bootID, Advertise: r.network.advertise,
			Version: r.options.Version, Schema: fsm.SchemaVersion,
		}, header)
		return err
	})
	if errors.Is(err, ErrDuplicate) { // the other one lives, so this one must not
		r.fail(fmt.Errorf("%w: %w", ErrDuplicate, err))
	}
	return err
}

// joins are the requests of this replica for membership that are under way.
type joins struct {
	mu     sync.Mutex
	open   int
	before string // what this replica was joining before the first of them
	kept   bool   // one of them took, or may have taken, effect
}

// pledgeAllegiance notes which cluster this replica asks for membership, before it
// asks. settleAllegiance follows.
func (r *Replica) pledgeAllegiance(ctx context.Context, clusterID string) error {
	if err := r.members.lock(ctx); err != nil {
		return err
	}
	defer r.members.unlock()
	if len(r.Members()) > 0 {
		return fmt.Errorf("%w: this replica has initialised a cluster of its own", ErrMembership)
	}
	joins := &r.members.joins
	joins.mu.Lock()
	defer joins.mu.Unlock()
	before := r.identity.joining()
	if err := r.identity.join(clusterID); err != nil {
		return err
	}
	if joins.open == 0 {
		joins.before, joins.kept = before, false
	}
	joins.open++
	return nil
}

// settleAllegiance takes back what was noted once every request was surely refused,
// so that this replica may join or form another cluster.
func (r *Replica) settleAllegiance(outcome error) error {
	joins := &r.members.joins
	joins.mu.Lock()
	defer joins.mu.Unlock()
	joins.open--
	joins.kept = joins.kept || outcome == nil || errors.Is(outcome, ErrUnknownOutcome)
	if joins.open > 0 || joins.kept || r.ClusterID() != "" || len(r.Members()) > 0 {
		return nil
	}
	return r.identity.join(joins.before)
}

// answeredKey is in the headers of a member's answer to a call about the
// membership: with it, what failed was answered, and did not break on the way.
const answeredKey = "slimcp-member-answered"

// sayAnswered marks the answer of this replica.
func (r *Replica) sayAnswered(ctx context.Context) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(answeredKey, r.ReplicaID()))
}

// callMember makes a call about the membership over a connection, and returns its
// error as it was at the other end. What was not sent surely had no effect.
func callMember(ctx context.Context, conn *grpc.ClientConn, call func(grpc.CallOption) error) error {
	if err := waitConnected(ctx, conn); err != nil {
		return fmt.Errorf("%w: %s cannot be reached", ErrNoLeader, strings.TrimPrefix(conn.Target(), "passthrough:///"))
	}
	var headers metadata.MD
	if err := call(grpc.Header(&headers)); err != nil {
		return membershipError(err, len(headers.Get(answeredKey)) > 0)
	}
	return nil
}

// membershipError is the reverse of membershipStatus. What broke on the way, and
// what is not surely a refusal, has an unknown outcome.
func membershipError(err error, answered bool) error {
	text := status.Convert(err).Message()
	switch code := status.Code(err); {
	case code == codes.FailedPrecondition:
		return &remoteError{text: text, kind: ErrMembership}
	case code == codes.PermissionDenied, code == codes.Unimplemented, code == codes.InvalidArgument: // it never came to the change
		return fmt.Errorf("%w: %s", ErrMembership, text)
	case code == codes.AlreadyExists:
		return &remoteError{text: text, kind: ErrDuplicate}
	case code == codes.NotFound:
		return &remoteError{text: text, kind: ErrUnknownReplica}
	case code == codes.Unavailable && answered:
		return &remoteError{text: text, kind: ErrNoLeader}
	case code == codes.Aborted && answered:
		return &remoteError{text: text, kind: ErrUnknownOutcome}
	}
	return &UnknownOutcomeError{Cause: err}
}

// admitMember takes a replica in, or passes its request on to the leader.
func (r *Replica) admitMember(ctx context.Context, request *slimcppb.JoinRequest) (*slimcppb.JoinResponse, error) {
	r.sayAnswered(ctx)
	if leading, _ := r.Leadership(); !leading {
		return r.passJoinOn(ctx, request)
	}
	if err := r.members.lock(ctx); err != nil {
		return nil, err
	}
	defer r.members.unlock()
	if err := r.acceptable(ctx, request); err != nil {
		return nil, err
	}
	if err := r.addMember(ctx, request); err != nil {
		return nil, err
	}
	return &slimcppb.JoinResponse{ClusterId: r.ClusterID(), LeaderId: r.ReplicaID()}, nil
}

func (r *Replica) passJoinOn(ctx context.Context, request *slimcppb.JoinRequest) (response *slimcppb.JoinResponse, err error) {
	conn, err := r.leaderConn()
	if err != nil {
		return nil, err
	}
	if CallerReplica(ctx) != request.GetReplicaId() {
		return nil, fmt.Errorf("%w: a request to join was passed on twice", ErrNotLeader)
	}
	err = callMember(ctx, conn, func(header grpc.CallOption) (err error) {
		response, err = slimcppb.NewReplicaServiceClient(conn).Join(ctx, request, header)
		return err
	})
	return response, err
}

// acceptable says why a replica cannot be taken in.
func (r *Replica) acceptable(ctx context.Context, request *slimcppb.JoinRequest) error {
	view, id := r.store.View(), request.GetReplicaId()
	switch {
	case !replicaID.MatchString(id):
		return fmt.Errorf("%w: %q is not a replica id", ErrMembership, id)
	case view.ReplicaRemoved(id):
		return fmt.Errorf("%w: %s was removed from cluster %s: set its data directory aside and let it join anew", ErrMembership, id, r.ClusterID())
	case request.GetSchema() < view.ActiveSchema():
		return fmt.Errorf("%w: %s (version %s) knows schema %d, the cluster uses %d: upgrade it first",
			ErrMembership, id, request.GetVersion(), request.GetSchema(), view.ActiveSchema())
	}
	present, known := r.member(id)
	if known && present.Address != request.GetAdvertise() && r.livesAt(ctx, present.Address, id, request.GetBootId()) {
		return fmt.Errorf("%w: %s, at %s, runs already at %s: its data directory was copied", ErrDuplicate,
			id, request.GetAdvertise(), present.Address)
	}
	if !known && len(r.Members()) >= maxReplicas {
		return fmt.Errorf("%w: the cluster has %d replicas, at most %d are accepted", ErrMembership, len(r.Members()), maxReplicas)
	}
	// Another member may have had the address: that this one answers there is proof.
	return r.provesReachable(ctx, request)
}

// livesAt reports whether another process with a replica's id runs at an address.
func (r *Replica) livesAt(ctx context.Context, address, id, bootID string) bool {
	ctx, cancel := context.WithTimeout(ctx, cloneProbe)
	defer cancel()
	answer, _ := r.network.port.Ask(ctx, address) // a refusal says who refuses, too
	return answer.GetReplicaId() == id && answer.GetBootId() != bootID
}

// provesReachable connects back to a joiner: one that cannot be reached would
// count for the quorum and never answer (openziti/ziti#3841).
func (r *Replica) provesReachable(ctx context.Context, request *slimcppb.JoinRequest) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, answer, err := r.network.port.Dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, request.GetAdvertise())
	if err != nil {
		return fmt.Errorf("%w: the leader %s cannot reach %s at %s, which it advertises: %w",
			ErrMembership, r.ReplicaID(), request.GetReplicaId(), request.GetAdvertise(), err)
	}
	_ = conn.Close()
	if answer.GetReplicaId() != request.GetReplicaId() || answer.GetBootId() != request.GetBootId() {
		return fmt.Errorf("%w: at %s, which %s advertises, runs %s", ErrMembership,
			request.GetAdvertise(), request.GetReplicaId(), cmp.Or(answer.GetReplicaId(), "another program"))
	}
	return nil
}

// addMember adds a joiner without a vote, or notes the new address of a member.
func (r *Replica) addMember(ctx context.Context, request *slimcppb.JoinRequest) error {
	id, address := raft.ServerID(request.GetReplicaId()), r.addressInRaft(request.GetReplicaId(), request.GetAdvertise())
	member, known := r.member(request.GetReplicaId())
	if known && member.Address == request.GetAdvertise() {
		return nil
	}
	add := r.raft.AddNonvoter
	if known && member.Voter {
		add = r.raft.AddVoter
	}
	err := r.change(ctx, "add "+request.GetReplicaId(), func() raft.IndexFuture { return add(id, address, 0, changeTimeout) })
	if err == nil {
		r.logger.Info("took a replica in", "joined", request.GetReplicaId(), "address", request.GetAdvertise(), "known", known)
		r.changed()
	}
	return err
}

// describeAddress asks the replica at an address what it is.
func (r *Replica) describeAddress(ctx context.Context, address string) (*slimcppb.ReplicaDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, answer, err := r.network.port.Dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, address)
	switch {
	case errors.Is(err, peer.ErrWrongCluster), errors.Is(err, peer.ErrNoCluster):
		// It told what it is with its refusal.
	case err != nil:
		return nil, err
	default:
		_ = conn.Close()
	}
	return &slimcppb.ReplicaDescription{
		ReplicaId: answer.GetReplicaId(), BootId: answer.GetBootId(), ClusterId: answer.GetClusterId(),
		Version: answer.GetVersion(), Schema: answer.GetSchema(),
	}, nil
}
