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
			a.addAnnouncer(name, node, session.Epoch)
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

func (a *applier) addAnnouncer(name Name, node *Node, epoch uint64) {
	record, _ := a.NameRecord(name)
	var announcers []Announcer
	if record != nil {
		announcers = record.Announcers
	}
	if at := announcerIndex(announcers, node.ID); at >= 0 {
		if announcers[at].Epoch < epoch {
			a.setEpoch(record, at, epoch)
		}
		return
	}
	a.tombstones.delete(&Tombstone{Name: name, Announcer: Announcer{NodeID: node.ID}})
	announcer := Announcer{NodeID: node.ID, Group: node.Group, First: a.position, Epoch: epoch}
	// The newest goes last: the list stays in order of age (protocol N2).
	a.setAnnouncers(name, append(slices.Clone(announcers), announcer))
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
	a.removeAnnouncer(record, at)
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
		Name:      record.Name,
		Announcer: removed,
		Revision:  a.index(),
		RemovedAt: a.now(),
	})
	a.setAnnouncers(record.Name, slices.Delete(slices.Clone(record.Announcers), at, at+1))
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
