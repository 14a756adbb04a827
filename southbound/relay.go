package southbound

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// relayTick is how often each side of a relay says that it is there. It is
	// shorter than the second after which a replica counts as not reached (protocol
	// C7).
	relayTick = 300 * time.Millisecond
	// relaySilence ends an attachment to a leader that says nothing.
	relaySilence = 5 * time.Second
	// attachTimeout bounds the attaching.
	attachTimeout = 2 * time.Second
	// leaderLook is how often a follower looks who leads.
	leaderLook = 50 * time.Millisecond

	// orphanPatience and orphanSpread are the times of protocol D4.
	orphanPatience = 10 * time.Second
	orphanSpread   = 10 * time.Second
)

// Peers is what a Relay needs of a replica. cluster.Replica is one.
type Peers interface {
	// LeaderConn returns the connection to the leader and its id, or an error if
	// nobody leads or this replica does.
	LeaderConn(bulk bool) (conn *grpc.ClientConn, leaderID string, err error)
	LeaderKnown() (known bool, since time.Time)
	// LeaderElsewhere reports whether this replica, which knows no leader, can reach
	// a member that has one. It may block until the context ends.
	LeaderElsewhere(ctx context.Context) bool
	// Distrusted says why this replica's state must not be served, "" if it may.
	Distrusted() string
}

// RelayOptions configure a Relay.
type RelayOptions struct {
	Service *Service
	Peers   Peers
	Logger  hclog.Logger
	// OrphanPatience and OrphanSpread are 10 s if they are 0 (protocol D4).
	OrphanPatience time.Duration
	OrphanSpread   time.Duration
}

// Relay lets whoever leads reach the streams of this replica while it follows. It
// never ends a stream because the leader changes.
type Relay struct {
	service                      *Service
	peers                        Peers
	logger                       hclog.Logger
	orphanPatience, orphanSpread time.Duration

	mu       sync.Mutex
	uplink   *uplink // nil: not attached
	draining bool
	noted    chan struct{} // closed when a leader knows that this replica drains
}

// NewRelay returns a relay that does nothing until Run.
func NewRelay(options RelayOptions) *Relay {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if options.OrphanPatience == 0 {
		options.OrphanPatience = orphanPatience
	}
	if options.OrphanSpread == 0 {
		options.OrphanSpread = orphanSpread
	}
	r := &Relay{
		service: options.Service, peers: options.Peers, logger: options.Logger,
		orphanPatience: options.OrphanPatience, orphanSpread: options.OrphanSpread,
		noted: make(chan struct{}),
	}
	r.service.relayHooks.Store(&Hooks{
		Ready: func(_ string, session fsm.SessionName) {
			r.tell(func(u *uplink) {
				if h, ok := r.service.callable(session); ok {
					u.ready(h)
				}
			})
		},
		Ended: func(nodeID string, session fsm.SessionName) { r.tell(func(u *uplink) { u.ended(nodeID, session) }) },
		Burst: func(nodeID string, session fsm.SessionName) { r.tell(func(u *uplink) { u.burst(nodeID, session) }) },
	})
	return r
}

// Run keeps this replica attached to the leader until the context ends. It
// returns when all its goroutines have ended.
func (r *Relay) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.watchOrphaned(ctx) })
	retry := backoff{}
	for ctx.Err() == nil {
		events, leader, err := r.peers.LeaderConn(false)
		if err != nil { // nobody leads, or this replica does
			retry = backoff{}
			pause(ctx, leaderLook/2+rand.N(leaderLook))
			continue
		}
		calls, again, err := r.peers.LeaderConn(true)
		if err != nil || again != leader {
			pause(ctx, leaderLook)
			continue
		}
		attached, err := r.attach(ctx, leader, events, calls)
		if attached {
			retry = backoff{}
		}
		if ctx.Err() == nil {
			r.logger.Debug("not attached to the leader", "leader", leader, "reason", err)
			retry.wait(ctx)
		}
	}
}

// Drain tells the leader that this replica is shutting down (protocol A3), and
// returns when it knows, or with the context's error. A replica that leads hands
// over first.
func (r *Relay) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.draining = true
	if r.uplink != nil {
		r.uplink.drain()
	}
	r.mu.Unlock()
	select {
	case <-r.noted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Attached returns the id of the leader to which this replica is attached, empty
// if it is to none.
func (r *Relay) Attached() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uplink == nil || !r.uplink.complete {
		return ""
	}
	return r.uplink.leaderID
}

// tell tells the present leader something. It does not block.
func (r *Relay) tell(say func(*uplink)) {
	r.mu.Lock()
	u := r.uplink
	r.mu.Unlock()
	if u != nil {
		say(u)
	}
}

// attach holds one attachment until it ends, and says why it did. attached is
// false if there never was one.
func (r *Relay) attach(ctx context.Context, leader string, eventsConn, callsConn *grpc.ClientConn) (attached bool, err error) {
	u := newUplink(ctx, r, leader)
	defer u.cancel(nil)
	impatient := time.AfterFunc(attachTimeout, func() { u.cancel(fmt.Errorf("no answer in %s", attachTimeout)) })
	defer impatient.Stop()
	// From here on events are kept for this attachment: what happens before the
	// streams are counted may be told twice, but nothing is missed.
	r.setUplink(u)
	defer r.setUplink(nil)
	if err := u.open(eventsConn, callsConn); err != nil {
		return false, errors.Join(err, context.Cause(u.ctx))
	}
	if !impatient.Stop() {
		return false, context.Cause(u.ctx)
	}
	r.logger.Info("attached to the leader", "leader", leader, "term", u.term)
	r.mu.Lock()
	u.complete = true
	if r.draining {
		u.drain()
	}
	r.mu.Unlock()
	r.service.resume()
	return true, u.serve()
}

func (r *Relay) setUplink(u *uplink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uplink = u
}

// drainingNoted: a leader knows.
func (r *Relay) drainingNoted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.noted:
	default:
		close(r.noted)
	}
}

// watchOrphaned ends the streams of this replica when it has had no leader for a
// while although others have one: their leader cannot reach these nodes. A replica
// that reaches nobody keeps its streams (protocol D4).
func (r *Relay) watchOrphaned(ctx context.Context) {
	look := min(time.Second, r.orphanPatience/4)
	for pause(ctx, look) {
		streams := r.service.answeredStreams()
		if len(streams) == 0 {
			continue
		}
		if reason := r.peers.Distrusted(); reason != "" {
			r.logger.Warn("ending the nodes' streams", "streams", len(streams), "within", r.orphanSpread, "reason", reason)
			shed(ctx, streams, r.orphanSpread, errDistrusted)
			continue
		}
		if !r.orphaned(ctx) {
			continue
		}
		r.logger.Warn("no leader is known here while others have one: ending the nodes' streams",
			"streams", len(streams), "within", r.orphanSpread)
		r.shed(ctx, streams)
	}
}

// orphaned reports whether this replica has been without a leader for too long.
func (r *Relay) orphaned(ctx context.Context) bool {
	known, since := r.peers.LeaderKnown()
	if known || time.Since(since) < r.orphanPatience {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	return r.peers.LeaderElsewhere(ctx)
}

// shed ends the streams one after the other, until a leader is known again.
func (r *Relay) shed(ctx context.Context, streams []*stream) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		for pause(ctx, leaderLook) {
			if known, _ := r.peers.LeaderKnown(); known {
				cancel()
			}
		}
	})
	shed(ctx, streams, r.orphanSpread, errOrphaned)
}

// pause waits; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
