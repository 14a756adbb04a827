package reconciler

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/southbound"
)

// ErrSessionOver ends what was asked of a driver whose session is over.
var ErrSessionOver = errors.New("the node's session is over")

// viewDelay is the wait for a view that the feed is about to deliver.
const viewDelay = 2 * time.Millisecond

// driver brings one node, in one session, to the state that the view wants
// (protocol C1). It has one slot: while something is out, whoever looks only
// leaves a note.
type driver struct {
	l       *leadership
	id      string
	session fsm.Session
	logger  hclog.Logger

	// mu guards the following fields. The leadership's lock is never taken
	// while it is held.
	mu      sync.Mutex
	stopped error
	// minIndex is the lowest index of a view that this driver may compare with:
	// one that has the effect of its own proposals, and the changes that it was
	// marked for. A mark that is used up with an older view is lost.
	minIndex uint64
	begun    bool // the first command was taken over, or there is none
	// continued: the stream was another session's before.
	continued bool
	flight    *flight
	mirror    *mirror

	listsWanted       bool // both lists
	connectionsWanted bool // the connections at least
	// listsFirst: what the node holds is not known, so nothing is sent before its
	// lists were read.
	listsFirst  bool
	sweeps      int
	linksNoted  bool // looked at while the slot was taken
	routesNoted bool

	doubts   map[fsm.Name]doubt // when they were last looked through
	settling int                // proposals under way that let withdrawals stand

	batch    batch
	failures map[routeKey]fsm.RouteFailure
	retries  map[string]retry // dials of failed links, by link id
	missing  map[string]int   // "connection not found" in a row, by link id
	held     map[string]hold  // links whose routes wait
	// attempts and routeAttempts count failures in a row, for the back-off.
	attempts      int
	pausedUntil   time.Time // nothing but operators' requests before
	routeAttempts int
	silent        bool
	hunted        time.Time // sources of leftover connections were looked for
	// silenceUntold: the log did not take it yet; tellingSilence: it is under way.
	silenceUntold  bool
	tellingSilence bool
	requests       []*listRequest
}

// routeKey is a route of the node.
type routeKey struct {
	linkID string
	name   nameHandle
}

// flight is what occupies a driver's slot: a request to the node, or a proposal
// about its answer.
type flight struct {
	since time.Time
	// request is the operator's that is out, if one is.
	request *listRequest
	// proposing: the node has answered, the outcome is on its way to the log.
	proposing bool
	// overdue: the node did not answer in time, and the slot is not free.
	overdue bool
	// listing: it has a place among the lists that are read.
	listing bool
	// unanswered: the node has said nothing about it for long.
	unanswered bool
}

func newDriver(l *leadership, node *fsm.Node, session fsm.Session, index uint64) *driver {
	l.deletions.unread.Add(1)
	return &driver{
		l:           l,
		id:          node.ID,
		session:     session,
		logger:      l.Logger.With("node", node.ID),
		minIndex:    index,
		mirror:      newMirror(),
		listsWanted: true,
		listsFirst:  true,
		silent:      node.Silent,
		batch:       newBatch(),
		failures:    map[routeKey]fsm.RouteFailure{},
		retries:     map[string]retry{},
		missing:     map[string]int{},
		held:        map[string]hold{},
	}
}

func (d *driver) start() {
	d.l.enqueue(d.id)
	d.l.clocks.AddAfter(clockKey(clockDoubts, d.id), doubtInterval) // the state may have some
}

// stop ends the driver: answers that come later are ignored.
func (d *driver) stop(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil && !d.mirror.listed {
		d.l.deletions.unread.Add(-1)
	}
	d.stopped = why
	d.l.lists.leave(d)
	d.l.silence.forget(d.id)
	if d.flight != nil && d.flight.request != nil {
		d.flight.request.finish(why)
	}
	for _, request := range d.requests {
		request.finish(why)
	}
	d.requests = nil
}

// mark makes the driver compare a name, in a view of that index or a later one.
func (d *driver) mark(name fsm.Name, index uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batch.mark(name)
	d.minIndex = max(d.minIndex, index)
}

// markAll makes the driver compare every name, in a view of that index or a
// later one.
func (d *driver) markAll(index uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batch.markAll()
	d.minIndex = max(d.minIndex, index)
}

func (d *driver) forget(name nameHandle) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mirror.forget(name)
}

// wantLists makes the driver read the node's lists as soon as they have their turn.
func (d *driver) wantLists() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listsWanted = true
}

// wantConnections makes the driver read the node's connections, and its routes if
// these are not as they were.
func (d *driver) wantConnections() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connectionsWanted = true
}

// needLists makes the driver read the node's lists before it sends anything. d.mu is
// held.
func (d *driver) needLists() { d.listsWanted, d.listsFirst = true, true }

// routeSweeps: every tenth sweep reads the routes too (protocol C15).
const routeSweeps = 10

// swept makes the driver look at the node as a sweep does.
func (d *driver) swept() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweeps++
	d.connectionsWanted = true
	if d.sweeps%routeSweeps == 0 {
		d.listsWanted = true
	}
	d.batch.markAll()
}

// look does the next thing for the node, if the slot is free. It never blocks.
func (d *driver) look(what look) {
	view := d.l.view()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped != nil:
		return
	case view.Index() < d.minIndex:
		d.requeue(what, viewDelay)
		return
	case d.flight != nil:
		d.note(what)
		d.yieldList()
		return
	}
	node, ok := view.Node(d.id)
	if !ok {
		return
	}
	if session, ok := node.CommandSession(); !ok || session.Name != d.session.Name {
		return // the feed is about to replace this driver
	}
	if !d.begun && !d.begin() {
		return // southbound tells when the stream is ready
	}
	d.next(view, node, what)
	d.yieldList()
}

