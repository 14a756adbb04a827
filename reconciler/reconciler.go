package reconciler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/client-go/util/workqueue"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// Proposer commits what the leadership decided. cluster.Replica is one.
type Proposer interface {
	// ProposeAsLeader commits a command under a term, and fails if this replica
	// does not lead in that term.
	ProposeAsLeader(ctx context.Context, term uint64, command *slimcppb.Command) (fsm.Result, error)
}

// Nodes reaches the streams of the fleet. southbound.Router is one; that of a lone
// replica may be its southbound.Service.
type Nodes interface {
	Call(call southbound.Call, done func(southbound.Answer))
	FirstCommand(session fsm.SessionName) (southbound.First, bool)
	End(term uint64, session fsm.SessionName, notify bool, done func(error))
	SetHooks(hooks *southbound.Hooks)
	// Reached reports whether a replica was heard of a moment ago (protocol C7).
	Reached(replicaID string) bool
}

// Options are the settings of the work queues; the zero value of a field stands
// for its default.
type Options struct {
	Proposer Proposer
	Nodes    Nodes
	Store    *fsm.Store
	Logger   hclog.Logger

	// Workers per queue; default 4.
	Workers int
	// MaxRequeues is how often a node is tried again after failures before it
	// waits for the next event, session or sweep; default 15.
	MaxRequeues int
	// BaseRetryDelay is the first back-off; default 200 ms.
	BaseRetryDelay time.Duration
	// ReconcilePeriod is the time of a sweep of all nodes; 0 disables it.
	ReconcilePeriod time.Duration
	// OrphanDetection removes connections that the control plane does not know.
	OrphanDetection bool
	// DepartureHold is how long nobody departs after a leader change or when a
	// replica was reached (protocol D3); default 10 s.
	DepartureHold time.Duration
}

const (
	// DefaultWorkers is the default of Options.Workers.
	DefaultWorkers = 4
	// DefaultMaxRequeues is the default of Options.MaxRequeues.
	DefaultMaxRequeues = 15
	// DefaultBaseRetryDelay is the default of Options.BaseRetryDelay.
	DefaultBaseRetryDelay = 200 * time.Millisecond

	// DefaultDepartureHold is the default of Options.DepartureHold.
	DefaultDepartureHold = 10 * time.Second

	proposeTimeout = 10 * time.Second
)

// ErrNotLeading is the error of a request that only a leader can serve.
var ErrNotLeading = errors.New("this replica does not lead")

// Reconciler makes the drivers of a leadership while there is one.
type Reconciler struct {
	options     Options
	generations generations

	mu     sync.Mutex
	leader *leadership // nil while this replica does not lead
}

// New returns a reconciler that does nothing until Run.
func New(options Options) *Reconciler {
	if options.Workers < 1 {
		options.Workers = DefaultWorkers
	}
	if options.BaseRetryDelay <= 0 {
		options.BaseRetryDelay = DefaultBaseRetryDelay
	}
	if options.DepartureHold <= 0 {
		options.DepartureHold = DefaultDepartureHold
	}
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	return &Reconciler{options: options}
}

// Run does the work of one leadership until the context ends. It returns when
// all of its goroutines have.
func (r *Reconciler) Run(ctx context.Context, term uint64) {
	l := newLeadership(r.options, term)
	if l.generations = &r.generations; l.generations.restored(l.view()) {
		l.deletions.begin(r.options.DepartureHold)
	}
	r.mu.Lock()
	r.leader = l
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.leader = nil
		r.mu.Unlock()
	}()
	l.run(ctx)
}

func (r *Reconciler) leading() (*leadership, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader == nil {
		return nil, ErrNotLeading
	}
	return r.leader, nil
}

// queue is a work queue keyed by node id: each id at most once, never with two
// workers, and added again if it changes while it is being worked on.
type queue = workqueue.TypedDelayingInterface[string]

// leadership is everything that lives as long as one term of leading.
type leadership struct {
	Options
	term uint64
	// found are the sessions that were there when the work began. Nothing is
	// written to it afterwards.
	found map[fsm.SessionName]struct{}

	links  queue
	routes queue
	clocks queue // nodes and links that wait for a time, by their own keys

	unlinked chan struct{} // holds a token while links are left over in the state

	outbox  *outbox
	ghosts  *ghostLog
	lists   *listLimiter
	silence *silenceJudge
	driving atomic.Int64 // number of drivers

	generations *generations
	deletions   deletionHold

	// current is the view up to which every change was handed to the drivers.
	current atomic.Pointer[fsm.View]

	// mu guards the following fields. It is taken before a driver's own lock,
	// never after.
	mu      sync.Mutex
	drivers map[string]*driver
	// absences are of nodes without a session, and of leaving ones.
	absences map[string]absence
	// dials are of links that are connecting, by link id.
	dials map[string]dial
	// heldUntil: nobody departs before, and no absence began earlier (protocol D3).
	heldUntil time.Time
}

