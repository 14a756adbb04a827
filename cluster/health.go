package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// probePeriod is how long nothing is applied until the leader proposes a probe, and
	// how often a follower asks for an index that it should reach.
	probePeriod = 5 * time.Second
	// probeTick is how often a replica measures its own progress.
	probeTick = time.Second
	// unhealthyAfter is how long a leader may apply nothing: two periods, and half of
	// what one write may take.
	unhealthyAfter = 2*probePeriod + storeLimit/2
	// maxProbeFailures probes in a row may fail until a leader is no good as one.
	maxProbeFailures = 2
	// maxLateTick is by how much a tick may be late: with more the process stood still,
	// and what it measured says nothing.
	maxLateTick = 2 * time.Second
	// requestMemory is how long results of requests are remembered at least (protocol
	// X1).
	requestMemory = time.Minute
)

// health is what a replica knows of itself by what it does, not by what it hears: it
// applies commands, or it is not healthy.
type health struct {
	mu      sync.Mutex
	problem string
}

func (h *health) set(problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problem = problem
}

// Problem says why this replica is not healthy as it sees itself, "" if it is.
func (r *Replica) Problem() string {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.problem
}

// progress measures for how long an index has not moved, on the replica's own
// monotonic clock.
type progress struct {
	index    uint64
	moved    time.Time // when the index moved last
	lastTick time.Time
}

func newProgress(index uint64) progress {
	now := time.Now()
	return progress{index: index, moved: now, lastTick: now}
}

// tick notes where the index is. It begins anew if it comes so late that the process
// stood still, and while the replica writes or reads a snapshot.
func (p *progress) tick(index uint64, busy bool) (still time.Duration) {
	now := time.Now()
	if index != p.index || busy || now.Sub(p.lastTick) > probeTick+maxLateTick {
		p.index, p.moved = index, now
	}
	p.lastTick = now
	return now.Sub(p.moved)
}

// requestAges tells which results of requests are old enough to be forgotten.
type requestAges struct {
	samples []requestSample // the oldest first, probePeriod apart
}

type requestSample struct {
	at    time.Time
	index uint64
}

// until notes the index of now, and returns the one up to which everything is older
// than requestMemory; 0 if nothing is.
func (a *requestAges) until(index uint64) uint64 {
	now := time.Now()
	if n := len(a.samples); n == 0 || now.Sub(a.samples[n-1].at) >= probePeriod {
		a.samples = append(a.samples, requestSample{at: now, index: index})
	}
	var until uint64
	for len(a.samples) > 0 && now.Sub(a.samples[0].at) >= requestMemory {
		until = a.samples[0].index
		if len(a.samples) == 1 || now.Sub(a.samples[1].at) < requestMemory {
			break
		}
		a.samples = a.samples[1:]
	}
	return until
}

// prober proposes probes for one leadership.
type prober struct {
	*Replica
	term     uint64
	progress progress
	ages     requestAges
	answers  chan error // of the probe that is under way
	asked    uint64     // the index when it was proposed
	noted    time.Time  // a probe that says how far logs reach was proposed
	failures int
}

// runProbes shows that this leader's commands are applied, and hands over if they are
// not, while it leads.
func (r *Replica) runProbes(ctx context.Context, term uint64) {
	p := &prober{Replica: r, term: term, progress: newProgress(r.store.View().Index())}
	defer r.health.set("")
	ticker := time.NewTicker(probeTick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.look(ctx)
		case err := <-p.answers:
			p.answers = nil
			p.settle(ctx, err)
		case <-ctx.Done():
			return
		}
	}
}

// look measures, and proposes a probe if one is due and none is under way.
func (p *prober) look(ctx context.Context) {
	view := p.store.View()
	still := p.progress.tick(view.Index(), p.storage.disk.sinceSnapshotBytes() < probePeriod)
	if still <= unhealthyAfter {
		p.health.set("")
	} else {
		p.health.set(fmt.Sprintf("it leads, and no command was applied for %s", still.Round(time.Second)))
	}
	forget := p.ages.until(view.Index())
	oldest, remembers := view.OldestRequest()
	confirmed := p.confirmedLogs(view)
	due := remembers && oldest <= forget || len(confirmed) > 0
	if p.answers != nil || still < probePeriod && !due {
		return
	}
	p.asked, p.answers = view.Index(), make(chan error, 1)
	answers := p.answers
	if len(confirmed) > 0 {
		p.noted = time.Now()
	}
	command := probeCommand(view.ActiveSchema(), &slimcppb.Probe{ForgetRequests: forget, Confirmed: confirmed})
	ctx, cancel := context.WithTimeout(ctx, unhealthyAfter)
	if !p.calls.run(func() {
		defer cancel()
		answers <- accepted(p.ProposeAsLeader(ctx, p.term, command))
	}) {
		cancel()
	}
}

