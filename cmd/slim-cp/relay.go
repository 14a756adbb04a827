package main

import (
	"context"
	"sync"

	"github.com/slim-cp/slim-cp/southbound"
)

// relay lets the leader reach the nodes of this replica, in the background. A lone
// replica's does nothing.
type relay struct {
	*southbound.Relay
	alone   bool
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newRelay(r *process) *relay {
	return &relay{
		alone:  r.settings.Cluster == nil,
		cancel: func() {},
		Relay: southbound.NewRelay(southbound.RelayOptions{
			Service: r.nodes, Peers: r.replica, Logger: r.logger.Named("relay"),
		}),
	}
}

func (r *relay) start() {
	if r.alone {
		return
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(func() { r.Run(ctx) })
}

func (r *relay) stop() {
	r.cancel()
	r.running.Wait()
}
