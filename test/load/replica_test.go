package load_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/process"
)

// stopTimeout bounds the end of a replica.
const stopTimeout = 30 * time.Second

// replica is a control plane as slim-cp runs it, with its log on disk and its
// nodes on a TCP port, but in this process.
type replica struct {
	*cluster.Replica
	address  string // of the southbound listener
	nodes    *southbound.Service
	server   *grpc.Server
	listener *southbound.Listener
}

// startReplica returns when the replica accepts nodes.
func startReplica(tb testing.TB, topology *slimcppb.Topology) *replica {
	tb.Helper()
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: tb.Output()})
	store := fsm.New()
	r := &replica{address: process.Loopback(process.FreePort(tb))}
	var err error
	r.Replica, err = cluster.Open(tb.Context(), cluster.Options{
		Name:    "load",
		DataDir: filepath.Join(tb.TempDir(), "data"),
	}, store, logger.Named("cluster"))
	if err != nil {
		tb.Fatal(err)
	}
	r.nodes = southbound.New(southbound.Options{Proposer: r, Store: store, Logger: logger.Named("southbound")})
	if r.listener, err = southbound.Listen("tcp", r.address); err != nil {
		tb.Fatal(err)
	}
	r.server = grpc.NewServer(r.nodes.ServerOptions()...)
	r.nodes.Register(r.server)
	go r.server.Serve(r.listener) //nolint:errcheck // ends with the server

	if err := r.lead(tb.Context(), topology, reconciler.New(reconciler.Options{
		Proposer: r, Nodes: r.nodes, Store: store, Logger: logger.Named("reconciler"),
	})); err != nil {
		tb.Fatal(err)
	}
	return r
}

// lead makes the replica work for the topology and opens it for nodes.
func (r *replica) lead(ctx context.Context, topology *slimcppb.Topology, work *reconciler.Reconciler) error {
	if err := r.WaitReady(ctx); err != nil {
		return err
	}
	result, err := r.Propose(ctx, &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{
		SetFleetConfig: &slimcppb.SetFleetConfig{Config: &slimcppb.FleetConfig{
			Topology:         topology,
			RegistrationAuth: "none",
			Graces:           &slimcppb.Graces{FailoverMs: 1000, DepartureMs: 10_000, TombstoneMs: 60_000},
		}},
	}})
	if err := errors.Join(err, result.Err); err != nil {
		return fmt.Errorf("set the fleet configuration: %w", err)
	}
	r.LeadWith(work.Run)
	return r.listener.Resume()
}

// stop ends the replica. Its nodes must have ended before.
func (r *replica) stop(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), stopTimeout)
	defer cancel()
	err := errors.Join(r.listener.Pause(), r.nodes.Drain(ctx))
	r.server.Stop()
	r.nodes.Close()
	if err := errors.Join(err, r.Shutdown(ctx)); err != nil {
		tb.Errorf("stop the replica: %v", err)
	}
}
