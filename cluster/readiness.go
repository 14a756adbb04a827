package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// readiness watches who leads.
type readiness struct {
	pokes chan struct{} // holds a token when something may have changed

	mu      sync.Mutex
	known   bool
	since   time.Time
	changed chan struct{} // closed and replaced after each look
}

func newReadiness(now time.Time) *readiness {
	return &readiness{pokes: make(chan struct{}, 1), since: now, changed: make(chan struct{})}
}

// poke asks for another look. It never blocks.
func (d *readiness) poke() {
	select {
	case d.pokes <- struct{}{}:
	default:
	}
}

func (d *readiness) update(known bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known != d.known {
		d.known, d.since = known, now
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *readiness) watch() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// watchLeader looks again whenever raft says that the leader changed, this
// replica's leadership changed, or a LeaderStarted was applied.
func (r *Replica) watchLeader(ctx context.Context) {
	// An observation only says that there is something to look at. One that
	// finds the channel full is dropped, and nothing is lost.
	observations := make(chan raft.Observation, 1)
	observer := raft.NewObserver(observations, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(observer)
	defer r.raft.DeregisterObserver(observer)
	for {
		r.adoptCluster()
		r.readiness.update(r.leaderID() != "", r.options.Now())
		select {
		case <-observations:
		case <-r.readiness.pokes:
		case <-ctx.Done():
			return
		}
	}
}

// leaderID returns the id of the leader, empty if none is known.
func (r *Replica) leaderID() string {
	_, id := r.raft.LeaderWithID()
	return string(id)
}

// LeaderKnown reports whether some replica is known to lead, and since when
// that is so or not so (protocol A2).
func (r *Replica) LeaderKnown() (known bool, since time.Time) {
	r.readiness.mu.Lock()
	defer r.readiness.mu.Unlock()
	return r.readiness.known, r.readiness.since
}

// Ready reports whether a leader is known and this replica has applied the log
// up to that leader's LeaderStarted, and once since it started all that a leader
// had. One whose state is not to be used never is.
func (r *Replica) Ready() bool {
	if r.Distrusted() != "" {
		return false
	}
	switch r.leaderID() {
	case "":
		return false
	case r.ReplicaID():
		leading, _ := r.Leadership()
		return leading
	default:
		return r.caughtUp.Load() && r.store.View().LeaderTerm() == r.raft.CurrentTerm()
	}
}

// catchUp returns when this boot has applied what the leader had when it was
// asked, or leads itself. Before that the state may be that of the newest
// snapshot, whose leader may still lead: a replica that looks ready, and is not
// (rqlite/rqlite#2633, istio/istio#50058).
func (r *Replica) catchUp(ctx context.Context) {
	for {
		changed := r.readiness.watch()
		if leading, _ := r.Leadership(); leading {
			break
		}
		patient, cancel := context.WithTimeout(ctx, defaultDeadline)
		index, err := r.indexToWaitFor(patient)
		if err == nil {
			err = r.store.WaitApplied(patient, index)
		}
		cancel()
		if err == nil {
			break
		}
		if !r.waitLeaderChange(ctx, changed) {
			return
		}
	}
	r.caughtUp.Store(true)
	r.readiness.poke()
}

// WaitReady returns nil once the replica is ready. It returns the context's
// error, or why the replica has stopped.
func (r *Replica) WaitReady(ctx context.Context) error {
	for {
		changed := r.readiness.watch()
		if r.Ready() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.done:
			return r.stopCause()
		}
	}
}
