package ensemble_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	// patience bounds what a test waits for.
	patience = 40 * time.Second
	poll     = 10 * time.Millisecond
)

// Everything runs on one machine, so all times are short.
var timings = cluster.Timings{Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond, LeaderLease: 200 * time.Millisecond}

// steady are for a test in which the leader must stay: it does on a machine that
// stands still for a second.
var steady = cluster.Timings{Heartbeat: 2 * time.Second, Election: 2 * time.Second, LeaderLease: 2 * time.Second}

const (
	orphanPatience = 2 * time.Second
	orphanSpread   = 200 * time.Millisecond
)

// ensemble is a control plane of several replicas with its fleet.
type ensemble struct {
	t        *testing.T
	links    *links
	dirs     map[string]string
	datapath *dataplane.Network
	nodes    []*dataplane.Node
	settings

	mu       sync.Mutex
	replicas map[string]*replica
}

// settings are what a test may want otherwise.
type settings struct {
	timings cluster.Timings
	hold    time.Duration // nobody departs (protocol D3)
	graces  *slimcppb.Graces
}

func defaults() settings {
	return settings{timings: timings, hold: time.Second, graces: &slimcppb.Graces{
		FailoverMs: 200, DepartureMs: 1500, ReplicaMs: 1500, DetachedMs: 600_000, TombstoneMs: 60_000, NodeRetentionMs: 86_400_000,
	}}
}

// replica is one life of one of them.
type replica struct {
	*cluster.Replica
	name       string
	store      *fsm.Store
	nodes      *southbound.Service
	router     *southbound.Router
	relay      *southbound.Relay
	reconciler *reconciler.Reconciler
	server     *grpc.Server
	stopRelay  context.CancelFunc
	running    sync.WaitGroup
	// wrong, if it is set, is what the others say of the replica's state.
	wrong atomic.Pointer[string]
}

// Distrusted adds what a test says of the replica's state.
func (r *replica) Distrusted() string {
	if wrong := r.wrong.Load(); wrong != nil {
		return *wrong
	}
	return r.Replica.Distrusted()
}

// form makes three replicas one cluster of which all vote.
func form(t *testing.T) *ensemble { return formWith(t, defaults()) }

func formWith(t *testing.T, settings settings) *ensemble {
	t.Helper()
	e := &ensemble{
		t: t, settings: settings, links: newLinks(), dirs: map[string]string{}, replicas: map[string]*replica{},
		datapath: dataplane.NewNetwork(dataplane.NetworkOptions{}),
	}
	t.Cleanup(e.close)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		e.start(name)
	}
	if err := e.replicas["a"].Init(t.Context()); err != nil {
		t.Fatal("init:", err)
	}
	for _, name := range names[1:] {
		if err := e.replicas[name].Join(t.Context(), "a"+clusterPort); err != nil {
			t.Fatal("join:", err)
		}
	}
	e.eventually("three voters", func() error {
		for _, r := range e.running() {
			voters := 0
			for _, member := range r.Members() {
				if member.Voter {
					voters++
				}
			}
			if voters != len(names) || !r.Ready() {
				return fmt.Errorf("%s knows %d voters, ready %t", r.name, voters, r.Ready())
			}
		}
		return nil
	})
	e.propose(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{
			Topology: &slimcppb.Topology{Segments: []*slimcppb.Segment{{
				Name: "default", Links: []*slimcppb.Adjacency{{Group: "*", Neighbors: []string{"*"}}},
			}}},
			Graces: e.graces,
		},
	}}})
	return e
}

// start starts a replica on its data directory.
func (e *ensemble) start(name string) *replica {
	e.t.Helper()
	if e.dirs[name] == "" {
		e.dirs[name] = e.t.TempDir()
	}
	logger := e.logger(name, hclog.Debug)
	r := &replica{name: name, store: fsm.New()}
	var err error
	r.Replica, err = cluster.Open(context.Background(), cluster.Options{
		Name: name, Version: "test", DataDir: e.dirs[name], Timings: e.timings,
		Peers: &cluster.Peers{
			Listener: e.links.listen(e.t, name+clusterPort), Advertise: name + clusterPort, Dial: e.links.dialer(name),
			Autopilot: cluster.Autopilot{StabilizationTime: 200 * time.Millisecond},
		},
	}, r.store, e.logger(name+".cluster", hclog.Warn))
	if err != nil {
		e.t.Fatal(err)
	}
	r.nodes = southbound.New(southbound.Options{Proposer: r.Replica, Store: r.store, Logger: logger.Named("southbound")})
	r.router = southbound.NewRouter(southbound.RouterOptions{
		Service: r.nodes, Proposer: r.Replica, Store: r.store, Logger: logger.Named("router"),
	})
	r.relay = southbound.NewRelay(southbound.RelayOptions{
		Service: r.nodes, Peers: r, Logger: logger.Named("relay"), OrphanPatience: orphanPatience, OrphanSpread: orphanSpread,
	})
	r.reconciler = reconciler.New(reconciler.Options{
		Proposer: r.Replica, Nodes: r.router, Store: r.store, Logger: logger.Named("reconciler"),
		MaxRequeues: reconciler.DefaultMaxRequeues, ReconcilePeriod: 5 * time.Second, DepartureHold: e.hold,
	})
	r.RegisterPeerService(r.router.Register)
	r.ServePeers()
	r.LeadWith(r.router.Run)
	r.LeadWith(r.reconciler.Run)
	ctx, stop := context.WithCancel(context.Background())
	r.stopRelay = stop
	r.running.Go(func() { r.relay.Run(ctx) })
	r.server = grpc.NewServer(r.nodes.ServerOptions()...)
	r.nodes.Register(r.server)
	listener := e.links.listen(e.t, name+nodePort)
	r.running.Go(func() { _ = r.server.Serve(listener) })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replicas[name] = r
	return r
}

