package reconciler

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// auditNames and auditBytes bound one command about an audit.
	auditNames = 1000
	auditBytes = 256 << 10
	// doubtTimeout is how long a doubted withdrawal waits for the node's own answer
	// about the name before it stands (protocol N8). A node that dials one dead
	// endpoint answers within it.
	doubtTimeout = 5 * time.Second
	// doubtInterval is how often the doubted names of a node are looked through.
	doubtInterval = time.Second
)

// audit compares what the state says that a node announces with the names that
// local applications serve in its own table, which is the truth (protocol N8).
// The view is that of when the list was asked for.
func (d *driver) audit(view *fsm.View, routes []*controllerpb.RouteEntry) []*slimcppb.Audit {
	local := map[fsm.Name]struct{}{}
	for _, entry := range routes {
		if name, err := fsm.ParseName(entry.GetName()); err == nil && servedLocally(entry) {
			local[name] = struct{}{}
		}
	}
	chunks := &auditChunks{asked: view.Index()}
	for name := range view.NamesOf(d.id) {
		if _, served := local[name]; !served {
			chunks.add(name, func(a *slimcppb.Audit) *[]*slimcppb.Name { return &a.Absent })
			continue
		}
		delete(local, name)
		if doubted(view, d.id, name) {
			chunks.add(name, func(a *slimcppb.Audit) *[]*slimcppb.Name { return &a.Kept })
		}
	}
	for name := range local {
		chunks.add(name, func(a *slimcppb.Audit) *[]*slimcppb.Name { return &a.Present })
	}
	return chunks.done
}

// servedLocally: names learned from peers or over links are not the node's own.
func servedLocally(entry *controllerpb.RouteEntry) bool {
	for _, connection := range entry.GetConnections() {
		switch connection.GetConnectionType() {
		case controllerpb.ConnectionType_CONNECTION_TYPE_LOCAL, controllerpb.ConnectionType_CONNECTION_TYPE_EDGE:
			return true
		}
	}
	return false
}

func announcerOf(view *fsm.View, nodeID string, name fsm.Name) (fsm.Announcer, bool) {
	record, ok := view.NameRecord(name)
	if !ok {
		return fsm.Announcer{}, false
	}
	at := slices.IndexFunc(record.Announcers, func(a fsm.Announcer) bool { return a.NodeID == nodeID })
	if at < 0 {
		return fsm.Announcer{}, false
	}
	return record.Announcers[at], true
}

func doubted(view *fsm.View, nodeID string, name fsm.Name) bool {
	announcer, _ := announcerOf(view, nodeID, name)
	return announcer.DoubtedAt > 0
}

// doubt is a doubted withdrawal since this leader knows of it.
type doubt struct {
	index uint64 // of the withdrawal
	since time.Time
}

// over reports whether the withdrawal has waited long enough.
func (d doubt) over() bool { return time.Since(d.since) >= doubtTimeout-doubtInterval }

// auditChunks cuts an audit into commands of bounded size.
type auditChunks struct {
	asked uint64
	done  []*slimcppb.Audit
	names int
	bytes int
}

func (c *auditChunks) add(name fsm.Name, list func(*slimcppb.Audit) *[]*slimcppb.Name) {
	message := name.Proto()
	size := proto.Size(message) + 4
	if len(c.done) == 0 || c.names == auditNames || c.bytes+size > auditBytes {
		c.done = append(c.done, &slimcppb.Audit{Asked: c.asked})
		c.names, c.bytes = 0, 0
	}
	names := list(c.done[len(c.done)-1])
	*names = append(*names, message)
	c.names++
	c.bytes += size
}

// settleDoubts lets those doubted withdrawals stand that no list has settled in
// their time, which is that of each name: a node may withdraw one name after the
// other.
func (d *driver) settleDoubts() {
	view := d.l.view()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped != nil {
		return
	}
	if d.settling > 0 || view.Index() < d.minIndex {
		d.l.clocks.AddAfter(clockKey(clockDoubts, d.id), doubtInterval)
		return
	}
	d.listWithdrawn(view)
	chunks := &auditChunks{asked: view.Index()}
	open := map[fsm.Name]doubt{}
	for name := range view.NamesOf(d.id) {
		announcer, _ := announcerOf(view, d.id, name)
		if announcer.DoubtedAt == 0 {
			continue
		}
		known, ok := d.doubts[name]
		if !ok || known.index != announcer.DoubtedAt {
			known = doubt{index: announcer.DoubtedAt, since: time.Now()}
		}
		open[name] = known
		if known.over() {
			chunks.add(name, func(a *slimcppb.Audit) *[]*slimcppb.Name { return &a.Absent })
		}
	}
	if d.doubts = open; len(open) > 0 {
		d.l.clocks.AddAfter(clockKey(clockDoubts, d.id), doubtInterval)
	}
	d.settling = len(chunks.done)
	for _, audit := range chunks.done {
		d.l.outbox.send(outgoing{command: d.observed(&slimcppb.Observed{Audit: audit}), done: d.settled})
	}
}

// settled: the log has taken withdrawals that no list had settled, or it may have.
func (d *driver) settled(result fsm.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settling--
	if d.stopped == nil && err == nil {
		d.minIndex = max(d.minIndex, result.Index)
		d.l.clocks.AddAfter(clockKey(clockDoubts, d.id), viewDelay)
	}
}

// listWithdrawn reads the lists again if a withdrawal stands that none had settled in
// time. One that was asked for before cannot bring the name back if the node serves it
// after all. d.mu is held.
func (d *driver) listWithdrawn(view *fsm.View) {
	for name, known := range d.doubts {
		if _, announced := announcerOf(view, d.id, name); !announced && known.over() {
			d.listsWanted = true
			d.l.links.Add(d.id)
			return
		}
	}
}

// observed makes a command of what was read from the node's lists.
func (d *driver) observed(observed *slimcppb.Observed) *slimcppb.Command {
	observed.NodeId, observed.Session = d.id, d.session.Name.Proto()
	return &slimcppb.Command{Payload: &slimcppb.Command_Observed{Observed: observed}}
}
