package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// drainTimeout bounds the way of the nodes to other replicas: the longest delay,
	// a hand-over, and the second over which streams are ended.
	drainTimeout = maxShutdownDelay + handOverTimeout + 2*time.Second
	// maxShutdownDelay bounds shutdown_delay: a supervisor does not wait for ever.
	maxShutdownDelay = 10 * time.Second
	// handOverTimeout bounds what a stopping replica waits for the others.
	handOverTimeout = 5 * time.Second
	// leaderlessLimit is how long it waits for another leader to tell.
	leaderlessLimit = 500 * time.Millisecond
)

// drain is how far this replica is with sending its nodes elsewhere.
type drain struct {
	begun atomic.Bool
	turn  chan struct{} // holds a token while somebody does it
	done  bool          // used by who holds the token
}

func newDrain() *drain { return &drain{turn: make(chan struct{}, 1)} }

// drainNodes sends the nodes elsewhere in the order that costs them least (protocol
// A3): no newcomers, then the leadership, then the streams, then the relay, at whose
// end the leader gives up what is left of their sessions. It is done once, and
// cannot be undone; a second caller waits for the first. It blocks for some seconds,
// at most drainTimeout.
func (r *process) drainNodes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	select {
	case r.drain.turn <- struct{}{}:
		defer func() { <-r.drain.turn }()
	case <-ctx.Done():
		return fmt.Errorf("the nodes are still on their way elsewhere: %w", ctx.Err())
	}
	if r.drain.done {
		return nil
	}
	r.drain.begun.Store(true)
	r.replica.SetDraining() // others that stop at the same time see it
	err := r.servers.pause()
	select {
	case <-time.After(min(r.settings.Sessions.ShutdownDelay, maxShutdownDelay)):
	case <-ctx.Done():
	}
	r.handOver(ctx)
	err = errors.Join(err, r.nodes.Drain(ctx))
	r.relay.stop()
	r.drain.done = err == nil
	return err
}

// handOver has another replica lead, and tells whoever leads that this one is
// going. What fails costs the others an election, or nodes a grace.
func (r *process) handOver(ctx context.Context) {
	if r.settings.Cluster == nil || r.replica.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	if !r.replica.QuorumRemains(ctx) {
		r.logger.Info("too few replicas remain for a leader, nobody is told that this one stops")
		return
	}
	if err := r.replica.HandOver(ctx); err != nil {
		r.logger.Warn("leadership was not handed over", "error", err)
	}
	if r.isMember() && len(r.nodes.Sessions()) > 0 {
		ctx, cancel := whileLeaderKnown(ctx, r.replica.LeaderKnown)
		defer cancel()
		if err := r.relay.Drain(ctx); err != nil {
			r.logger.Warn("no leader was told that this replica stops", "error", err)
		}
	}
}

// whileLeaderKnown returns a context that ends when no leader has been known for
// leaderlessLimit: the others may be stopping, too, and then there will be none.
func whileLeaderKnown(ctx context.Context, known func() (bool, time.Time)) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(leaderlessLimit / 10)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now, since := known(); !now && time.Since(since) > leaderlessLimit {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}
