package southbound

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// reachedWithin is how long ago a replica may have been heard of to count as
// reached (protocol C7).
const reachedWithin = time.Second

// LeaderProposer is what a Router needs of a replica. cluster.Replica is one.
type LeaderProposer interface {
	ReplicaID() string
	BootID() string
	// ProposeAsLeader commits a command under a term, and fails if this replica
	// does not lead in that term.
	ProposeAsLeader(ctx context.Context, term uint64, command *slimcppb.Command) (fsm.Result, error)
}

// RouterOptions configure a Router.
type RouterOptions struct {
	Service  *Service
	Proposer LeaderProposer
	Store    *fsm.Store
	Logger   hclog.Logger
}

// Router reaches the streams of the whole fleet from the replica that leads: its
// own through the Service, those of the others through their relays. It also ends
// the sessions of replicas that cannot be reached any more (protocol D2).
type Router struct {
	service  *Service
	proposer LeaderProposer
	store    *fsm.Store
	logger   hclog.Logger
	hooks    atomic.Pointer[Hooks]

	mu      sync.Mutex
	custody *custody // nil: this replica does not lead
}

// NewRouter returns a router that refuses relays until Run.
func NewRouter(options RouterOptions) *Router {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	return &Router{service: options.Service, proposer: options.Proposer, store: options.Store, logger: options.Logger}
}

// Register adds the relays' service to the cluster port. Its callers are known by
// cluster.CallerReplica.
func (r *Router) Register(registrar grpc.ServiceRegistrar) {
	slimcppb.RegisterRelayServiceServer(registrar, relayServer{router: r})
}

// Run takes care of the replicas and their sessions during one leadership. It
// returns when the context has ended and every relay was let go.
func (r *Router) Run(ctx context.Context, term uint64) {
	c := newCustody(ctx, r, term)
	r.mu.Lock()
	r.custody = c
	r.mu.Unlock()
	c.run()
	r.mu.Lock()
	r.custody = nil
	r.mu.Unlock()
	c.close()
}

func (r *Router) leading() *custody {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.custody
}

// SetHooks is Service.SetHooks for the sessions of all replicas.
func (r *Router) SetHooks(hooks *Hooks) {
	r.hooks.Store(hooks)
	r.service.SetHooks(hooks)
}

func (r *Router) tell(say func(*Hooks)) {
	if hooks := r.hooks.Load(); hooks != nil {
		say(hooks)
	}
}

// Call is Service.Call wherever the stream is. A call to a replica that cannot be
// reached, or could not before the answer came, ends with ErrUnreachable.
func (r *Router) Call(call Call, done func(Answer)) {
	answered := func(answer Answer) {
		r.answered(call.Session, answer)
		done(answer)
	}
	if call.Session.ReplicaID == r.proposer.ReplicaID() {
		r.service.Call(call, answered)
		return
	}
	r.relay(call.Session, call.relayed(), relayedCall{done: answered, late: call.Late, silent: call.Silent})
}

// answered notes what an answer tells of a session: one that its replica denies is
// over (protocol S4).
func (r *Router) answered(session fsm.SessionName, answer Answer) {
	if !errors.Is(answer.Err, ErrSessionDenied) {
		return
	}
	if c := r.leading(); c != nil {
		c.lose(session, slimcppb.LossReason_LOSS_REASON_ENDED)
	}
}

// relay sends a request to the replica of a session. The call's done is called once,
// from another goroutine.
func (r *Router) relay(session fsm.SessionName, message *slimcppb.RelayCall, call relayedCall) {
	a := r.attachmentOf(session.ReplicaID)
	if a == nil {
		go call.done(Answer{Err: ErrUnreachable})
		return
	}
	a.call(message, call)
}

func (r *Router) attachmentOf(replicaID string) *attachment {
	if c := r.leading(); c != nil {
		return c.attachmentOf(replicaID)
	}
	return nil
}

// FirstCommand is Service.FirstCommand wherever the stream is.
func (r *Router) FirstCommand(session fsm.SessionName) (First, bool) {
	if session.ReplicaID == r.proposer.ReplicaID() {
		return r.service.FirstCommand(session)
	}
	a := r.attachmentOf(session.ReplicaID)
	if a == nil {
		return First{}, false
	}
	return a.firstCommand(session)
}

// End is Service.End wherever the stream is.
func (r *Router) End(term uint64, session fsm.SessionName, notify bool, done func(error)) {
	if session.ReplicaID == r.proposer.ReplicaID() {
		r.service.End(term, session, notify, done)
		return
	}
	kind := slimcppb.CallKind_CALL_KIND_END
	if notify {
		kind = slimcppb.CallKind_CALL_KIND_END_NOTIFY
	}
	message := &slimcppb.RelayCall{Kind: kind, Term: term, Session: session.Proto()}
	r.relay(session, message, relayedCall{done: func(answer Answer) { done(answer.Err) }})
}

// Reached reports whether a replica was heard of within the last second (protocol
// C7).
func (r *Router) Reached(replicaID string) bool {
	if replicaID == r.proposer.ReplicaID() {
		return true
	}
	a := r.attachmentOf(replicaID)
	return a != nil && a.silentFor() <= reachedWithin
}

// ReplicaReach says how the leader reaches another replica.
type ReplicaReach struct {
	ReplicaID string
	Attached  bool
	// Since the replica was heard of, or since the leadership began.
	Silent   time.Duration
	Draining bool
	Sessions int // that can be called
}

// Replicas returns how the leader reaches the others; nil on a replica that does
// not lead.
func (r *Router) Replicas() []ReplicaReach {
	if c := r.leading(); c != nil {
		return c.reach()
	}
	return nil
}

// relayServer serves the relays of the other replicas.
type relayServer struct {
	slimcppb.UnimplementedRelayServiceServer
	router *Router
}

var errNotLeading = status.Error(codes.Unavailable, "this replica does not lead")

// Events serves the events of one attachment, which lives as long as the stream.
func (s relayServer) Events(stream slimcppb.RelayService_EventsServer) error {
	c := s.router.leading()
	if c == nil {
		return errNotLeading
	}
	a := newAttachment(c, cluster.CallerReplica(stream.Context()))
	defer a.end(errRelayEnded)
	if a.replicaID == "" {
		return status.Error(codes.PermissionDenied, "only replicas may attach")
	}
	// gRPC ends Recv when this handler has returned.
	go func() { a.end(a.receiveEvents(stream)) }()
	return a.sendSignals(stream)
}

// Calls serves the calls of an attachment.
func (s relayServer) Calls(stream slimcppb.RelayService_CallsServer) error {
	c := s.router.leading()
	if c == nil {
		return errNotLeading
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	a := c.attachmentOf(cluster.CallerReplica(stream.Context()))
	if a == nil || a.token != first.GetToken() {
		return status.Error(codes.FailedPrecondition, "there is no such attachment")
	}
	defer a.end(errRelayEnded)
	a.beginCalls()
	go func() { a.end(a.receiveAnswers(stream)) }()
	return a.sendCalls(stream)
}
