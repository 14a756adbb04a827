package northbound

import (
	"context"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxReplicaBytes bounds what may be the name of a replica, of at most 63 bytes, or
// its id, which is longer by nine. Ids of later versions may be longer.
const maxReplicaBytes = 253

// RemoveReplica removes a member for good. A leader that is to go hands over
// first.
func (s *Service) RemoveReplica(ctx context.Context, request *slimcppb.RemoveReplicaRequest) (*slimcppb.RemoveReplicaResponse, error) {
	if err := s.checkReplica(request.GetReplica()); err != nil {
		return nil, err
	}
	if !fromReplica(ctx) && s.isLeader(request.GetReplica()) {
		if _, err := s.TransferLeadership(ctx, &slimcppb.TransferLeadershipRequest{}); err != nil {
			return nil, err
		}
	}
	return changeAtLeader(ctx, s, "remove replica", []any{"replica", request.GetReplica()},
		slimcppb.ClusterService_RemoveReplica_FullMethodName, request,
		func(ctx context.Context) (*slimcppb.RemoveReplicaResponse, error) {
			return &slimcppb.RemoveReplicaResponse{}, s.membershipStatus(s.cluster.Remove(ctx, request.GetReplica()))
		})
}

// isLeader reports whether the one member of that name or id leads.
func (s *Service) isLeader(nameOrID string) bool {
	leading, _ := s.cluster.Leadership()
	leaderID := s.cluster.ReplicaID()
	if !leading {
		var err error
		if _, leaderID, err = s.cluster.LeaderConn(false); err != nil {
			return false
		}
	}
	named := 0
	for _, member := range s.cluster.Members() {
		if member.ReplicaID == nameOrID {
			return nameOrID == leaderID
		}
		if cluster.ReplicaName(member.ReplicaID) == nameOrID {
			named++
		}
	}
	return named == 1 && cluster.ReplicaName(leaderID) == nameOrID
}

// PromoteReplica gives a member a vote.
func (s *Service) PromoteReplica(ctx context.Context, request *slimcppb.PromoteReplicaRequest) (*slimcppb.PromoteReplicaResponse, error) {
	if err := s.checkReplica(request.GetReplica()); err != nil {
		return nil, err
	}
	return changeAtLeader(ctx, s, "promote replica", []any{"replica", request.GetReplica()},
		slimcppb.ClusterService_PromoteReplica_FullMethodName, request,
		func(ctx context.Context) (*slimcppb.PromoteReplicaResponse, error) {
			return &slimcppb.PromoteReplicaResponse{}, s.membershipStatus(s.cluster.Promote(ctx, request.GetReplica()))
		})
}

// DemoteReplica takes the vote of a member. A leader hands over first.
func (s *Service) DemoteReplica(ctx context.Context, request *slimcppb.DemoteReplicaRequest) (*slimcppb.DemoteReplicaResponse, error) {
	if err := s.checkReplica(request.GetReplica()); err != nil {
		return nil, err
	}
	if !fromReplica(ctx) && s.isLeader(request.GetReplica()) {
		if _, err := s.TransferLeadership(ctx, &slimcppb.TransferLeadershipRequest{}); err != nil {
			return nil, err
		}
	}
	return changeAtLeader(ctx, s, "demote replica", []any{"replica", request.GetReplica()},
		slimcppb.ClusterService_DemoteReplica_FullMethodName, request,
		func(ctx context.Context) (*slimcppb.DemoteReplicaResponse, error) {
			return &slimcppb.DemoteReplicaResponse{}, s.membershipStatus(s.cluster.Demote(ctx, request.GetReplica()))
		})
}

// TransferLeadership has another member lead.
func (s *Service) TransferLeadership(ctx context.Context, request *slimcppb.TransferLeadershipRequest) (*slimcppb.TransferLeadershipResponse, error) {
	if err := s.needCluster(); err != nil {
		return nil, err
	}
	if err := s.checkReplicaLength(request.GetTo()); err != nil {
		return nil, err
	}
	return changeAtLeader(ctx, s, "transfer leadership", []any{"to", request.GetTo()},
		slimcppb.ClusterService_TransferLeadership_FullMethodName, request,
		func(ctx context.Context) (*slimcppb.TransferLeadershipResponse, error) {
			leader, err := s.cluster.TransferLeadership(ctx, request.GetTo())
			return &slimcppb.TransferLeadershipResponse{LeaderId: leader}, s.membershipStatus(err)
		})
}

// FinalizeUpgrade lets the cluster use the newest schema that all members know
// (protocol X5).
func (s *Service) FinalizeUpgrade(ctx context.Context, request *slimcppb.FinalizeUpgradeRequest) (*slimcppb.FinalizeUpgradeResponse, error) {
	if err := s.needCluster(); err != nil {
		return nil, err
	}
	return changeAtLeader(ctx, s, "finalize upgrade", nil,
		slimcppb.ClusterService_FinalizeUpgrade_FullMethodName, request,
		func(ctx context.Context) (*slimcppb.FinalizeUpgradeResponse, error) {
			schema, err := s.cluster.FinalizeUpgrade(ctx)
			return &slimcppb.FinalizeUpgradeResponse{Schema: schema}, s.membershipStatus(err)
		})
}

func (s *Service) checkReplica(nameOrID string) error {
	if err := s.needCluster(); err != nil {
		return err
	}
	if nameOrID == "" {
		return s.statusOf(argumentError("replica must not be empty: accepted is the name or the id of a member"))
	}
	return s.checkReplicaLength(nameOrID)
}

func (s *Service) checkReplicaLength(nameOrID string) error {
	if len(nameOrID) > maxReplicaBytes {
		return s.statusOf(argumentError("replica %q: accepted is the name or the id of a member, which have at most %d bytes",
			shown(nameOrID), maxReplicaBytes))
	}
	return nil
}