// probeCommand is a command that changes nothing but what is forgotten. Before the
// upgrade to schema 2 is finalized it is one of schema 1 that has no effect.
func probeCommand(schema uint32, probe *slimcppb.Probe) *slimcppb.Command {
	if schema < 2 {
		return &slimcppb.Command{Payload: &slimcppb.Command_PurgeTombstones{PurgeTombstones: &slimcppb.PurgeTombstones{}}}
	}
	return &slimcppb.Command{Payload: &slimcppb.Command_Probe{Probe: probe}}
}

// confirmedLogs returns how far followers' logs reach, where it is farther than the state
// knows; once in a period.
func (p *prober) confirmedLogs(view *fsm.View) []*slimcppb.ConfirmedIndex {
	if p.gate == nil || view.ActiveSchema() < 2 || time.Since(p.noted) < probePeriod {
		return nil
	}
	return slices.DeleteFunc(p.gate.confirmed.all(p.term), func(log *slimcppb.ConfirmedIndex) bool {
		record, ok := view.Replica(log.GetReplicaId())
		return !ok || record.Confirmed >= log.GetIndex()
	})
}

// settle judges the answer of a probe. One that fails while other commands are applied
// says that there are too many, not that they are not applied.
func (p *prober) settle(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || p.store.View().Index() > p.asked {
		p.failures = 0
		return
	}
	p.failures++
	p.logger.Warn("a probe of this leader was not applied", "failures", p.failures, "error", err)
	if p.failures < maxProbeFailures || !p.mayStop(ctx) {
		return
	}
	p.logger.Warn("this leader applies nothing, it hands over")
	if _, err := p.TransferLeadership(ctx, ""); err == nil || ctx.Err() != nil {
		return
	}
	p.fail(fmt.Errorf("%w for %s", ErrNotApplying, (maxProbeFailures * unhealthyAfter).Round(time.Second)))
}

// mayStop reports whether somebody else would lead better: a majority of the voters
// answers, and says nothing about a disk of its own that would stop the next leader
// too.
func (p *prober) mayStop(ctx context.Context) bool {
	if p.options.Peers == nil {
		return true
	}
	if _, err := p.verification.join(ctx); err != nil {
		return false
	}
	voters, able := 0, 0
	for _, status := range p.describeMembers(ctx) {
		if !status.Voter {
			continue
		}
		voters++
		if status.BootID != "" && status.DiskProblem == "" {
			able++
		}
	}
	return able > voters/2
}

// watchProgress measures while this replica does not lead: what the leader had applied
// when it was asked has to be applied here a period later.
func (r *Replica) watchProgress(ctx context.Context) {
	ticker := time.NewTicker(probeTick)
	defer ticker.Stop()
	p := newProgress(0)
	var target uint64 // that the leader answered; 0: it was not asked
	var asked time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		leader := r.leaderID()
		if leader == "" || leader == r.ReplicaID() {
			if target != 0 {
				r.health.set("")
			}
			target, p = 0, newProgress(0)
			continue
		}
		applied := r.store.View().Index()
		if applied >= target { // it is where it should be
			if target != 0 {
				r.health.set("")
			}
			if time.Since(asked) >= probePeriod {
				asked, target = time.Now(), r.askTarget(ctx)
				p = newProgress(target)
			}
			continue
		}
		if still := p.tick(target, r.storage.disk.sinceSnapshotBytes() < probePeriod); still > probePeriod {
			r.health.set(fmt.Sprintf("it has applied entry %d, and the leader had applied %d %s ago", applied, target, still.Round(time.Second)))
		}
	}
}

// askTarget asks the leader for an index; 0 if it does not answer, which others notice.
func (r *Replica) askTarget(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, transportTimeout)
	defer cancel()
	index, err := r.remoteIndex.join(ctx)
	if err != nil {
		return 0
	}
	return index
}

// ErrNotApplying stops a leader whose commands are not applied, and which could not hand
// over. The process has to start again.
var ErrNotApplying = errors.New("the leader applied no command")
