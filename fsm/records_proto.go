package fsm

import (
	"fmt"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func detailsFromProto(messages []*slimcppb.ConnectionDetail) []ConnectionDetail {
	var details []ConnectionDetail
	for _, message := range messages {
		details = append(details, ConnectionDetail{
			Endpoint:         message.GetEndpoint(),
			ExternalEndpoint: message.GetExternalEndpoint(),
			HasExternal:      message.ExternalEndpoint != nil,
			TLSRequired:      message.GetTlsRequired(),
			AuthMethod:       message.GetAuthMethod(),
			TrustDomain:      message.GetTrustDomain(),
			Malformed:        message.GetExternalEndpointMalformed(),
		})
	}
	return details
}

func detailsToProto(details []ConnectionDetail) []*slimcppb.ConnectionDetail {
	var messages []*slimcppb.ConnectionDetail
	for _, detail := range details {
		message := &slimcppb.ConnectionDetail{
			Endpoint:    detail.Endpoint,
			TlsRequired: detail.TLSRequired,
			AuthMethod:  detail.AuthMethod,
			TrustDomain: detail.TrustDomain,

			ExternalEndpointMalformed: detail.Malformed,
		}
		if detail.HasExternal {
			message.ExternalEndpoint = &detail.ExternalEndpoint
		}
		messages = append(messages, message)
	}
	return messages
}

// Times are nanoseconds since the epoch in UTC; zero stands for no time.
func timeToProto(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeFromProto(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func (n *Node) proto() *slimcppb.NodeRecord {
	record := &slimcppb.NodeRecord{
		NodeId: n.ID, Group: n.Group, Node: n.LocalID,
		CreatedUnixNanos: timeToProto(n.CreatedAt),
		State:            uint32(n.State),
		Details:          detailsToProto(n.Details),
		Acked:            n.Acked,
		Silent:           n.Silent,
	}
	for _, session := range n.Sessions {
		record.Sessions = append(record.Sessions, &slimcppb.SessionRecord{
			Session: session.Name.Proto(), Epoch: session.Epoch, Sequence: session.Sequence,
			Details: detailsToProto(session.Details), PeerAddress: session.PeerAddress,
			Resumed: session.Resumed, RegisteredUnixNanos: timeToProto(session.RegisteredAt),
		})
	}
	if last := n.LastSession; !last.Name.IsZero() {
		record.LastSession = &slimcppb.LostSession{
			Session: last.Name.Proto(), Reason: last.Reason, LostUnixNanos: timeToProto(last.At), Index: last.Index,
		}
	}
	for _, failure := range n.Failures {
		record.Failures = append(record.Failures, &slimcppb.FailureRecord{
			LinkId: failure.LinkID, Name: failure.Name.Proto(), Revision: failure.Revision,
			Error: failure.Error, UpdatedUnixNanos: timeToProto(failure.UpdatedAt),
		})
	}
	return record
}

func nodeFromProto(record *slimcppb.NodeRecord) (*Node, error) {
	node := &Node{
		ID: record.GetNodeId(), Group: record.GetGroup(), LocalID: record.GetNode(),
		CreatedAt: timeFromProto(record.GetCreatedUnixNanos()),
		State:     NodeState(record.GetState()),
		Details:   detailsFromProto(record.GetDetails()),
		Acked:     record.GetAcked(),
		Silent:    record.GetSilent(),
	}
	if node.ID != NodeID(node.Group, node.LocalID) {
		return nil, fmt.Errorf("%w: node %q is not %q in group %q", ErrBadID, node.ID, node.LocalID, node.Group)
	}
	for _, session := range record.GetSessions() {
		node.Sessions = append(node.Sessions, Session{
			Name: sessionNameFromProto(session.GetSession()), Epoch: session.GetEpoch(), Sequence: session.GetSequence(),
			Details: detailsFromProto(session.GetDetails()), PeerAddress: session.GetPeerAddress(),
			Resumed: session.GetResumed(), RegisteredAt: timeFromProto(session.GetRegisteredUnixNanos()),
		})
	}
	if last := record.GetLastSession(); last != nil {
		node.LastSession = LostSession{
			Name: sessionNameFromProto(last.GetSession()), Reason: last.GetReason(),
			At: timeFromProto(last.GetLostUnixNanos()), Index: last.GetIndex(),
		}
	}
	for _, failure := range record.GetFailures() {
		name, err := nameFromProto(failure.GetName())
		if err != nil {
			return nil, err
		}
		node.Failures = append(node.Failures, RouteFailure{
			LinkID: failure.GetLinkId(), Name: name, Revision: failure.GetRevision(),
			Error: failure.GetError(), UpdatedAt: timeFromProto(failure.GetUpdatedUnixNanos()),
		})
	}
	return node, nil
}

func (l *Link) proto() *slimcppb.LinkRecord {
	return &slimcppb.LinkRecord{
		LinkId: l.ID, SourceNodeId: l.SourceNode, SourceGroup: l.SourceGroup,
		DestNodeId: l.DestNode, DestGroup: l.DestGroup,
		Endpoint: l.Endpoint, EndpointNodeId: l.EndpointNode, TlsRequired: l.TLSRequired,
		AuthMethod: l.AuthMethod, TrustDomain: l.TrustDomain,
		Status: uint32(l.Status), StatusMessage: l.StatusMessage,
		SourceRevision: l.SourceRevision, DestRevision: l.DestRevision,
		CreatedUnixNanos: timeToProto(l.CreatedAt), UpdatedUnixNanos: timeToProto(l.UpdatedAt),
		Failures: l.Failures, ReachedUnixNanos: timeToProto(l.ReachedAt),
		ClaimMessageId: l.ClaimMessage, DisputedBy: l.DisputedBy, Acked: l.Acked, Gone: l.Gone,
		Tried: l.Tried, FullState: l.FullState, Exhausted: l.Exhausted,
	}
}

func linkFromProto(r *slimcppb.LinkRecord) *Link {
	return &Link{
		ID: r.GetLinkId(), SourceNode: r.GetSourceNodeId(), SourceGroup: r.GetSourceGroup(),
		DestNode: r.GetDestNodeId(), DestGroup: r.GetDestGroup(),
		Endpoint: r.GetEndpoint(), EndpointNode: r.GetEndpointNodeId(), TLSRequired: r.GetTlsRequired(),
		AuthMethod: r.GetAuthMethod(), TrustDomain: r.GetTrustDomain(),
		Status: LinkStatus(r.GetStatus()), StatusMessage: r.GetStatusMessage(),
		SourceRevision: r.GetSourceRevision(), DestRevision: r.GetDestRevision(),
		CreatedAt: timeFromProto(r.GetCreatedUnixNanos()), UpdatedAt: timeFromProto(r.GetUpdatedUnixNanos()),
		Failures: r.GetFailures(), ReachedAt: timeFromProto(r.GetReachedUnixNanos()),
		ClaimMessage: r.GetClaimMessageId(), DisputedBy: r.GetDisputedBy(), Acked: r.GetAcked(), Gone: r.GetGone(),
		Tried: r.GetTried(), FullState: r.GetFullState(), Exhausted: r.GetExhausted(),
	}
}

func (r *NameRecord) proto() *slimcppb.NameRecord {
	record := &slimcppb.NameRecord{Name: r.Name.Proto(), Revision: r.Revision, UpdatedUnixNanos: timeToProto(r.UpdatedAt)}
	for _, announcer := range r.Announcers {
		record.Announcers = append(record.Announcers, &slimcppb.AnnouncerRecord{
			NodeId: announcer.NodeID, Group: announcer.Group, Epoch: announcer.Epoch,
			FirstIndex: announcer.First.Index, FirstPosition: announcer.First.Command,
			SaidIndex: announcer.SaidAt, Replayed: announcer.Replayed, Repeated: announcer.Repeated,
			DoubtedIndex: announcer.DoubtedAt,
		})
	}
	return record
}

func nameRecordFromProto(record *slimcppb.NameRecord) (*NameRecord, error) {
	name, err := nameFromProto(record.GetName())
	if err != nil {
		return nil, err
	}
	restored := &NameRecord{Name: name, Revision: record.GetRevision(), UpdatedAt: timeFromProto(record.GetUpdatedUnixNanos())}
	for _, announcer := range record.GetAnnouncers() {
		restored.Announcers = append(restored.Announcers, Announcer{
			NodeID: announcer.GetNodeId(), Group: announcer.GetGroup(), Epoch: announcer.GetEpoch(),
			First:  Position{Index: announcer.GetFirstIndex(), Command: announcer.GetFirstPosition()},
			SaidAt: announcer.GetSaidIndex(), Replayed: announcer.GetReplayed(), Repeated: announcer.GetRepeated(),
			DoubtedAt: announcer.GetDoubtedIndex(),
		})
	}
	if len(restored.Announcers) == 0 {
		return nil, fmt.Errorf("%w: name %s has no announcer", ErrInvalid, name)
	}
	return restored, nil
}

func (t *Tombstone) proto() *slimcppb.TombstoneRecord {
	return &slimcppb.TombstoneRecord{
		Name: t.Name.Proto(), NodeId: t.Announcer.NodeID, Group: t.Announcer.Group,
		Revision: t.Revision, RemovedUnixNanos: timeToProto(t.RemovedAt),
		FirstIndex: t.Announcer.First.Index, FirstPosition: t.Announcer.First.Command,
		Epoch: t.Announcer.Epoch,
	}
}

func tombstoneFromProto(record *slimcppb.TombstoneRecord) (*Tombstone, error) {
	name, err := nameFromProto(record.GetName())
	if err != nil {
		return nil, err
	}
	return &Tombstone{
		Name: name,
		Announcer: Announcer{
			NodeID: record.GetNodeId(), Group: record.GetGroup(), Epoch: record.GetEpoch(),
			First: Position{Index: record.GetFirstIndex(), Command: record.GetFirstPosition()},
		},
		Revision: record.GetRevision(), RemovedAt: timeFromProto(record.GetRemovedUnixNanos()),
	}, nil
}

func (s *Segment) proto() *slimcppb.SegmentRecord {
	record := &slimcppb.SegmentRecord{Name: s.Name}
	for _, edge := range s.Edges {
		record.Edges = append(record.Edges, &slimcppb.EdgeRecord{GroupA: edge[0], GroupB: edge[1]})
	}
	return record
}

func segmentFromProto(record *slimcppb.SegmentRecord) *Segment {
	segment := &Segment{Name: record.GetName()}
	for _, edge := range record.GetEdges() {
		segment.Edges = append(segment.Edges, [2]string{edge.GetGroupA(), edge.GetGroupB()})
	}
	return segment
}

func (s *Secret) proto() *slimcppb.SecretRecord {
	return &slimcppb.SecretRecord{
		Secret: &slimcppb.GroupSecret{Group: s.Group, Secret: s.Value, KeyId: s.KeyID}, Index: s.Index,
	}
}

func secretFromProto(message *slimcppb.GroupSecret, index uint64) *Secret {
	return &Secret{Group: message.GetGroup(), Value: message.GetSecret(), KeyID: message.GetKeyId(), Index: index}
}
