package southbound

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// custodyLook is how often a leader looks which replicas it reaches.
	custodyLook = 200 * time.Millisecond
	// custodyStall: a leader that did not look for so long stood still itself, and
	// what it did not hear meanwhile says nothing about the others.
	custodyStall = time.Second
	// defaultReplicaGrace stands for replica_grace while the state has none, and
	// leastReplicaGrace is the shortest that is heeded.
	defaultReplicaGrace = 5 * time.Second
	leastReplicaGrace   = 3 * relayTick
	// maxLosing bounds the SessionLost proposals under way.
	maxLosing = 64
)

// custody is what a leader knows of the other replicas, and does about their
// sessions, during one leadership.
type custody struct {
	router *Router
	term   uint64
	logger hclog.Logger

	ctx   context.Context
	stop  context.CancelFunc
	slots chan struct{} // of proposals
	// pause waits between two looks; tests make it take longer than it should.
	pause func(context.Context, time.Duration) bool
	// running are the goroutines of the custody.
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	replicas map[string]*remote
	losing   map[fsm.SessionName]struct{} // SessionLost is under way
}

// remote is another replica.
type remote struct {
	attachment *attachment // nil: it is not attached
	// reachedAt is when it was heard of last; while it is attached the attachment
	// knows better.
	reachedAt time.Time
	// draining: it is shutting down, and its sessions are over when its relay ends.
	draining bool
	bootID   string
	// suspect: the state may have sessions of it.
	suspect bool
}

