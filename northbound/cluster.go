package northbound

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Cluster is what a replica is part of. cluster.Replica is one.
type Cluster interface {
	Leader
	Membership
	Snapshots
}

// Membership tells and changes who the replicas are.
type Membership interface {
	ClusterID() string
	Members() []cluster.Member
	// Status asks every member how it is doing.
	Status(ctx context.Context) cluster.Status

	// What a replica does for itself. Each may be repeated.
	Init(ctx context.Context) error
	Join(ctx context.Context, address string) error
	Leave(ctx context.Context) error

	// What the leader does. Each may be repeated.
	Remove(ctx context.Context, nameOrID string) error
	Promote(ctx context.Context, nameOrID string) error
	Demote(ctx context.Context, nameOrID string) error
	TransferLeadership(ctx context.Context, nameOrID string) (to string, err error)
	FinalizeUpgrade(ctx context.Context) (schema uint32, err error)
}

const (
	// initTimeout bounds Init, which waits until the new cluster has a leader.
	initTimeout = 12 * time.Second
	// joinAttempt bounds the request to be taken in. What follows lasts as long as
	// the caller waits.
	joinAttempt = 15 * time.Second
	// maxHostBytes bounds the host of an address: no name of the DNS is longer.
	maxHostBytes = 253
	// joinLook is how often a joining replica looks how far it is.
	joinLook = 250 * time.Millisecond
)

// ClusterStatus says how the cluster is doing, as this replica sees it. It needs
// no leader.
func (s *Service) ClusterStatus(ctx context.Context, _ *slimcppb.ClusterStatusRequest) (*slimcppb.ClusterStatusResponse, error) {
	if err := s.needCluster(); err != nil {
		return nil, err
	}
	seen := s.cluster.Status(ctx)
	response := &slimcppb.ClusterStatusResponse{
		ClusterId: seen.ClusterID, ReplicaId: seen.ReplicaID, LeaderId: seen.LeaderID, Term: seen.Term,
		Generation: seen.Generation, Index: seen.Index, Schema: seen.Schema,
		FailureTolerance: uint32(seen.FailureTolerance), Notes: s.notes(), LeaderWorks: seen.LeaderWorks,
		QuorumLost: seen.QuorumLost,
	}
	for _, member := range seen.Members {
		response.Replicas = append(response.Replicas, replicaStatus(member, seen.LeaderID))
	}
	return response, nil
}

func replicaStatus(member cluster.MemberStatus, leaderID string) *slimcppb.ReplicaStatus {
	shown := &slimcppb.ReplicaStatus{
		ReplicaId: member.ReplicaID, Name: cluster.ReplicaName(member.ReplicaID), Address: member.Address,
		Role: roleOf(member, leaderID), Healthy: member.Healthy, Problem: member.Problem,
		AppliedIndex: member.Applied, Lag: member.Lag, Version: member.Version, Schema: member.Schema,
		Sessions: member.Sessions, Draining: member.Draining, Ready: &member.Ready,
	}
	if member.LastContact >= 0 {
		ms := member.LastContact.Milliseconds()
		shown.LastContactMs = &ms
	}
	return shown
}

func roleOf(member cluster.MemberStatus, leaderID string) slimcppb.ReplicaRole {
	switch {
	case member.ReplicaID == leaderID:
		return slimcppb.ReplicaRole_REPLICA_ROLE_LEADER
	case member.Voter:
		return slimcppb.ReplicaRole_REPLICA_ROLE_VOTER
	case member.HeldBack:
		return slimcppb.ReplicaRole_REPLICA_ROLE_HELD_BACK
	}
	return slimcppb.ReplicaRole_REPLICA_ROLE_NON_VOTER
}

// needCluster refuses what a service without a cluster cannot answer.
func (s *Service) needCluster() error {
	if s.cluster == nil {
		return s.statusOf(fmt.Errorf("%w: this replica has none", cluster.ErrMembership))
	}
	return nil
}

// own makes a change that a replica makes for itself, and leaves one line about it
// in the log.
func (s *Service) own(ctx context.Context, action string, subject []any, change func(context.Context) error) error {
	if err := s.needCluster(); err != nil {
		return err
	}
	err := s.membershipStatus(change(ctx))
	s.auditOf(ctx, action, subject, err)
	return err
}