// logger writes to the test's log if it is verbose. Raft's own chatter would drown
// the rest, so each package has a level.
func (e *ensemble) logger(name string, level hclog.Level) hclog.Logger {
	output := io.Discard
	if testing.Verbose() {
		output = e.t.Output()
	}
	return hclog.New(&hclog.LoggerOptions{Output: output, Level: level, Name: name, TimeFormat: "05.000"})
}

// kill ends a replica at once: nothing that it says from here on arrives.
func (e *ensemble) kill(name string) {
	e.t.Helper()
	e.mu.Lock()
	r := e.replicas[name]
	delete(e.replicas, name)
	e.mu.Unlock()
	e.links.forget(name + clusterPort)
	e.links.forget(name + nodePort)
	e.links.isolate(name, []string{"a", "b", "c"}, true)
	e.links.sever(name)
	r.end(e.t)
	e.links.isolate(name, []string{"a", "b", "c"}, false)
}

func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stopRelay()
	r.server.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Error("shutdown:", err)
	}
	r.nodes.Close()
	r.running.Wait()
}

func (e *ensemble) close() {
	var ending sync.WaitGroup
	for _, node := range e.nodes {
		ending.Go(node.Kill)
	}
	ending.Wait()
	for _, r := range e.running() {
		ending.Go(func() { r.end(e.t) })
	}
	ending.Wait()
}

// running returns the replicas that run, by name.
func (e *ensemble) running() []*replica {
	e.mu.Lock()
	defer e.mu.Unlock()
	var running []*replica
	for _, name := range slices.Sorted(maps.Keys(e.replicas)) {
		running = append(running, e.replicas[name])
	}
	return running
}

// leader returns the replica that leads, once its work has started and the others
// are attached to it.
func (e *ensemble) leader() *replica {
	e.t.Helper()
	var leader *replica
	e.eventually("a leader with relays", func() error {
		leader = nil
		for _, r := range e.running() {
			if leading, _ := r.Leadership(); leading {
				leader = r
			}
		}
		if leader == nil {
			return errors.New("nobody leads")
		}
		for _, r := range e.running() {
			if r != leader && r.relay.Attached() != leader.ReplicaID() {
				return fmt.Errorf("%s is attached to %q, %s leads", r.name, r.relay.Attached(), leader.ReplicaID())
			}
		}
		return nil
	})
	return leader
}

// followers returns the others that run.
func (e *ensemble) followers() []*replica {
	leader := e.leader()
	return slices.DeleteFunc(e.running(), func(r *replica) bool { return r == leader })
}

func (e *ensemble) propose(command *slimcppb.Command) {
	e.t.Helper()
	result, err := e.running()[0].Propose(e.t.Context(), command)
	if err := errors.Join(err, result.Err); err != nil {
		e.t.Fatal("propose:", err)
	}
}

// view is the leader's.
func (e *ensemble) view() *fsm.View { return e.leader().store.View() }

// eventually looks until the condition holds, and fails with its last error.
func (e *ensemble) eventually(what string, condition func() error) {
	e.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("not in %v: %s: %v", patience, what, err)
		}
		<-time.After(poll)
	}
}

// throughout looks for a while, and fails when the condition does not hold.
func (e *ensemble) throughout(d time.Duration, what string, condition func() error) {
	e.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); <-time.After(poll) {
		if err := condition(); err != nil {
			e.t.Fatalf("%s: %v", what, err)
		}
	}
}

// join starts a node of a group with one name. It dials the first of the replicas
// that accepts.
func (e *ensemble) join(group, id string, replicas ...*replica) *dataplane.Node {
	e.t.Helper()
	return e.joinWith(group, id, func(*dataplane.NodeOptions) {}, replicas...)
}

