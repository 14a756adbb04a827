package southbound

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/slim-cp/slim-cp/budget"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// DefaultMaxReceiveBytes bounds one message of a node. Nodes report every
	// connection in one message.
	DefaultMaxReceiveBytes = 64 << 20
	// maxHeaderBytes bounds the metadata of a stream.
	maxHeaderBytes = 64 << 10
	// maxConcurrentStreams bounds those of one connection.
	maxConcurrentStreams = 1000

	keepaliveTime    = 20 * time.Second // protocol X8
	keepaliveTimeout = 10 * time.Second
)

// Proposer is what southbound needs of a replica.
type Proposer interface {
	ReplicaID() string
	BootID() string
	// Propose returns what Apply answered. An error that is
	// cluster.ErrUnknownOutcome leaves open whether the command takes effect;
	// after any other error it was surely not proposed.
	Propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error)
	// Read is linearizable: without a leader it fails.
	Read(ctx context.Context) (*fsm.View, error)
	LeaderKnown() (known bool, since time.Time)
}

// Options configure a Service.
type Options struct {
	Proposer Proposer
	// Store is the replica's own copy of the state.
	Store  *fsm.Store
	Logger hclog.Logger
	// Authenticator judges registrations; nil: by the kind of authentication and
	// the secrets in the state.
	Authenticator Authenticator
	// MaxReceiveBytes is DefaultMaxReceiveBytes if it is 0.
	MaxReceiveBytes int
	// MaxPending is DefaultMaxPending if it is 0.
	MaxPending int
}

// Hooks are told what happens to sessions on this replica. They are called from
// a stream's own goroutine and must not block.
type Hooks struct {
	// Ready: the session can be called, and FirstCommand knows it. The state
	// need not have it yet.
	Ready func(nodeID string, session fsm.SessionName)
	// Ended: the session's stream has ended; calls fail.
	Ended func(nodeID string, session fsm.SessionName)
	// Burst: the node has said so much so fast that it may have dropped some of
	// it, and is quiet now: its lists tell what is true (protocol N8).
	Burst func(nodeID string, session fsm.SessionName)
	// Attached: another replica was reached, for the first time or again. Only a
	// Router tells it.
	Attached func(replicaID string)
}

// Service serves the nodes' control channel. Create it with New.
type Service struct {
	controllerpb.UnimplementedControllerServiceServer

	proposer        Proposer
	store           *fsm.Store
	authenticator   Authenticator
	logger          hclog.Logger
	maxReceiveBytes int
	maxPending      int

	counter      atomic.Uint64 // of session names
	hooks        atomic.Pointer[Hooks]
	relayHooks   atomic.Pointer[Hooks] // the Relay's
	stats        stats
	toldHeldBack atomic.Bool
	losses       *losses
	quarantine   *room
	// unregistered are the streams that have their headers and no answer yet.
	unregistered *room

	draining   chan struct{} // closed by Drain
	drainOnce  sync.Once
	background context.Context // ends with Close
	stop       context.CancelFunc
	running    sync.WaitGroup

	mu sync.Mutex
	// sessions that can be called; a stream is here under its present name.
	sessions map[fsm.SessionName]*stream
	// streams are all that are open, registered or not.
	streams map[*stream]struct{}
	// names are of the streams that were registered or are to be, also of those that
	// have ended and whose last words are being proposed.
	names map[fsm.SessionName]*stream
	// idle is closed when the last stream has ended, and replaced.
	idle chan struct{}
	// leaderTerm is the highest of a leader that was seen (protocol C14).
	leaderTerm uint64
	// turnedAway are nodes that were answered, then refused by the leader
	// (protocol A5).
	turnedAway map[string]struct{}
}

// New returns a service that follows the store. Close it when its streams have
// ended.
func New(options Options) *Service {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if options.Authenticator == nil {
		options.Authenticator = fleetAuthenticator{}
	}
	if options.MaxReceiveBytes == 0 {
		options.MaxReceiveBytes = DefaultMaxReceiveBytes
	}
	if options.MaxPending == 0 {
		options.MaxPending = DefaultMaxPending
	}
	s := &Service{
		proposer:        options.Proposer,
		store:           options.Store,
		authenticator:   options.Authenticator,
		logger:          options.Logger,
		maxReceiveBytes: options.MaxReceiveBytes,
		maxPending:      options.MaxPending,
		quarantine:      newRoom(maxQuarantined),
		unregistered:    newRoom(maxUnregistered),
		draining:        make(chan struct{}),
		sessions:        map[fsm.SessionName]*stream{},
		streams:         map[*stream]struct{}{},
		names:           map[fsm.SessionName]*stream{},
		idle:            make(chan struct{}),
		turnedAway:      map[string]struct{}{},
	}
	s.background, s.stop = context.WithCancel(context.Background())
	s.losses = newLosses(s)
	feed := s.store.Subscribe()
	s.running.Go(func() { s.follow(feed) })
	return s
}