func newLeadership(options Options, term uint64) *leadership {
	newQueue := func(name string) queue {
		return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: name})
	}
	l := &leadership{
		Options:  options,
		term:     term,
		links:    newQueue("links"),
		routes:   newQueue("routes"),
		clocks:   newQueue("clocks"),
		unlinked: make(chan struct{}, 1),
		drivers:  map[string]*driver{},
		absences: map[string]absence{},
		dials:    map[string]dial{},
	}
	l.heldUntil = time.Now().Add(options.DepartureHold)
	view := options.Store.View()
	l.found = sessions(view)
	l.current.Store(view)
	l.outbox = newOutbox(l)
	l.ghosts = newGhostLog()
	l.lists = newListLimiter(func(nodeID string) { l.links.Add(nodeID) })
	l.silence = newSilenceJudge(options.Logger)
	return l
}

// sessions returns the names of all sessions.
func sessions(view *fsm.View) map[fsm.SessionName]struct{} {
	names := map[fsm.SessionName]struct{}{}
	for node := range view.Nodes() {
		for _, session := range node.Sessions {
			names[session.Name] = struct{}{}
		}
	}
	return names
}

func (l *leadership) run(ctx context.Context) {
	feed := l.Store.Subscribe()
	defer feed.Close()
	l.Nodes.SetHooks(&southbound.Hooks{
		Ready: l.sessionReady,
		Ended: func(string, fsm.SessionName) {}, // the state will tell
		// A node drops announcements when it has many at once (protocol N8).
		Burst: func(nodeID string, _ fsm.SessionName) {
			if d, ok := l.driver(nodeID); ok {
				d.wantLists()
				l.links.Add(nodeID)
			}
		},
		Attached: func(string) { l.holdDepartures() },
	})
	defer l.Nodes.SetHooks(nil)
	var group sync.WaitGroup
	group.Go(func() { l.follow(ctx, feed) })
	group.Go(func() { l.outbox.run(ctx) })
	group.Go(func() { l.sweep(ctx) })
	group.Go(func() { l.purge(ctx) })
	group.Go(func() { l.makeLinks(ctx) })
	group.Go(func() { l.renderSegments(ctx) })
	for range l.Workers {
		group.Go(func() { work(l.links, func(id string) { l.look(id, lookLinks) }) })
		group.Go(func() { work(l.routes, func(id string) { l.look(id, lookRoutes) }) })
	}
	group.Go(func() { work(l.clocks, l.tick) })
	<-ctx.Done()
	for _, q := range []queue{l.links, l.routes, l.clocks} {
		q.ShutDown()
	}
	group.Wait()
	l.stopDrivers()
}

// sessionReady looks at a node whose stream can be called.
func (l *leadership) sessionReady(nodeID string, session fsm.SessionName) {
	if node, ok := l.view().Node(nodeID); ok && node.State == fsm.NodeLeaving {
		l.Nodes.End(l.term, session, true, func(error) {})
		return
	}
	l.enqueue(nodeID)
}

// work serves a queue until it is shut down.
func work(q queue, serve func(id string)) {
	for {
		id, shutdown := q.Get()
		if shutdown {
			return
		}
		serve(id)
		q.Done(id)
	}
}

// view is what the drivers compare with: every change up to its index has
// reached them.
func (l *leadership) view() *fsm.View { return l.current.Load() }

func (l *leadership) driver(id string) (*driver, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.drivers[id]
	return d, ok
}

func (l *leadership) stopDrivers() {
	l.mu.Lock()
	drivers := l.drivers
	l.drivers = map[string]*driver{}
	l.driving.Store(0)
	l.mu.Unlock()
	for _, d := range drivers {
		d.stop(ErrNotLeading)
	}
}

// what a queue wants looked at.
type look int

const (
	lookLinks look = iota
	lookRoutes
)

func (l *leadership) look(id string, what look) {
	if d, ok := l.driver(id); ok {
		d.look(what)
	}
}

// enqueue asks both queues to look at a node.
func (l *leadership) enqueue(id string) {
	l.links.Add(id)
	l.routes.Add(id)
}

// propose commits a command under this leadership's term.
func (l *leadership) propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if command.Generation == 0 {
		command.Generation = l.Store.View().Generation()
	}
	result, err := l.Proposer.ProposeAsLeader(ctx, l.term, command)
	if err != nil {
		return result, err
	}
	return result, result.Err
}