func newCustody(ctx context.Context, r *Router, term uint64) *custody {
	c := &custody{
		router: r, term: term, logger: r.logger, slots: make(chan struct{}, maxLosing),
		replicas: map[string]*remote{}, losing: map[fsm.SessionName]struct{}{}, pause: pause,
	}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

// run follows the state until the context ends.
func (c *custody) run() {
	feed := c.router.store.Subscribe()
	defer feed.Close()
	c.running.Go(c.watch)
	for {
		changes, view, err := feed.Next(c.ctx)
		if err != nil {
			return
		}
		if changes.All {
			for node := range view.Nodes() {
				c.follow(node)
			}
			continue
		}
		for _, id := range changes.Nodes {
			if node, ok := view.Node(id); ok {
				c.follow(node)
			}
		}
	}
}

// close lets all replicas go.
func (c *custody) close() {
	c.stop()
	c.mu.Lock()
	c.closed = true
	var attached []*attachment
	for _, replica := range c.replicas {
		if replica.attachment != nil {
			attached = append(attached, replica.attachment)
		}
	}
	c.mu.Unlock()
	for _, a := range attached {
		a.end(errNotLeading)
	}
	c.running.Wait()
}

// follow looks after the sessions of a node that changed.
func (c *custody) follow(node *fsm.Node) {
	for _, session := range node.Sessions {
		name := session.Name
		if name.ReplicaID == c.router.proposer.ReplicaID() {
			if c.router.service.deniesSession(name) {
				c.lose(name, slimcppb.LossReason_LOSS_REASON_ENDED)
			}
			continue
		}
		c.mu.Lock()
		replica := c.remote(name.ReplicaID)
		if !replica.suspect && replica.attachment == nil {
			// It was given up, and put this session into the log since.
			replica.reachedAt = time.Now()
		}
		replica.suspect = true
		denied := replica.attachment != nil && replica.attachment.denies(name)
		reason := replica.reason(name)
		c.mu.Unlock()
		if denied {
			c.lose(name, reason)
		}
	}
}

// reason is why a session of a replica that is here ended.
func (r *remote) reason(session fsm.SessionName) slimcppb.LossReason {
	if r.draining && session.BootID == r.bootID {
		return slimcppb.LossReason_LOSS_REASON_DRAINING
	}
	return slimcppb.LossReason_LOSS_REASON_ENDED
}

// remote returns a replica. c.mu is held.
func (c *custody) remote(replicaID string) *remote {
	replica, ok := c.replicas[replicaID]
	if !ok {
		replica = &remote{reachedAt: time.Now(), suspect: true}
		c.replicas[replicaID] = replica
	}
	return replica
}

func (c *custody) attachmentOf(replicaID string) *attachment {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replica, ok := c.replicas[replicaID]; ok {
		return replica.attachment
	}
	return nil
}

// attached takes a replica's new attachment, and ends the sessions that it says
// are over (protocol S2).
func (c *custody) attached(a *attachment) {
	c.mu.Lock()
	replica := c.remote(a.replicaID)
	old := replica.attachment
	drained := replica.draining && replica.bootID != a.bootID
	oldBoot := replica.bootID
	replica.attachment, replica.reachedAt, replica.suspect = a, time.Now(), true
	closed := c.closed
	c.mu.Unlock()
	if old != nil {
		old.end(errRelayReplaced)
	}
	if closed || a.ctx.Err() != nil {
		a.end(errNotLeading)
		return
	}
	c.logger.Info("a replica attached", "replica", a.replicaID, "live", len(a.live))
	for _, session := range c.sessionsOf(a.replicaID) {
		switch {
		case !a.denies(session):
		case drained && session.BootID == oldBoot:
			c.lose(session, slimcppb.LossReason_LOSS_REASON_DRAINING)
		default:
			c.lose(session, slimcppb.LossReason_LOSS_REASON_ENDED)
		}
	}
	c.mu.Lock()
	if replica.bootID != a.bootID {
		replica.bootID, replica.draining = a.bootID, false
	}
	c.mu.Unlock()
	c.router.tell(func(h *Hooks) { h.attached(a.replicaID) })
}

// detached notes that an attachment has ended.
func (c *custody) detached(a *attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	replica, ok := c.replicas[a.replicaID]
	if !ok || replica.attachment != a {
		return
	}
	replica.attachment, replica.reachedAt = nil, a.heardAt()
	c.logger.Info("a replica is not attached any more", "replica", a.replicaID, "reason", context.Cause(a.ctx))
}

// draining notes that the sessions of a replica are over when its relay ends.
func (c *custody) draining(a *attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replica := c.remote(a.replicaID); replica.attachment == a {
		replica.draining = true
	}
}

// watch looks again and again for replicas that are gone.
func (c *custody) watch() {
	last := time.Now()
	for c.pause(c.ctx, custodyLook) {
		now := time.Now()
		if stood := now.Sub(last); stood > custodyStall {
			c.forgive(stood)
		}
		last = now
		c.look(now)
	}
}

// forgive counts no time during which this replica itself stood still.
func (c *custody) forgive(stood time.Duration) {
	c.logger.Warn("this replica stood still", "for", stood)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, replica := range c.replicas {
		if replica.attachment != nil {
			replica.attachment.hear()
		}
		replica.reachedAt = time.Now()
	}
}

// look ends the sessions of replicas that are gone (protocol D2).
func (c *custody) look(now time.Time) {
	grace := c.replicaGrace()
	c.mu.Lock()
	var silent []*attachment
	gone := map[string]slimcppb.LossReason{}
	drained := map[string]string{} // boot ids
	for id, replica := range c.replicas {
		switch {
		case replica.attachment != nil:
			if now.Sub(replica.attachment.heardAt()) >= grace {
				silent = append(silent, replica.attachment)
			}
		case replica.draining:
			// What it registers from now on is of its next boot.
			replica.draining = false
			drained[id] = replica.bootID
		case replica.suspect && now.Sub(replica.reachedAt) >= grace:
			replica.suspect = false
			gone[id] = slimcppb.LossReason_LOSS_REASON_UNREACHABLE
		}
	}
	c.mu.Unlock()
	for _, a := range silent {
		a.end(errRelaySilent)
	}
	for id, boot := range drained {
		c.giveUp(id, slimcppb.LossReason_LOSS_REASON_DRAINING, func(s fsm.SessionName) bool { return s.BootID == boot })
	}
	for id, reason := range gone {
		c.giveUp(id, reason, func(fsm.SessionName) bool { return true })
	}
}

// replicaGrace is how long a replica may be silent. Less than a few ticks would
// tell nothing.
func (c *custody) replicaGrace() time.Duration {
	graces := c.router.store.View().Fleet().GetGraces()
	if graces == nil {
		return defaultReplicaGrace
	}
	return max(time.Duration(graces.GetReplicaMs())*time.Millisecond, leastReplicaGrace)
}

// giveUp ends the sessions of a replica that are over.
func (c *custody) giveUp(replicaID string, reason slimcppb.LossReason, over func(fsm.SessionName) bool) {
	count := 0
	for _, session := range c.sessionsOf(replicaID) {
		if over(session) {
			c.lose(session, reason)
			count++
		}
	}
	level := hclog.Warn
	if reason == slimcppb.LossReason_LOSS_REASON_DRAINING { // it stops in order
		level = hclog.Info
	}
	if count > 0 {
		c.logger.Log(level, "the sessions of a replica are given up", "replica", replicaID, "reason", reason, "sessions", count)
	}
}

// sessionsOf returns the sessions of a replica in the state.
func (c *custody) sessionsOf(replicaID string) []fsm.SessionName {
	var sessions []fsm.SessionName
	for node := range c.router.store.View().Nodes() {
		for _, session := range node.Sessions {
			if session.Name.ReplicaID == replicaID {
				sessions = append(sessions, session.Name)
			}
		}
	}
	return sessions
}

// lose ends a session in the state, and does not give up before the leadership
// ends. It does not block.
func (c *custody) lose(session fsm.SessionName, reason slimcppb.LossReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, underWay := c.losing[session]; underWay || c.closed {
		return
	}
	c.losing[session] = struct{}{}
	c.running.Go(func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.losing, session)
		}()
		c.proposeLost(session, reason)
	})
}

func (c *custody) proposeLost(session fsm.SessionName, reason slimcppb.LossReason) {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return
	}
	defer func() { <-c.slots }()
	retry := backoff{}
	for {
		ctx, cancel := context.WithTimeout(c.ctx, proposeTimeout)
		result, err := c.router.proposer.ProposeAsLeader(ctx, c.term, &slimcppb.Command{
			Generation: c.router.store.View().Generation(),
			Payload:    &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{Session: session.Proto(), Reason: reason}},
		})
		cancel()
		if err == nil && !retriable(result.Err) {
			return
		}
		if !retry.wait(c.ctx) {
			return
		}
	}
}

// reach describes the other replicas.
func (c *custody) reach() []ReplicaReach {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reach []ReplicaReach
	for _, id := range slices.Sorted(maps.Keys(c.replicas)) {
		replica := c.replicas[id]
		r := ReplicaReach{ReplicaID: id, Silent: time.Since(replica.reachedAt), Draining: replica.draining}
		if a := replica.attachment; a != nil {
			a.mu.Lock()
			r.Attached, r.Silent, r.Sessions = true, a.silentFor(), len(a.sessions)
			a.mu.Unlock()
		}
		reach = append(reach, r)
	}
	return reach
}