// next does the next thing for the node. d.mu is held.
func (d *driver) next(view *fsm.View, node *fsm.Node, what look) {
	switch {
	case d.flight != nil:
		d.note(what)
	case len(d.requests) > 0:
		d.note(what)
		d.serve()
	case time.Now().Before(d.pausedUntil):
		d.requeue(what, time.Until(d.pausedUntil))
	case d.listsTurn(view):
		d.note(what)
		d.askLists()
	case d.listsFirst:
		d.note(what) // the turn of the lists wakes us
	case what == lookLinks:
		d.reconcileLinks(view, node)
	default:
		d.reconcileRoutes(view, node)
	}
}

func (d *driver) note(what look) {
	if what == lookLinks {
		d.linksNoted = true
	} else {
		d.routesNoted = true
	}
}

func (d *driver) requeue(what look, delay time.Duration) {
	if what == lookLinks {
		d.l.links.AddAfter(d.id, delay)
	} else {
		d.l.routes.AddAfter(d.id, delay)
	}
}

// begin takes over the first command, which is in flight (protocol C3). It
// returns false while the stream cannot be called. Only the stream tells whether
// its first command was answered: that the log has the session as resumed, or has
// not, says nothing about that.
func (d *driver) begin() bool {
	first, ok := d.l.Nodes.FirstCommand(d.session.Name)
	d.begun, d.continued = ok || first.Continued, first.Continued
	if !ok {
		return d.begun
	}
	flight := d.occupy()
	first.OnAnswer(
		func(answer southbound.Answer) { d.firstAnswered(flight, first, answer) },
		func() { d.lateAnswer(flight) },
		func() { d.unanswered(flight) },
	)
	d.l.clocks.AddAfter(clockKey(clockSoon, d.id), soonAfter)
	d.l.clocks.AddAfter(clockKey(clockLater, d.id), laterAfter)
	return true
}

// soonAfter and laterAfter a registration the lists are read again: an old
// connection dies without a word, and dialling an id that is still dying is
// acknowledged as success (protocol C3).
const (
	soonAfter  = time.Second
	laterAfter = 5 * time.Second
)

// occupy takes the slot.
func (d *driver) occupy() *flight {
	d.flight = &flight{since: time.Now()}
	return d.flight
}

// release frees the slot and looks at what was noted meanwhile.
func (d *driver) release() {
	d.flight = nil
	if d.linksNoted || d.listsWanted || d.connectionsWanted || len(d.requests) > 0 {
		d.linksNoted = false
		d.l.links.Add(d.id)
	}
	if d.routesNoted {
		d.routesNoted = false
		d.l.routes.Add(d.id)
	}
}

// call sends a request to the node; the slot is taken until handle has run.
// handle runs with the driver's lock held and frees the slot, itself or through
// a proposal.
func (d *driver) call(call southbound.Call, handle func(southbound.Answer)) {
	flight := d.occupy()
	call.NodeID, call.Session, call.Term = d.id, d.session.Name, d.l.term
	call.Late = func() { d.lateAnswer(flight) }
	call.Silent = func() { d.unanswered(flight) }
	d.l.Nodes.Call(call, func(answer southbound.Answer) { d.answered(flight, answer, handle) })
}

func (d *driver) answered(flight *flight, answer southbound.Answer, handle func(southbound.Answer)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil || d.flight != flight {
		return
	}
	if flight.request != nil && answer.Err != nil {
		flight.request.finish(answer.Err)
	}
	switch {
	case errors.Is(answer.Err, southbound.ErrTimeout):
		d.overdue(flight)
	case answer.Err != nil:
		d.failed(answer.Err)
	default:
		d.heard()
		handle(answer)
	}
}

// failed frees the slot after a request that did not reach the node, or whose
// stream ended. What the node holds now is not known.
func (d *driver) failed(err error) {
	d.needLists()
	if errors.Is(err, southbound.ErrStreamEnded) || errors.Is(err, southbound.ErrNoSession) ||
		errors.Is(err, southbound.ErrUnreachable) {
		// Not the node's failure: no attempt is counted (protocol C9). The end of
		// the session is on its way; if it is not, the next look will tell.
		d.flight = nil
		d.l.links.AddAfter(d.id, time.Second)
		return
	}
	d.logger.Warn("request to the node failed", "session", d.session.Name, "error", err)
	d.flight = nil
	d.backOff(lookLinks)
}

// backOff looks again after the next delay of the table, until the attempts are
// used up; then the next event, session or sweep does.
func (d *driver) backOff(what look) {
	d.attempts++
	if d.attempts > d.l.MaxRequeues {
		d.logger.Warn("giving the node up until its next event", "attempts", d.attempts-1)
		d.attempts = 0
		return
	}
	delay := retryDelay(d.l.BaseRetryDelay, d.attempts)
	d.pausedUntil = time.Now().Add(delay)
	d.requeue(what, delay)
}

// retryDelay is base x 2^(attempt-1), and 30 s from the eighth attempt on.
func retryDelay(base time.Duration, attempt int) time.Duration {
	const (
		longest     = 30 * time.Second
		lastDoubled = 7
	)
	if attempt > lastDoubled {
		return longest
	}
	return min(base<<(attempt-1), longest)
}
