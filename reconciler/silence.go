package reconciler

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	// silenceHold: in the first time of a leadership nobody is taken for silent. All
	// nodes are asked for their lists then.
	silenceHold = 20 * time.Second
	// silenceSettle is the wait before a node's silence is judged.
	silenceSettle = time.Second
	// silenceFresh is how long a node counts as one that does not answer without
	// that being said again.
	silenceFresh = southbound.SilentAfter + 5*time.Second
	// silentFew nodes, and one in silentShare of the fleet, may fall silent at the
	// same time. If it is more, the cause is not in the nodes.
	silentFew   = 5
	silentShare = 10
	// silenceWarned is how often that is logged.
	silenceWarned = time.Minute
)

// silenceJudge says whether nodes that do not answer are to blame for it. A node that
// is taken for silent loses the links that it has not made, so a fault of this process
// or of the network must not be taken for one of the whole fleet.
type silenceJudge struct {
	logger hclog.Logger
	began  time.Time

	mu         sync.Mutex
	unanswered map[string]time.Time // when it was said last, by node id
	warned     time.Time
}

func newSilenceJudge(logger hclog.Logger) *silenceJudge {
	return &silenceJudge{logger: logger, began: time.Now(), unanswered: map[string]time.Time{}}
}

// note takes down that a node does not answer.
func (j *silenceJudge) note(nodeID string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unanswered[nodeID] = time.Now()
}

// forget: the node answers, or has no session any more.
func (j *silenceJudge) forget(nodeID string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.unanswered, nodeID)
}

// believed reports whether a node that does not answer is to be taken for silent, in
// a fleet of so many connected nodes.
func (j *silenceJudge) believed(connected int) bool {
	now := time.Now()
	if now.Sub(j.began) < silenceHold {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, said := range j.unanswered {
		if now.Sub(said) > silenceFresh {
			delete(j.unanswered, id)
		}
	}
	count := len(j.unanswered)
	if count <= max(silentFew, connected/silentShare) {
		return true
	}
	if now.Sub(j.warned) >= silenceWarned {
		j.warned = now
		j.logger.Warn("many nodes do not answer at the same time, so none of them is taken for silent", "nodes", count, "connected", connected)
	}
	return false
}

// probeTimeout is how long the lists that probe an overdue node may take. The
// node is wedged in a dial; it answers when that ends, or its stream does.
const probeTimeout = 24 * time.Hour

// unanswered: the node has said nothing about a request for southbound.SilentAfter
// since it was handed to its stream. A node works off nothing while it dials.
func (d *driver) unanswered(flight *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.flight != flight || flight.proposing {
		return
	}
	flight.unanswered = true
	d.endList()
	d.l.silence.note(d.id)
	// Its answer may be under way, and so may be the same word about others.
	d.l.clocks.AddAfter(clockKey(clockSilence, d.id), silenceSettle)
}

// checkSilence runs when a node has left a request unanswered for long.
func (d *driver) checkSilence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil && d.silenceUntold {
		d.tellSilence()
	}
	if d.stopped != nil || d.flight == nil || !d.flight.unanswered || d.flight.proposing || d.silent {
		return
	}
	// If it is not believed now, southbound says it again.
	d.flight.unanswered = false
	if d.l.silence.believed(int(d.l.driving.Load())) {
		d.setSilent(true)
	}
}

// heard notes that the node answers.
func (d *driver) heard() {
	d.attempts, d.pausedUntil = 0, time.Time{}
	d.l.silence.forget(d.id)
	if d.silent {
		d.setSilent(false)
	}
}

func (d *driver) setSilent(silent bool) {
	d.silent = silent
	if silent {
		d.logger.Warn("node does not answer, it gets no new links", "since", d.flight.since)
	} else {
		d.logger.Info("node answers again")
	}
	d.tellSilence()
}

// tellSilence puts into the log whether the node answers, as it is now. One such
// proposal is out at a time: two could be applied in the wrong order.
func (d *driver) tellSilence() {
	if d.tellingSilence {
		return
	}
	d.tellingSilence, d.silenceUntold = true, false
	silent := d.silent
	d.l.outbox.send(outgoing{command: d.observed(&slimcppb.Observed{Silent: &silent}), done: func(result fsm.Result, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tellingSilence = false
		switch {
		case d.stopped != nil:
		case err != nil && result.Err == nil:
			d.silenceUntold = true
			d.l.clocks.AddAfter(clockKey(clockSilence, d.id), insistDelay)
		case d.silent != silent:
			d.tellSilence()
		}
	}})
}

// overdue handles a request that timed out. The slot stays taken: the only thing
// sent is one pair of list requests, whose answer tells what the node holds
// (protocol C9).
func (d *driver) overdue(flight *flight) {
	if flight.overdue {
		return
	}
	flight.overdue = true
	d.logger.Warn("node is overdue with an answer", "since", flight.since)
	d.endList()
	d.requestLists(flight, probeTimeout, false)
}

// lateAnswer frees the slot of an overdue request: what became of it the lists
// will tell.
func (d *driver) lateAnswer(flight *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.flight != flight {
		return
	}
	d.heard()
	d.endList()
	d.needLists()
	d.release()
}

// requestLists asks for both lists, or for the connections alone, on behalf of a
// flight.
func (d *driver) requestLists(flight *flight, timeout time.Duration, connectionsOnly bool) {
	pair := &listPair{driver: d, flight: flight, asked: d.l.view(), connectionsOnly: connectionsOnly}
	call := southbound.Call{NodeID: d.id, Session: d.session.Name, Term: d.l.term, Timeout: timeout, Brief: true}
	call.Late = func() { d.lateAnswer(flight) }
	call.Silent = func() { d.unanswered(flight) }
	connections, routes := call, call
	connections.ListConnections, routes.ListRoutes = true, true
	d.l.Nodes.Call(connections, pair.gotConnections)
	if !connectionsOnly {
		d.l.Nodes.Call(routes, pair.gotRoutes)
	}
}
