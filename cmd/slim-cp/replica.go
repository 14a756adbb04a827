package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/northbound"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	// stopTimeout bounds a shutdown: supervisors kill after 30 s.
	stopTimeout = 25 * time.Second
	// readyPatience is how long the start waits for a leader before it says that
	// the southbound listeners are paused, and goes on waiting.
	readyPatience = 10 * time.Second
)

// runtime is everything that a serving replica consists of.
type runtime struct {
	settings *config.Config
	logger   hclog.Logger
	stdout   io.Writer

	store      *fsm.Store
	replica    *cluster.Replica
	nodes      *southbound.Service
	reconciler *reconciler.Reconciler
	health     *northbound.Health
	servers    *servers
}

func run(ctx context.Context, settings *config.Config, logger hclog.Logger, stdout io.Writer) (err error) {
	r := &runtime{settings: settings, logger: logger, stdout: stdout, store: fsm.New(), health: northbound.NewHealth()}
	r.replica, err = cluster.Open(ctx, cluster.Options{
		Name:    replicaName(),
		DataDir: settings.Database.Path,
	}, r.store, logger.Named("cluster"))
	if err != nil {
		return err
	}
	r.nodes = southbound.New(southbound.Options{
		Proposer:        r.replica,
		Store:           r.store,
		Logger:          logger.Named("southbound"),
		MaxReceiveBytes: settings.Limits.MaxMessageSize,
	})
	r.reconciler = reconciler.New(reconciler.Options{
		Proposer:        r.replica,
		Nodes:           r.nodes,
		Store:           r.store,
		Logger:          logger.Named("reconciler"),
		Workers:         settings.Reconciler.Workers,
		MaxRequeues:     settings.Reconciler.MaxRequeues,
		BaseRetryDelay:  settings.Reconciler.BaseRetryDelay,
		ReconcilePeriod: settings.Reconciler.ReconcilePeriod,
		OrphanDetection: settings.Reconciler.EnableOrphanDetection,
	})
	if r.servers, err = r.listen(); err != nil {
		return errors.Join(err, r.stop())
	}
	err = r.serve(ctx)
	return errors.Join(err, r.stop())
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
func (r *runtime) serve(ctx context.Context) error {
	failed := r.servers.start(r.logger)
	if err := r.waitReady(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := r.presentFleetConfig(ctx); err != nil {
		return err
	}
	r.replica.LeadWith(r.reconciler.Run)
	gateEnded := make(chan struct{})
	gateContext, stopGate := context.WithCancel(ctx)
	go func() {
		defer close(gateEnded)
		r.gate(gateContext)
	}()
	defer func() {
		stopGate()
		<-gateEnded
	}()
	if err := r.servers.resume(); err != nil {
		return err
	}
	r.health.SetReady(true)
	r.logger.Info("serving", "replica", r.replica.ReplicaID(), "cluster", r.replica.ClusterID(),
		"northbound", r.servers.addresses(r.servers.north), "southbound", r.servers.addresses(r.servers.south))
	fmt.Fprintln(r.stdout, "control plane started")
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	case <-r.replica.Done():
		return r.replica.Err()
	}
}

// waitReady returns when the state is applied and a leader is known. Until then
// no node is accepted, since it could not be registered (protocol A2).
func (r *runtime) waitReady(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, readyPatience)
	err := r.replica.WaitReady(patient)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		fmt.Fprintln(r.stdout, "control plane started (southbound listeners are paused: no leader is known)")
		err = r.replica.WaitReady(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

// presentFleetConfig makes the file's fleet configuration the active one if it
// differs.
func (r *runtime) presentFleetConfig(ctx context.Context) error {
	wanted := fleetConfig(r.settings)
	view, err := r.replica.Read(ctx)
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	if proto.Equal(view.Fleet(), wanted) {
		return nil
	}
	result, err := r.replica.Propose(ctx, &slimcppb.Command{
		Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{Config: wanted}},
	})
	if err := errors.Join(err, result.Err); err != nil {
		return fmt.Errorf("present the configuration: %w", err)
	}
	r.logger.Info("fleet configuration is new", "index", result.Index)
	return nil
}

// gate pauses the southbound listeners while no leader has been known for some
// time, and resumes them when one is (protocol A2).
func (r *runtime) gate(ctx context.Context) {
	const (
		look     = 250 * time.Millisecond
		patience = 10 * time.Second
	)
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	paused := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		known, since := r.replica.LeaderKnown()
		switch lost := !known && time.Since(since) > patience; {
		case lost && !paused:
			r.logger.Warn("no leader is known, southbound listeners are paused", "since", since)
			paused = r.servers.pause() == nil
			r.health.SetReady(false)
		case known && paused:
			r.logger.Info("a leader is known, southbound listeners accept again")
			paused = r.servers.resume() != nil
			r.health.SetReady(true)
		}
	}
}

// stop ends the replica in the order that costs nodes least (protocol A3): no
// newcomers, then the streams, then the store.
func (r *runtime) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	r.health.Shutdown()
	var problems []error
	if r.servers != nil {
		problems = append(problems, r.servers.pause())
		select {
		case <-time.After(r.settings.Sessions.ShutdownDelay):
		case <-ctx.Done():
		}
		problems = append(problems, r.nodes.Drain(ctx))
		r.servers.stop(ctx)
	}
	r.nodes.Close()
	problems = append(problems, r.replica.Shutdown(ctx))
	return errors.Join(problems...)
}
