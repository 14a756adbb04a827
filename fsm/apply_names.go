package fsm

import (
	"slices"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// announce applies what a session says about its names (protocol S3, N5).
func (a *applier) announce(command *slimcppb.Announce) Result {
	node, session, err := a.sequenced(command.GetSession(), command.GetSequence())
	if err != nil {
		return Result{Err: err}
	}
	for _, change := range command.GetChanges() {
		name, err := nameFromProto(change.GetName())
		if err != nil {
			continue // southbound checks names; one bad one must not lose the rest
		}
		switch {
		case !change.GetWithdraw():
			a.addAnnouncer(name, node, session.Epoch, change.GetReplay())
		case !change.GetEarly():
			a.withdraw(name, node, session.Epoch)
		}
	}
	return Result{}
}

// sequenced finds the session of an Announce or ClaimLink and takes its
// sequence number: one counter for both (protocol S3).
func (a *applier) sequenced(name *slimcppb.SessionName, sequence uint64) (*Node, Session, error) {
	wanted := sessionNameFromProto(name)
	node, ok := a.SessionNode(wanted)
	if !ok {
		return nil, Session{}, ErrUnknownSession
	}
	at := slices.IndexFunc(node.Sessions, func(s Session) bool { return s.Name == wanted })
	if sequence <= node.Sessions[at].Sequence {
		return nil, Session{}, ErrStaleSequence
	}
	if node.State != NodePresent {
		return nil, Session{}, ErrSessionEnded
	}
	changed := *node
	changed.Sessions = slices.Clone(node.Sessions)
	changed.Sessions[at].Sequence = sequence
	a.nodes.set(&changed) // no index knows the sequence
	return &changed, changed.Sessions[at], nil
}

func (a *applier) addAnnouncer(name Name, node *Node, epoch uint64, replay bool) {
	record, _ := a.NameRecord(name)
	var announcers []Announcer
	if record != nil {
		announcers = record.Announcers
	}
	if at := announcerIndex(announcers, node.ID); at >= 0 {
		a.sayAgain(record, at, epoch, replay)
		return
	}
	a.tombstones.delete(&Tombstone{Name: name, Announcer: Announcer{NodeID: node.ID}})
	announcer := Announcer{
		NodeID: node.ID, Group: node.Group, First: a.position,
		Epoch: epoch, SaidAt: a.index(), Replayed: replay,
	}
	a.appendAnnouncer(name, announcer)
}

// sayAgain notes another announcement of what a node announces already. It
// changes no route; it matters when the name is withdrawn (protocol N7).
func (a *applier) sayAgain(record *NameRecord, at int, epoch uint64, replay bool) {
	changed := record.Announcers[at]
	switch {
	case epoch > changed.Epoch:
		changed.Epoch, changed.Replayed, changed.Repeated = epoch, replay, false
	case epoch == changed.Epoch:
		changed.Repeated = true
	}
	changed.SaidAt, changed.DoubtedAt = a.index(), 0
	a.setAnnouncer(record, at, changed)
}

// withdraw applies a node's own withdrawal. Of a name that the node never
// announced it is a hint that the node lost a link (protocol N7).
func (a *applier) withdraw(name Name, node *Node, epoch uint64) {
	a.changes.Forgotten = append(a.changes.Forgotten, NodeName{NodeID: node.ID, Name: name})
	record, ok := a.NameRecord(name)
	at := -1
	if ok {
		at = announcerIndex(record.Announcers, node.ID)
	}
	if at < 0 {
		a.suspect(node.ID)
		return
	}
	if epoch < record.Announcers[at].Epoch {
		return // an older session knows less (protocol S3)
	}
	if announcer := record.Announcers[at]; announcer.Replayed || announcer.Repeated || len(record.Announcers) > 1 {
		// Another application of the node may serve the name, or what ended is a
		// link over which the node routed it: its own table tells.
		a.doubt(record, at)
		return
	}
	a.removeAnnouncer(record, at)
}

// doubt keeps a name until an audit has said whether it was withdrawn.
func (a *applier) doubt(record *NameRecord, at int) {
	changed := record.Announcers[at]
	changed.DoubtedAt = a.index()
	a.setAnnouncer(record, at, changed)
	if n := len(a.changes.Doubts); n == 0 || a.changes.Doubts[n-1] != changed.NodeID {
		a.changes.Doubts = append(a.changes.Doubts, changed.NodeID)
	}
}

// audited takes the outcome of an audit (protocol N8). It touches only names
// about which the node said nothing since its list was asked for.
func (a *applier) audited(node *Node, audit *slimcppb.Audit) {
	if node.State != NodePresent {
		return
	}
	session, _ := node.CommandSession()
	find := func(message *slimcppb.Name) (*NameRecord, int, bool) {
		name, err := nameFromProto(message)
		if err != nil {
			return nil, 0, false
		}
		record, ok := a.NameRecord(name)
		if !ok {
			return nil, 0, false
		}
		at := announcerIndex(record.Announcers, node.ID)
		return record, at, at >= 0
	}
	for _, message := range audit.GetPresent() {
		name, err := nameFromProto(message)
		if err != nil {
			continue
		}
		tombstone, gone := a.tombstones.get(&Tombstone{Name: name, Announcer: Announcer{NodeID: node.ID}})
		if _, _, announced := find(message); announced || gone && tombstone.Revision > audit.GetAsked() {
			continue
		}
		a.addAnnouncer(name, node, session.Epoch, true)
	}
	for _, message := range audit.GetAbsent() {
		if record, at, ok := find(message); ok && record.Announcers[at].SaidAt <= audit.GetAsked() {
			a.removeAnnouncer(record, at)
		}
	}
	for _, message := range audit.GetKept() {
		record, at, ok := find(message)
		if !ok {
			continue
		}
		if kept := record.Announcers[at]; kept.DoubtedAt > 0 && kept.DoubtedAt <= audit.GetAsked() {
			kept.DoubtedAt = 0
			a.setAnnouncer(record, at, kept)
		}
	}
}

// suspect asks the leader to look at a node's lists. A node reports a lost link
// name by name: one hint a batch is enough.
func (a *applier) suspect(nodeID string) {
	if n := len(a.changes.Suspects); n == 0 || a.changes.Suspects[n-1] != nodeID {
		a.changes.Suspects = append(a.changes.Suspects, nodeID)
	}
}

func (a *applier) removeAnnouncer(record *NameRecord, at int) {
	removed := record.Announcers[at]
	a.tombstones.set(&Tombstone{
		Name: record.Name,
		// What matters for a live announcement only is dropped, as the snapshot does.
		Announcer: Announcer{NodeID: removed.NodeID, Group: removed.Group, First: removed.First, Epoch: removed.Epoch},
		Revision:  a.index(),
		RemovedAt: a.now(),
	})
	a.dropAnnouncer(record, at)
}

// withdrawAll ends everything that a departing node announces.
func (a *applier) withdrawAll(nodeID string) {
	for _, name := range slices.Collect(a.NamesOf(nodeID)) {
		if record, ok := a.NameRecord(name); ok {
			if at := announcerIndex(record.Announcers, nodeID); at >= 0 {
				a.removeAnnouncer(record, at)
			}
		}
	}
}

func announcerIndex(announcers []Announcer, nodeID string) int {
	return slices.IndexFunc(announcers, func(announcer Announcer) bool { return announcer.NodeID == nodeID })
}