func (e *ensemble) joinWith(group, id string, change func(*dataplane.NodeOptions), replicas ...*replica) *dataplane.Node {
	e.t.Helper()
	var server dataplane.Server
	for _, r := range replicas {
		server = append(server, r.name+nodePort)
	}
	options := dataplane.NodeOptions{
		ID: id, Group: group, Servers: []dataplane.Server{server},
		Dialer: func(ctx context.Context, address string) (net.Conn, error) {
			if !e.accepts(strings.TrimSuffix(address, nodePort)) {
				return nil, errRefused
			}
			return e.links.dialer("node")(ctx, "tcp", address)
		},
		Endpoint:         fmt.Sprintf("%s.%s.internal:1", id, group),
		ExternalEndpoint: fmt.Sprintf("%s.%s.example:1", id, group),
	}
	change(&options)
	node, err := e.datapath.NewNode(options)
	if err != nil {
		e.t.Fatal(err)
	}
	node.Announce(dataplane.InstanceName("org", group, id))
	e.nodes = append(e.nodes, node)
	if err := node.Start(); err != nil {
		e.t.Fatal(err)
	}
	return node
}

// accepts reports whether a replica lets nodes in (protocol A2).
func (e *ensemble) accepts(name string) bool {
	e.mu.Lock()
	r := e.replicas[name]
	e.mu.Unlock()
	if r == nil {
		return false
	}
	known, since := r.LeaderKnown()
	return (known || time.Since(since) < orphanPatience) && r.Distrusted() == ""
}

// converged waits until every node is connected, every link stands and every name
// is reached exactly once from every group.
func (e *ensemble) converged() {
	e.t.Helper()
	e.eventually("converged", func() error {
		view := e.view()
		groups := map[string]bool{}
		for _, node := range e.nodes {
			groups[node.Group()] = true
			record, ok := view.Node(node.ID())
			if !ok || !record.Connected() {
				return fmt.Errorf("%s has no session; it is %s", node.ID(), node.Phase())
			}
		}
		live := 0
		for link := range view.Links() {
			if !link.Live() {
				continue
			}
			live++
			if link.Status != fsm.LinkApplied {
				return fmt.Errorf("link %s from %s to %s is %s: %s", link.ID, link.SourceNode, link.DestGroup, link.Status, link.StatusMessage)
			}
		}
		if want := len(groups) * (len(groups) - 1) / 2; live != want {
			return fmt.Errorf("%d links, want %d", live, want)
		}
		for _, node := range e.nodes {
			for route := range view.Routes(fsm.RouteFilter{Source: node.ID()}) {
				if route.Status == fsm.RoutePending || route.Status == fsm.RouteFailed {
					return fmt.Errorf("a route of %s is in status %d", node.ID(), route.Status)
				}
			}
		}
		return e.delivered()
	})
}

// delivered reports what is wrong with the delivery matrix.
func (e *ensemble) delivered() error {
	if defects := e.datapath.Matrix().Complete(dataplane.Everything); len(defects) > 0 {
		return fmt.Errorf("%d defects, first: %v", len(defects), defects[0])
	}
	return nil
}

// watchDelivery measures the delivery matrix again and again until the returned
// function is called, and fails the test if it was ever incomplete. A group that
// comes meanwhile takes its time and does not count.
func (e *ensemble) watchDelivery(newcomer string) (stop func()) {
	stopped, measured := make(chan struct{}), make(chan struct{})
	count := 0
	go func() {
		defer close(measured)
		for {
			select {
			case <-stopped:
				return
			case <-time.After(poll):
			}
			defects := slices.DeleteFunc(e.datapath.Matrix().Complete(dataplane.Everything), func(d dataplane.Defect) bool {
				return newcomer != "" && strings.Contains(d.String(), newcomer+"/")
			})
			if count++; len(defects) > 0 {
				e.t.Errorf("measurement %d: %d defects, first: %v", count, len(defects), defects[0])
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-measured
		e.t.Logf("the delivery matrix was measured %d times", count)
	}
}

// linkIDs are the ids of the live links, with the nodes at their ends.
func linkIDs(view *fsm.View) map[string][2]string {
	ids := map[string][2]string{}
	for link := range view.Links() {
		if link.Live() {
			ids[link.ID] = [2]string{link.SourceNode, link.DestNode}
		}
	}
	return ids
}

// sessions are the names of all sessions in the state, by node.
func sessions(view *fsm.View) map[string]fsm.SessionName {
	names := map[string]fsm.SessionName{}
	for node := range view.Nodes() {
		if session, ok := node.CommandSession(); ok {
			names[node.ID] = session.Name
		}
	}
	return names
}

func wantEqual[K comparable, V comparable](t *testing.T, what string, got, want map[K]V) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s changed:\n got %v\nwant %v", what, got, want)
	}
}

// drain stops a replica as an operator does (protocol A3).
func (e *ensemble) drain(r *replica) {
	e.t.Helper()
	e.links.forget(r.name + nodePort)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.SetDraining()
	if err := r.HandOver(ctx); err != nil {
		e.t.Error("hand over:", err)
	}
	if err := errors.Join(r.relay.Drain(ctx), r.nodes.Drain(ctx)); err != nil {
		e.t.Error("drain:", err)
	}
	e.mu.Lock()
	delete(e.replicas, r.name)
	e.mu.Unlock()
	r.end(e.t)
}
