package reconciler

import (
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// silenceAfter is how long a node may leave a request unanswered before it is no
// candidate for new links (protocol C9). A node works off nothing while it dials.
const silenceAfter = 10 * time.Second

// probeTimeout is how long the lists that probe an overdue node may take. The
// node is wedged in a dial; it answers when that ends, or its stream does.
const probeTimeout = 24 * time.Hour

// checkSilence runs when a request has been out for a while.
func (d *driver) checkSilence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil && d.silenceUntold {
		d.tellSilence()
	}
	if d.stopped != nil || d.flight == nil || d.flight.proposing || d.silent {
		return
	}
	if waited := time.Since(d.flight.since); waited < silenceAfter {
		d.l.clocks.AddAfter(clockKey(clockSilence, d.id), silenceAfter-waited)
		return
	}
	d.setSilent(true)
}

// heard notes that the node answers.
func (d *driver) heard() {
	d.attempts, d.pausedUntil = 0, time.Time{}
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
	d.listsWanted = true
	d.release()
}

// requestLists asks for both lists, or for the connections alone, on behalf of a
// flight.
func (d *driver) requestLists(flight *flight, timeout time.Duration, connectionsOnly bool) {
	pair := &listPair{driver: d, flight: flight, asked: d.l.view(), connectionsOnly: connectionsOnly}
	call := southbound.Call{NodeID: d.id, Session: d.session.Name, Term: d.l.term, Timeout: timeout}
	call.Late = func() { d.lateAnswer(flight) }
	connections, routes := call, call
	connections.ListConnections, routes.ListRoutes = true, true
	d.l.Nodes.Call(connections, pair.gotConnections)
	if !connectionsOnly {
		d.l.Nodes.Call(routes, pair.gotRoutes)
	}
}
