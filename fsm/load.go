package fsm

import (
	"errors"
	"fmt"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// loader builds tables from a snapshot's records by the functions that Apply
// uses, so that the indexes are made in one way only.
type loader struct {
	tables  tables
	applier *applier
	state   *slimcppb.StateRecord
	judge   judge
	counts  [len(recordKinds)]int // of records that were read, by kind
}

// recordKinds are the kinds of records of which a state has many, for people.
var recordKinds = [...]string{
	"nodes", "links", "names", "tombstones", "ended sessions", "segments", "secrets", "tokens", "replicas", "requests", "unlinked groups",
}

// sizes returns how many records of each kind a state has.
func (t *tables) sizes() [len(recordKinds)]int {
	return [...]int{
		t.nodes.len(), t.links.len(), t.names.len(), t.tombstones.len(), t.ended.len(),
		t.segments.len(), t.secrets.len(), t.tokens.len(), t.replicas.len(), t.requestOrder.len(), t.unlinked.len(),
	}
}

func newLoader(header *slimcppb.SnapshotHeader) *loader {
	l := &loader{tables: newTables()}
	l.tables.meta = meta{
		ClusterID: header.GetClusterId(), Generation: header.GetGeneration(),
		Index: header.GetIndex(), Term: header.GetTerm(), ActiveSchema: max(1, header.GetSchema()),
	}
	l.applier = &applier{tables: &l.tables, changes: &changeSet{}}
	l.judge.tables = &l.tables
	return l
}

// load adds a record. One that cannot be one is noted, so that all that is wrong with a
// file is told.
func (l *loader) load(record *slimcppb.SnapshotRecord) {
	if err := l.add(record); err != nil {
		l.judge.say("%v", err)
	}
	l.applier.changes = &changeSet{}
}

func (l *loader) add(record *slimcppb.SnapshotRecord) error {
	if kind := kindOf(record); kind >= 0 {
		l.counts[kind]++
	}
	switch r := record.GetRecord().(type) {
	case *slimcppb.SnapshotRecord_State:
		if l.state != nil {
			return errors.New("there are two state records")
		}
		l.state = r.State
	case *slimcppb.SnapshotRecord_Fleet:
		l.tables.fleet = r.Fleet
	case *slimcppb.SnapshotRecord_RenderedSegments:
		if l.tables.rendered != nil {
			return errors.New("there are two records of rendered segments")
		}
		l.tables.rendered = r.RenderedSegments
	case *slimcppb.SnapshotRecord_Node:
		node, err := nodeFromProto(r.Node)
		if err != nil {
			return err
		}
		if err := l.applier.checkNodeID(node.Group, node.LocalID); err != nil {
			return err
		}
		l.tables.nodes.set(node)
	case *slimcppb.SnapshotRecord_Link:
		l.applier.setLink(linkFromProto(r.Link))
	case *slimcppb.SnapshotRecord_Name:
		name, err := nameRecordFromProto(r.Name)
		if err != nil {
			return err
		}
		l.loadName(name)
	case *slimcppb.SnapshotRecord_Tombstone:
		tombstone, err := tombstoneFromProto(r.Tombstone)
		if err != nil {
			return err
		}
		l.tables.tombstones.set(tombstone)
	case *slimcppb.SnapshotRecord_EndedSession:
		l.applier.bar(endedSession{
			name: sessionNameFromProto(r.EndedSession.GetSession()), index: r.EndedSession.GetIndex(),
		})
	case *slimcppb.SnapshotRecord_Segment:
		l.tables.segments.set(segmentFromProto(r.Segment))
	case *slimcppb.SnapshotRecord_Secret:
		l.tables.secrets.set(secretFromProto(r.Secret.GetSecret(), r.Secret.GetIndex()))
	case *slimcppb.SnapshotRecord_Token:
		l.applier.setToken(usedToken{
			hash: string(r.Token.GetHash()), session: sessionNameFromProto(r.Token.GetSession()),
			expires: timeFromProto(r.Token.GetExpiresUnixNanos()),
		})
	case *slimcppb.SnapshotRecord_Replica:
		l.tables.replicas.set(replicaFromProto(r.Replica))
	case *slimcppb.SnapshotRecord_Request:
		l.applier.setRequest(requestFromProto(r.Request))
	case *slimcppb.SnapshotRecord_UnlinkedGroup:
		l.tables.unlinked.set(UnlinkedGroup{Group: r.UnlinkedGroup.GetGroup(), NextPeer: r.UnlinkedGroup.GetNextPeer()})
	default:
		return fmt.Errorf("%w in a snapshot", ErrUnknownCommand)
	}
	return nil
}

// kindOf returns the place of a record's kind in recordKinds, -1 for the single ones.
func kindOf(record *slimcppb.SnapshotRecord) int {
	kind := int(record.ProtoReflect().WhichOneof(record.ProtoReflect().Descriptor().Oneofs().Get(0)).Number()) - 3
	if kind >= len(recordKinds) {
		return -1
	}
	return kind
}

func (l *loader) loadName(name *NameRecord) {
	l.tables.names.set(name)
	for _, announcer := range name.Announcers {
		l.tables.namesOfNode.set(nodeNameKey{node: announcer.NodeID, name: name.Name})
	}
}

// finish makes the indexes and judges the whole state; one that comes from outside has
// to be one that operators could have made.
func (l *loader) finish(outside bool) error {
	if l.state == nil {
		l.judge.say("state record is absent")
		return l.judge.err()
	}
	l.applier.loading = true // the topology is expanded once, at the end
	for node := range l.tables.nodes.all() {
		l.applier.indexSessions(nil, node)
		l.applier.countNode(nil, node)
	}
	l.tables.graph = l.tables.expand(l.applier.presentGroups())
	l.tables.blocked = l.tables.allBlocked()
	l.tables.graph = l.tables.graph.avoiding(l.tables.blocked)
	m := &l.tables.meta
	m.Clock = timeFromProto(l.state.GetClockUnixNanos())
	m.LeaderTerm, m.LeaderReplica, m.LeaderBoot = l.state.GetLeaderTerm(), l.state.GetLeaderReplica(), l.state.GetLeaderBoot()
	m.TreesRevision, m.FleetRevision = l.state.GetTreesRevision(), l.state.GetFleetRevision()
	for kind, size := range l.tables.sizes() {
		if read := l.counts[kind]; read > size {
			l.judge.say("%d records of %s, and %d of them are there twice or too many", read, recordKinds[kind], read-size)
		}
	}
	l.judge.state()
	if outside {
		l.judge.configuration()
	}
	return l.judge.err()
}
