package cluster

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// SetDraining has this replica say that it is shutting down.
func (r *Replica) SetDraining() { r.draining.Store(true) }

// HandOver has a stopping leader hand over to the member that is most up to date.
// It does nothing on a replica that does not lead or is the only voter. An error
// means that the others will have to elect somebody.
func (r *Replica) HandOver(ctx context.Context) error {
	if leading, _ := r.Leadership(); !leading || r.network == nil {
		return nil
	}
	voters := 0
	for _, member := range r.Members() {
		if member.Voter {
			voters++
		}
	}
	if voters < 2 {
		return nil
	}
	_, err := r.TransferLeadership(ctx, "")
	return err
}

// QuorumRemains reports whether most of the other voters answer and are not shutting
// down. If not, there will be no leader to tell that this one goes.
func (r *Replica) QuorumRemains(ctx context.Context) bool {
	voters, remaining := 0, 0
	for _, status := range r.describeMembers(ctx) {
		if !status.Voter {
			continue
		}
		voters++
		if status.ReplicaID != r.ReplicaID() && status.BootID != "" && !status.Draining {
			remaining++
		}
	}
	return remaining > (voters-1)/2
}

// LeaderElsewhere reports whether this replica, which knows no leader, can reach a
// member that has one (protocol D4).
func (r *Replica) LeaderElsewhere(ctx context.Context) bool {
	if r.leaderID() != "" || r.network == nil {
		return false
	}
	for _, status := range r.describeMembers(ctx) {
		if status.ReplicaID != r.ReplicaID() && status.Healthy {
			return true
		}
	}
	return false
}

// Leave has the leader remove this replica from its cluster, for good. A leader
// hands over first.
func (r *Replica) Leave(ctx context.Context) error {
	if r.network == nil {
		return fmt.Errorf("%w: this replica has no cluster section", ErrMembership)
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	if leading, _ := r.Leadership(); leading {
		if _, err := r.TransferLeadership(ctx, ""); err != nil {
			return err
		}
	}
	var open error // of a request whose outcome is not known; it may be repeated
	for {
		changed := r.readiness.watch()
		err := r.askRelease(ctx)
		if errors.Is(r.Err(), ErrRemoved) {
			return nil // it was told before the answer came
		}
		if errors.Is(err, ErrUnknownOutcome) {
			open = err
		}
		again := errors.Is(err, ErrNoLeader) || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnknownOutcome)
		if !again || !r.waitLeaderChange(ctx, changed) {
			return stillOpen(open, err)
		}
	}
}

func (r *Replica) askRelease(ctx context.Context) error {
	conn, err := r.leaderConn()
	if err != nil {
		return err
	}
	return callMember(ctx, conn, func(header grpc.CallOption) error {
		_, err := slimcppb.NewReplicaServiceClient(conn).Release(ctx, &slimcppb.ReleaseRequest{ReplicaId: r.ReplicaID()}, header)
		return err
	})
}

// Release removes the member that asks for it.
func (s service) Release(ctx context.Context, request *slimcppb.ReleaseRequest) (*slimcppb.ReleaseResponse, error) {
	s.sayAnswered(ctx)
	if caller := CallerReplica(ctx); caller != request.GetReplicaId() {
		return nil, membershipStatus(fmt.Errorf("%w: %s asks to remove %s", ErrMembership, caller, request.GetReplicaId()))
	}
	if err := s.Remove(ctx, request.GetReplicaId()); err != nil {
		return nil, membershipStatus(err)
	}
	return &slimcppb.ReleaseResponse{}, nil
}