// Reached reports whether a replica's streams can be reached: only its own. See
// Router.
func (s *Service) Reached(replicaID string) bool { return replicaID == s.proposer.ReplicaID() }

// SetHooks replaces the hooks; nil removes them. Sessions that were ready before
// are not told again: see Sessions.
func (s *Service) SetHooks(hooks *Hooks) { s.hooks.Store(hooks) }

// Sessions returns the sessions that can be called.
func (s *Service) Sessions() []fsm.SessionName {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]fsm.SessionName, 0, len(s.sessions))
	for name := range s.sessions {
		names = append(names, name)
	}
	return names
}

// Provisional returns the full ids, in order, of the nodes that are served here
// and whose session is not in the state yet (protocol S6).
func (s *Service) Provisional() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, st := range s.sessions {
		if st.isUnregistered() {
			ids = append(ids, st.registration.nodeID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Register makes a gRPC server serve the nodes.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	controllerpb.RegisterControllerServiceServer(registrar, s)
}

// ServerOptions are what the gRPC server of the nodes needs. There is no maximum
// age of a connection: its end would cut the node's links.
func (s *Service) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// Nodes may ping every second. Answering that with "too many pings" would
		// cost the node its links.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: time.Nanosecond, PermitWithoutStream: true,
		}),
		grpc.MaxRecvMsgSize(s.maxReceiveBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// A proxy may put many nodes on one connection: it opens another beyond that.
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		// Nodes do not compress, and a compressed message says nothing of its size.
		budget.NoCompression(),
		grpc.ForceServerCodecV2(budget.Codec()),
		grpc.InTapHandle(budget.Opened),
	}
}

// Drain ends all streams, spread over a second (protocol A3); listeners were
// paused before. It returns nil when the last one has ended, or the context's
// error. Registrations under way are answered first.
func (s *Service) Drain(ctx context.Context) error {
	s.drainOnce.Do(func() { close(s.draining) })
	for {
		s.mu.Lock()
		open, idle := len(s.streams), s.idle
		s.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Close stops what the service does beside its streams. Session losses that are
// not committed by then are left to the next LeaderStarted.
func (s *Service) Close() {
	s.stop()
	s.running.Wait()
}

// heldBack notes that a stream waits for its headers. The log says it once.
func (s *Service) heldBack() {
	s.stats.heldBack.Add(1)
	if s.toldHeldBack.CompareAndSwap(false, true) {
		s.logger.Warn("many streams have not registered a node: newer ones wait for their headers", "streams", maxUnregistered)
	}
}

// eachHooks calls tell for whoever wants to know.
func (s *Service) eachHooks(tell func(*Hooks)) {
	for _, hooks := range []*Hooks{s.relayHooks.Load(), s.hooks.Load()} {
		if hooks != nil {
			tell(hooks)
		}
	}
}

func (s *Service) sessionReady(nodeID string, session fsm.SessionName) {
	s.eachHooks(func(hooks *Hooks) { hooks.ready(nodeID, session) })
}

func (s *Service) sessionBurst(nodeID string, session fsm.SessionName) {
	s.eachHooks(func(hooks *Hooks) { hooks.burst(nodeID, session) })
}

func (s *Service) sessionEnded(nodeID string, session fsm.SessionName) {
	s.eachHooks(func(hooks *Hooks) { hooks.ended(nodeID, session) })
}

func (h *Hooks) ready(nodeID string, session fsm.SessionName) {
	if h.Ready != nil {
		h.Ready(nodeID, session)
	}
}

func (h *Hooks) ended(nodeID string, session fsm.SessionName) {
	if h.Ended != nil {
		h.Ended(nodeID, session)
	}
}

func (h *Hooks) burst(nodeID string, session fsm.SessionName) {
	if h.Burst != nil {
		h.Burst(nodeID, session)
	}
}

func (h *Hooks) attached(replicaID string) {
	if h.Attached != nil {
		h.Attached(replicaID)
	}
}
