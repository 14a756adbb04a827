package northbound

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Reader reads the replicated state. cluster.Replica is one.
type Reader interface {
	// Read returns a view that holds every command answered before the call
	// (protocol X2). It blocks until the leader confirmed that or the context
	// ends.
	Read(ctx context.Context) (*fsm.View, error)
	// View returns what this replica has applied so far. It never blocks.
	View() *fsm.View
}

// NodeLister asks connected nodes for their own tables. Calls block until the
// node answered or the context ends. The caller owns the entries. An error's
// text is shown to the operator unless it is a context's: it should name the
// node and say what keeps it from answering.
type NodeLister interface {
	ListConnections(ctx context.Context, nodeID string) ([]*controllerpb.ConnectionEntry, error)
	ListRoutes(ctx context.Context, nodeID string) ([]*controllerpb.RouteEntry, error)
}

// Options are what a Service works with.
type Options struct {
	Reader   Reader
	Proposer Proposer
	Nodes    NodeLister
	// Cluster is what the replica is part of. Nil: there is nobody else.
	Cluster Cluster
	// WhileQuorum returns a context that also ends when no leader can be elected, and
	// whose cause says why. Nil: that is never known.
	WhileQuorum func(context.Context) (context.Context, context.CancelFunc)
	// Notes returns what an operator should know of this replica beside the
	// cluster's status. Nil: nothing.
	Notes func() []string
	// Provisional returns the full ids of the nodes whose session on this replica
	// is not in the state yet (protocol S6). Nil: there are none.
	Provisional func() []string
	Logger      hclog.Logger
	// Now is time.Now if nil.
	Now func() time.Time
}

// Service implements controlplanepb.ControlPlaneServiceServer and
// slimcppb.ClusterServiceServer. It may be used by any number of goroutines.
type Service struct {
	controlplanepb.UnimplementedControlPlaneServiceServer
	slimcppb.UnimplementedClusterServiceServer

	reader      Reader
	proposer    Proposer
	nodes       NodeLister
	cluster     Cluster
	whileQuorum func(context.Context) (context.Context, context.CancelFunc)
	notes       func() []string
	provisional func() []string
	logger      hclog.Logger
	audit       hclog.Logger
	// saves holds one value for each snapshot that is on its way to an operator.
	saves chan struct{}
	now   func() time.Time
}

// NewService returns the operator API over a replica.
func NewService(options Options) *Service {
	s := &Service{
		reader:      options.Reader,
		proposer:    options.Proposer,
		nodes:       options.Nodes,
		cluster:     options.Cluster,
		whileQuorum: options.WhileQuorum,
		notes:       options.Notes,
		provisional: options.Provisional,
		logger:      options.Logger,
		now:         options.Now,
		saves:       make(chan struct{}, maxSaves),
	}
	if s.provisional == nil {
		s.provisional = func() []string { return nil }
	}
	if s.whileQuorum == nil {
		s.whileQuorum = context.WithCancel
	}
	if s.notes == nil {
		s.notes = func() []string { return nil }
	}
	if s.logger == nil {
		s.logger = hclog.NewNullLogger()
	}
	s.audit = s.logger.Named("audit")
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// RegisterPeerServices adds both services to a replica's cluster port, for calls
// that other replicas pass on.
func (s *Service) RegisterPeerServices(registrar grpc.ServiceRegistrar) {
	controlplanepb.RegisterControlPlaneServiceServer(registrar, s)
	slimcppb.RegisterClusterServiceServer(registrar, s)
}

// unixSeconds is a time as lists show it, 0 for none.
func unixSeconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.Unix()
}
