package world

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
)

// DefaultGraces are those of a control plane without a configuration.
func DefaultGraces() *slimcppb.Graces {
	return &slimcppb.Graces{
		FailoverMs: 1000, DepartureMs: 10_000, ReplicaMs: 5000, DetachedMs: 600_000, TombstoneMs: 60_000,
	}
}

// Options describe a world; the zero value of a field stands for its default.
type Options struct {
	// Topology is a mesh of all groups by default.
	Topology []*slimcppb.Segment
	// Graces are DefaultGraces by default.
	Graces *slimcppb.Graces
	// Reconciler holds the settings of the queues. A ReconcilePeriod of 0 stands
	// for a minute, a negative one for no sweeps.
	Reconciler reconciler.Options
	// Teardown is how long a closed link lives on in the nodes' tables.
	Teardown time.Duration
	// Seed makes the log's decisions the same in every run.
	Seed uint64
	// Log is where the control plane logs to; nil: nowhere.
	Log io.Writer
}

// World is a control plane with its fleet, inside a bubble.
type World struct {
	t       *testing.T
	options Options
	logger  hclog.Logger
	log     *raftLog
	// Network is the fleet's data plane.
	Network *dataplane.Network
	// Taps see and change what the leader sends to nodes.
	Taps *Taps

	segments []*slimcppb.Segment
	nodes    []*dataplane.Node
	boots    int
	boot     *boot

	mu       sync.Mutex
	listener *bufconn.Listener // nil: connections are refused
}

// boot is one life of the replica's process.
type boot struct {
	replica    *Replica
	southbound *southbound.Service
	server     *grpc.Server
	served     chan error
	reconciler *reconciler.Reconciler
	resign     context.CancelFunc // ends the leadership
	resigned   chan struct{}      // closed when its work has ended
}

// Run plays a test in a bubble and stops everything afterwards.
func Run(t *testing.T, options Options, play func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, options)
		defer w.close()
		play(t, w)
	})
}

func newWorld(t *testing.T, options Options) *World {
	if options.Topology == nil {
		options.Topology = []*slimcppb.Segment{Segment("default", "*~*")}
	}
	if options.Graces == nil {
		options.Graces = DefaultGraces()
	}
	if options.Reconciler.ReconcilePeriod == 0 {
		options.Reconciler.ReconcilePeriod = time.Minute
	}
	if options.Reconciler.MaxRequeues == 0 {
		options.Reconciler.MaxRequeues = reconciler.DefaultMaxRequeues
	}
	w := &World{
		t: t, options: options, log: newRaftLog(options.Seed), logger: hclog.NewNullLogger(),
		Network: dataplane.NewNetwork(dataplane.NetworkOptions{Teardown: options.Teardown}),
		Taps:    &Taps{},
	}
	if options.Log != nil {
		w.logger = hclog.New(&hclog.LoggerOptions{Output: options.Log, Level: hclog.Debug, TimeFormat: "04:05.000"})
	}
	w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "world", ActiveSchema: fsm.SchemaVersion}}})
	w.SetTopology(options.Topology...)
	w.start()
	w.Lead()
	return w
}

// Apply applies what an operator or the cluster itself commands.
func (w *World) Apply(command *slimcppb.Command) {
	w.t.Helper()
	w.log.mu.Lock()
	term := w.log.term
	w.log.mu.Unlock()
	result, err := w.log.append(term, command)
	if err := errors.Join(err, result.Err); err != nil {
		w.t.Fatalf("%T: %v", command.GetPayload(), err)
	}
}

// View is the state now.
func (w *World) View() *fsm.View { return w.log.store.View() }

// Store is the replica's state.
func (w *World) Store() *fsm.Store { return w.log.store }

// Replica is the present boot of the replica.
func (w *World) Replica() *Replica { return w.boot.replica }

// Reconciler is that of the present boot.
func (w *World) Reconciler() *reconciler.Reconciler { return w.boot.reconciler }

// Southbound is that of the present boot.
func (w *World) Southbound() *southbound.Service { return w.boot.southbound }

