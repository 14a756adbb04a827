package cluster

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// service answers the other replicas.
type service struct {
	slimcppb.UnimplementedReplicaServiceServer
	*Replica
}

// Propose puts forwarded commands into the log. Only a leader does it: a command
// travels one hop at most.
func (s service) Propose(ctx context.Context, request *slimcppb.ProposeRequest) (*slimcppb.ProposeResponse, error) {
	outcomes := make([]*slimcppb.Outcome, len(request.GetCommands()))
	if len(outcomes) > maxEntryCommands {
		return nil, status.Errorf(codes.InvalidArgument, "%d commands, at most %d are accepted", len(outcomes), maxEntryCommands)
	}
	var waiting sync.WaitGroup
	for i, encoded := range request.GetCommands() {
		err := s.leads()
		if err == nil {
			err = s.proposer.checkForwarded(encoded)
		}
		if err != nil {
			outcomes[i] = outcome{err: err}.proto()
			continue
		}
		waiting.Go(func() {
			result, err := s.proposer.proposeEncoded(ctx, encoded)
			outcomes[i] = outcome{result: result, err: err}.proto()
		})
	}
	waiting.Wait()
	return &slimcppb.ProposeResponse{Outcomes: outcomes}, nil
}

func (s service) ReadIndex(ctx context.Context, _ *slimcppb.ReadIndexRequest) (*slimcppb.ReadIndexResponse, error) {
	index, term, err := s.readIndex(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &slimcppb.ReadIndexResponse{Index: index, Term: term}, nil
}

// Confirm never waits: not for the disk, nor for raft's main loop.
func (s service) Confirm(context.Context, *slimcppb.ConfirmRequest) (*slimcppb.ConfirmResponse, error) {
	return &slimcppb.ConfirmResponse{ReplicaId: s.ReplicaID(), Term: s.raft.CurrentTerm()}, nil
}

func (s service) Describe(context.Context, *slimcppb.DescribeRequest) (*slimcppb.ReplicaDescription, error) {
	return s.describe(), nil
}

// describe says how this replica is doing, as it sees itself.
func (r *Replica) describe() *slimcppb.ReplicaDescription {
	view := r.store.View()
	peers := cmp.Or(r.options.Peers, &Peers{}) // a lone replica has none
	d := &slimcppb.ReplicaDescription{
		ReplicaId: r.ReplicaID(), BootId: r.bootID, ClusterId: r.ClusterID(),
		Advertise: peers.Advertise, Version: r.options.Version, Schema: fsm.SchemaVersion,
		LeaderId: r.leaderID(), Term: r.raft.CurrentTerm(),
		LastIndex: r.raft.LastIndex(), AppliedIndex: view.Index(), Generation: view.Generation(),
		BootstrapExpect: uint32(peers.BootstrapExpect), Draining: r.draining.Load(),
		Hashes: r.checkpoints.hashes(), Distrusted: r.Distrusted(), Problem: r.Problem(), Ready: new(r.serves()),
		MissesLeader: r.misses(r.leaderID()),
	}
	if term, err := r.lastLogTerm(); err == nil {
		d.LastTerm = term
	}
	if count := r.sessions.Load(); count != nil {
		d.Sessions = uint64((*count)())
	}
	if contact := r.raft.LastContact(); !contact.IsZero() && d.LeaderId != d.ReplicaId {
		ms := time.Since(contact).Milliseconds()
		d.LastContactMs = &ms
	}
	problem, idle := r.storage.disk.report()
	d.DiskProblem = problem
	if idle >= 0 {
		ms := idle.Milliseconds()
		d.LastWriteMs = &ms
	}
	return d
}

func (s service) Join(ctx context.Context, request *slimcppb.JoinRequest) (*slimcppb.JoinResponse, error) {
	response, err := s.admitMember(ctx, request)
	if err != nil {
		return nil, membershipStatus(err)
	}
	return response, nil
}

func (s service) Pledge(ctx context.Context, request *slimcppb.PledgeRequest) (*slimcppb.PledgeResponse, error) {
	granted, reason := s.pledge(ctx, request)
	return &slimcppb.PledgeResponse{Granted: granted, Reason: reason}, nil
}

// membershipErrors maps the errors of membership changes to the wire. The first
// match counts.
var membershipErrors = []struct {
	err  error
	code codes.Code
}{
	{ErrDuplicate, codes.AlreadyExists},
	{ErrMembership, codes.FailedPrecondition},
	{ErrUnknownReplica, codes.NotFound},
	{ErrUnknownOutcome, codes.Aborted},
	{ErrNoLeader, codes.Unavailable},
	{ErrNotLeader, codes.Unavailable},
	{ErrShutdown, codes.Unavailable},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
}

func membershipStatus(err error) error {
	for _, known := range membershipErrors {
		if errors.Is(err, known.err) {
			return status.Error(known.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}
