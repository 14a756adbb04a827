package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/budget"
	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/northbound"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	// stopTimeout bounds a shutdown: supervisors kill after 30 s. Of it the replica
	// itself has what drainTimeout, callsTimeout and cutTimeout leave, 4 s or more.
	stopTimeout = 25 * time.Second
	// readyPatience is how long the start waits for a leader before it says that
	// the southbound listeners are paused, and goes on waiting.
	readyPatience = 10 * time.Second
)

// startedLine is printed when nodes are let in: scripts wait for it, as they do for
// upstream's.
const startedLine = "control plane started"

// process is everything that a serving replica consists of.
type process struct {
	settings *config.Config
	logger   hclog.Logger
	stdout   io.Writer

	store      *fsm.Store
	replica    *cluster.Replica
	nodes      *southbound.Service
	reconciler *reconciler.Reconciler
	health     *northbound.Health
	servers    *servers
	presenter  *presenter
	relay      *relay
	router     *southbound.Router
	drain      *drain
	// certificates of the listeners.
	certificates *certificates

	plan          budget.Plan
	nodeConns     *budget.Connections
	operatorConns *budget.Connections
}

// run serves until the context ends. load reads the configuration file again,
// upon each value of hangups.
func run(ctx context.Context, settings *config.Config, load func() (*config.Config, error), hangups <-chan os.Signal,
	logger hclog.Logger, stdout io.Writer) (err error) {
	r := &process{settings: settings, logger: logger, stdout: stdout, store: fsm.New(), health: northbound.NewHealth(), drain: newDrain()}
	r.certificates = &certificates{logger: logger}
	r.planBudget()
	if err := r.openReplica(ctx); err != nil {
		return err
	}
	r.nodes = southbound.New(southbound.Options{
		Proposer:        r.replica,
		Store:           r.store,
		Logger:          logger.Named("southbound"),
		MaxReceiveBytes: settings.Limits.MaxMessageSize,
	})
	r.relay = newRelay(r)
	r.router = southbound.NewRouter(southbound.RouterOptions{
		Service: r.nodes, Proposer: r.replica, Store: r.store, Logger: logger.Named("router"),
	})
	r.replica.RegisterPeerService(r.router.Register)
	r.replica.CountSessions(func() int { return len(r.nodes.Sessions()) })
	r.replica.ReportServing(func() bool { return false }) // until the gate is made
	r.reconciler = reconciler.New(reconciler.Options{
		Proposer:        r.replica,
		Nodes:           r.router,
		Store:           r.store,
		Logger:          logger.Named("reconciler"),
		Workers:         settings.Reconciler.Workers,
		MaxRequeues:     settings.Reconciler.MaxRequeues,
		BaseRetryDelay:  settings.Reconciler.BaseRetryDelay,
		ReconcilePeriod: settings.Reconciler.ReconcilePeriod,
		OrphanDetection: settings.Reconciler.EnableOrphanDetection,
	})
	r.presenter = newPresenter(r.replica, settings, load, logger.Named("fleet"))
	if r.servers, err = r.listen(); err != nil {
		return errors.Join(err, r.stop())
	}
	r.replica.ServePeers()
	r.relay.start()
	err = r.serve(ctx, hangups)
	return errors.Join(err, r.stop())
}

// planBudget divides what the process may spend. The runtime collects sooner when
// the limit of memory is near, unless the environment says otherwise.
func (r *process) planBudget() {
	r.plan = budget.NewPlan(budget.ProcessLimits())
	r.nodeConns = budget.NewConnections(r.plan.Nodes, r.plan.Unfinished)
	r.operatorConns = budget.NewConnections(r.plan.Operators, 0)
	if r.plan.Limits.Memory > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(r.plan.Limits.Memory / 10 * 9)
	}
	r.logger.Info("budget", "plan", r.plan.String())
}

// replicaName is the host's name, as far as it may be one.
func replicaName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "slim-cp"
	}
	name := strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(host, "-"), "-._")
	if len(name) > 63 {
		name = name[:63]
	}
	if name == "" {
		return "slim-cp"
	}
	return name
}

// serve runs until the context ends or the replica fails.
func (r *process) serve(ctx context.Context, hangups <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := r.servers.start(r.logger)
	go func() {
		select {
		case err := <-failed:
			cancel(err)
		case <-r.replica.Done():
			cancel(r.replica.Err())
		case <-ctx.Done():
		}
	}()
	go r.certificates.run(ctx)
	go watchOperators(ctx, r.operatorConns, r.plan.Operators, r.logger)
	err := r.serveNodes(ctx, hangups)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// serveNodes lets nodes in once they can be registered, and returns when the
// context has ended. Operators are served meanwhile.
func (r *process) serveNodes(ctx context.Context, hangups <-chan os.Signal) error {
	r.waitMember(ctx)
	if err := r.waitReady(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := r.presenter.present(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	r.replica.LeadWith(r.router.Run)
	r.replica.LeadWith(r.reconciler.Run)
	gate := &gate{
		doors: r.servers, logger: r.logger, setReady: r.health.SetReady, obstacle: r.obstacle, problem: r.replica.Problem,
		changed: r.nodeConns.Changed(),
	}
	r.replica.ReportServing(gate.serves)
	if err := gate.look(); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { gate.run(ctx) })
	running.Go(func() { r.followHangups(ctx, hangups) })
	running.Go(func() { r.logCounters(ctx) })
	if r.settings.Cluster != nil {
		running.Go(func() { r.scheduledSnapshots().run(ctx) })
	}
	r.logger.Info("serving", "replica", r.replica.ReplicaID(), "cluster", r.replica.ClusterID(),
		"northbound", r.servers.addresses(r.servers.north), "southbound", r.servers.addresses(r.servers.south))
	fmt.Fprintln(r.stdout, startedLine)
	<-ctx.Done()
	return nil
}

// waitReady returns when the state is applied and a leader is known. Until then
// no node is accepted, since it could not be registered (protocol A2).
func (r *process) waitReady(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, readyPatience)
	err := r.replica.WaitReady(patient)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		fmt.Fprintln(r.stdout, waitingLine+"no leader is known, southbound listeners are paused")
		err = r.replica.WaitReady(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

// obstacle says why nodes must not be let in, "" if they may (protocol A2, T2, X4).
func (r *process) obstacle() string {
	if r.drain.begun.Load() {
		return leavingCluster
	}
	if !r.isMember() {
		return "this replica is not a member of a cluster"
	}
	if known, since := r.replica.LeaderKnown(); !known && time.Since(since) > leaderPatience {
		return "no leader is known"
	}
	if reason := r.replica.Distrusted(); reason != "" {
		return reason
	}
	if r.nodeConns.Full() {
		return fmt.Sprintf("nodes and others use nearly all of the %d connections that the limit of open files leaves for them", r.plan.Nodes)
	}
	if r.servers.uncertified() {
		return "no southbound listener has a valid certificate"
	}
	if r.presenter.otherAuth() {
		return "nodes register in another way than the file of this replica says"
	}
	return ""
}

// followHangups reads the file again whenever it is asked for.
func (r *process) followHangups(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.presenter.reload(ctx)
		}
	}
}

// stop ends the replica: its nodes go elsewhere, then operators' calls end, then the
// store. Neither nodes nor operators can take the time that the store needs.
func (r *process) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	r.health.Shutdown()
	var problems []error
	if r.servers != nil {
		problems = append(problems, r.drainNodes(ctx))
		r.servers.stop()
	}
	r.relay.stop()
	r.nodes.Close()
	problems = append(problems, r.replica.Shutdown(ctx))
	return errors.Join(problems...)
}