// start begins a boot that accepts nodes and does not lead.
func (w *World) start() {
	w.boots++
	b := &boot{replica: newReplica(w.log, w.boots), served: make(chan error, 1)}
	b.southbound = southbound.New(southbound.Options{
		Proposer: b.replica, Store: w.log.store, Logger: w.logger.Named("southbound"),
	})
	options := w.options.Reconciler
	options.Proposer, options.Store, options.Logger = b.replica, w.log.store, w.logger.Named("reconciler")
	options.Nodes = &tapped{Service: b.southbound, taps: w.Taps}
	options.ReconcilePeriod = max(options.ReconcilePeriod, 0)
	b.reconciler = reconciler.New(options)
	b.server = grpc.NewServer(b.southbound.ServerOptions()...)
	b.southbound.Register(b.server)
	listener := bufconn.Listen(64 << 10)
	go func() { b.served <- b.server.Serve(listener) }()
	w.boot = b
	w.setListener(listener)
}

func (w *World) setListener(listener *bufconn.Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener = listener
}

var errRefused = errors.New("connection refused")

// Dial connects to the control plane, as a node that the world does not know does.
func (w *World) Dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	listener := w.listener
	w.mu.Unlock()
	if listener == nil {
		return nil, errRefused
	}
	return listener.DialContext(ctx)
}

// Lead makes the replica the leader of a new term.
func (w *World) Lead() {
	w.t.Helper()
	b := w.boot
	term := w.log.nextTerm()
	w.Apply(&slimcppb.Command{Term: term, Payload: &slimcppb.Command_LeaderStarted{LeaderStarted: &slimcppb.LeaderStarted{
		Term: term, ReplicaId: replicaID, BootId: b.replica.bootID,
	}}})
	b.replica.setTerm(term)
	var ctx context.Context
	ctx, b.resign = context.WithCancel(context.Background())
	resigned := make(chan struct{})
	b.resigned = resigned
	go func() {
		defer close(resigned)
		b.reconciler.Run(ctx, term)
	}()
}

// Resign ends the leadership. Until Lead no leader is known.
func (w *World) Resign() {
	b := w.boot
	if b.resign == nil {
		return
	}
	b.replica.setTerm(0)
	b.resign()
	<-b.resigned
	b.resign = nil
}

// Save returns a backup of the state.
func (w *World) Save() []byte {
	w.t.Helper()
	saved, err := w.log.save()
	if err != nil {
		w.t.Fatal("save:", err)
	}
	return saved
}

// Restore replaces the state by a backup. The streams of the nodes live on, and the
// replica leads anew.
func (w *World) Restore(saved []byte) {
	w.t.Helper()
	w.Resign()
	if err := w.log.restore(saved); err != nil {
		w.t.Fatal("restore:", err)
	}
	w.Lead()
}

// Restart stops the replica's process as an operator does and starts it again.
// The streams of all nodes end.
func (w *World) Restart() {
	w.t.Helper()
	w.setListener(nil)
	time.Sleep(time.Second) // the shutdown delay (protocol A3)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.boot.southbound.Drain(ctx); err != nil {
		w.t.Errorf("streams did not end: %v", err)
	}
	w.stop()
	w.start()
	w.Lead()
}

// Crash ends the replica's process without a word and starts another one.
func (w *World) Crash() {
	w.t.Helper()
	w.setListener(nil)
	// What was accepted may still be registering, which takes two seconds at most:
	// a real node that is cut off then is lost, whatever the control plane does.
	time.Sleep(3 * time.Second)
	w.stop()
	w.start()
	w.Lead()
}

// stop ends the present boot.
func (w *World) stop() {
	w.setListener(nil)
	b := w.boot
	w.Resign()
	b.replica.stop()
	b.server.Stop()
	if err := <-b.served; err != nil {
		w.t.Errorf("serve: %v", err)
	}
	b.southbound.Close()
}

func (w *World) close() {
	var wait sync.WaitGroup
	for _, node := range w.nodes {
		wait.Go(node.Kill)
	}
	wait.Wait()
	w.stop()
}
