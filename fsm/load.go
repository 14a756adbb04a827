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
}

func newLoader(header *slimcppb.SnapshotHeader) *loader {
	l := &loader{tables: newTables()}
	l.tables.meta = meta{
		ClusterID: header.GetClusterId(), Generation: header.GetGeneration(),
		Index: header.GetIndex(), Term: header.GetTerm(), ActiveSchema: max(1, header.GetSchema()),
	}
	l.applier = &applier{tables: &l.tables, changes: &changeSet{}}
	return l
}

func (l *loader) load(record *slimcppb.SnapshotRecord) error {
	switch r := record.GetRecord().(type) {
	case *slimcppb.SnapshotRecord_State:
		l.state = r.State
	case *slimcppb.SnapshotRecord_Fleet:
		l.tables.fleet = r.Fleet
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
	default:
		return fmt.Errorf("%w in a snapshot", ErrUnknownCommand)
	}
	l.applier.changes = &changeSet{}
	return nil
}

func (l *loader) loadName(name *NameRecord) {
	l.tables.names.set(name)
	for _, announcer := range name.Announcers {
		l.tables.namesOfNode.set(nodeNameKey{node: announcer.NodeID, name: name.Name})
	}
}

func (l *loader) finish() error {
	if l.state == nil {
		return errors.New("state record is absent")
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
	return l.tables.check()
}