// membershipStatus is statusOf for changes of the cluster: whatever was in the way,
// the operator is told.
func (s *Service) membershipStatus(err error) error {
	if err == nil {
		return nil
	}
	return s.statusOf(&changeError{cause: err})
}

// changeError is an error of a change of the cluster.
type changeError struct{ cause error }

func (e *changeError) Error() string        { return e.cause.Error() }
func (e *changeError) Is(target error) bool { return target == errChangeFailed }
func (e *changeError) Unwrap() error        { return e.cause }

// Init makes this replica the first member of a new cluster. On a member it does
// nothing.
func (s *Service) Init(ctx context.Context, _ *slimcppb.InitRequest) (*slimcppb.InitResponse, error) {
	err := s.own(ctx, "init cluster", nil, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, initTimeout)
		defer cancel()
		return s.cluster.Init(ctx)
	})
	if err != nil {
		return nil, err
	}
	return &slimcppb.InitResponse{ClusterId: s.cluster.ClusterID(), ReplicaId: s.cluster.ReplicaID()}, nil
}

// Leave removes this replica from its cluster. The process ends soon after.
func (s *Service) Leave(ctx context.Context, _ *slimcppb.LeaveRequest) (*slimcppb.LeaveResponse, error) {
	err := s.own(ctx, "leave cluster", nil, func(ctx context.Context) error { return s.cluster.Leave(ctx) })
	if err != nil {
		return nil, err
	}
	return &slimcppb.LeaveResponse{ReplicaId: s.cluster.ReplicaID()}, nil
}

// Join makes this replica a member of a cluster and tells how far it is until it
// votes, or is a member that an operator keeps from voting.
func (s *Service) Join(request *slimcppb.JoinClusterRequest, stream grpc.ServerStreamingServer[slimcppb.JoinProgress]) error {
	address := request.GetAddress()
	err := s.own(stream.Context(), "join cluster", []any{"member", address}, func(ctx context.Context) error {
		if err := checkHostPort(address); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, joinAttempt)
		defer cancel()
		return s.cluster.Join(ctx, address)
	})
	if err != nil {
		return err
	}
	return s.followJoin(stream)
}

func checkHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if number, numberErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || len(host) > maxHostBytes || numberErr != nil || number == 0 {
		return argumentError("address %q: accepted is HOST:PORT of a member's cluster port", shown(address))
	}
	return nil
}

// followJoin tells a joiner's progress, each state once.
func (s *Service) followJoin(stream grpc.ServerStreamingServer[slimcppb.JoinProgress]) error {
	ticker := time.NewTicker(joinLook)
	defer ticker.Stop()
	told := ""
	for {
		progress := s.joinProgress(stream.Context())
		if progress.GetLine() != told {
			told = progress.GetLine()
			if err := stream.Send(progress); err != nil {
				return err
			}
		}
		if progress.GetDone() {
			return nil
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return s.statusOf(stream.Context().Err())
		}
	}
}

// joinProgress says how far this replica is.
func (s *Service) joinProgress(ctx context.Context) *slimcppb.JoinProgress {
	seen := s.cluster.Status(ctx)
	progress := &slimcppb.JoinProgress{ReplicaId: seen.ReplicaID, ClusterId: seen.ClusterID}
	var own, leader *cluster.MemberStatus
	for i := range seen.Members {
		member := &seen.Members[i]
		if member.ReplicaID == seen.ReplicaID {
			own = member
		}
		if member.ReplicaID == seen.LeaderID {
			leader = member
		}
	}
	if own == nil {
		progress.Line = "taken in, waiting for the log"
		return progress
	}
	progress.Role = roleOf(*own, seen.LeaderID)
	switch {
	case own.Voter:
		progress.Line, progress.Done = "votes", true
	case own.HeldBack:
		progress.Line, progress.Done = "is a member without a vote: an operator keeps it so (cluster promote gives it one)", true
	case leader == nil:
		progress.Line = "is a member without a vote, waiting for a leader"
	case own.Applied < leader.Applied:
		progress.Line = fmt.Sprintf("is a member without a vote, catching up: state at index %d of %d", own.Applied, leader.Applied)
	default:
		progress.Line = "is a member without a vote and up to date, gets one when it has been healthy for a while"
	}
	return progress
}
