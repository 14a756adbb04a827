package fsm

import (
	"cmp"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Records are immutable once they are in a table: a command that changes one
// stores a changed copy. So a View can hand them out without copying.

// SessionName names one registered southbound stream (protocol S1).
type SessionName struct {
	ReplicaID string
	BootID    string
	Counter   uint64
}

// IsZero reports whether the name names nothing.
func (s SessionName) IsZero() bool { return s == SessionName{} }

// Compare orders names by replica, boot and counter.
func (s SessionName) Compare(other SessionName) int {
	return cmp.Or(
		strings.Compare(s.ReplicaID, other.ReplicaID),
		strings.Compare(s.BootID, other.BootID),
		cmp.Compare(s.Counter, other.Counter),
	)
}

// Proto returns the name as it stands in commands and snapshots.
func (s SessionName) Proto() *slimcppb.SessionName {
	return &slimcppb.SessionName{ReplicaId: s.ReplicaID, BootId: s.BootID, Counter: s.Counter}
}

func sessionNameFromProto(message *slimcppb.SessionName) SessionName {
	return SessionName{ReplicaID: message.GetReplicaId(), BootID: message.GetBootId(), Counter: message.GetCounter()}
}

// ConnectionDetail says how a node can be reached.
type ConnectionDetail struct {
	Endpoint         string
	ExternalEndpoint string
	HasExternal      bool // the node sent the field, even if it is empty
	// Malformed: the external endpoint cannot be dialled, whatever listens.
	Malformed   bool
	TLSRequired bool
	AuthMethod  slimcppb.AuthMethod
	TrustDomain string
}

// NodeState is where a node stands in its life.
type NodeState uint32

const (
	// NodePresent has a session, or lost it so recently that it may come back.
	NodePresent NodeState = iota + 1
	// NodeDeparted was given up: it holds no links and announces nothing until
	// it registers again.
	NodeDeparted
	// NodeLeaving deregistered or was evicted; its streams are being ended.
	NodeLeaving
)

// Session is one registered stream of a node.
type Session struct {
	Name         SessionName
	Epoch        uint64 // ranks the sessions of a node
	Sequence     uint64 // of the last Announce or ClaimLink applied
	Details      []ConnectionDetail
	PeerAddress  string
	Resumed      bool
	RegisteredAt time.Time
}

// LostSession remembers how a node lost its last session.
type LostSession struct {
	Name   SessionName
	Reason slimcppb.LossReason
	At     time.Time
	Index  uint64
}

// RouteFailure is a route that the node refused.
type RouteFailure struct {
	LinkID    string
	Name      Name
	Revision  uint64
	Error     string
	UpdatedAt time.Time
}

// Node is a data-plane node.
type Node struct {
	ID        string // group/node, or the bare node id without a group
	Group     string
	LocalID   string
	CreatedAt time.Time
	State     NodeState
	Sessions  []Session // by epoch, the command session last
	// LastSession is set while there is no session.
	LastSession LostSession
	// Details are those of the command session, or of the last one.
	Details []ConnectionDetail
	// Acked is the index that the command session confirmed.
	Acked    uint64
	Failures []RouteFailure // by link, then name; at most MaxFailures
	// Silent nodes do not answer: no candidate for new links (protocol C9).
	Silent bool
}

// Connected reports whether the node has a session.
func (n *Node) Connected() bool { return len(n.Sessions) > 0 }

// CommandSession returns the newest session, the one that is pushed to
// (protocol S4).
func (n *Node) CommandSession() (Session, bool) {
	if len(n.Sessions) == 0 {
		return Session{}, false
	}
	return n.Sessions[len(n.Sessions)-1], true
}

// ExternalDetail returns the first detail with an external endpoint that can be
// dialled (protocol L3).
func (n *Node) ExternalDetail() (ConnectionDetail, bool) {
	for _, detail := range n.Details {
		if detail.ExternalEndpoint != "" && !detail.Malformed {
			return detail, true
		}
	}
	return ConnectionDetail{}, false
}

// LinkStatus is a state of the link state machine.
type LinkStatus uint32

const (
	// LinkPending waits to be pushed to its source.
	LinkPending LinkStatus = iota + 1
	// LinkConnecting was dialled; the node at its other end is not confirmed.
	LinkConnecting
	// LinkApplied stands, and both its ends are known.
	LinkApplied
	// LinkFailed was refused by its source; it is dialled again with back-off.
	LinkFailed
	// LinkDeleted waits for its source to drop it.
	LinkDeleted
)

// String returns the status as listings print it.
func (s LinkStatus) String() string {
	switch s {
	case LinkPending:
		return "PENDING"
	case LinkConnecting:
		return "CONNECTING"
	case LinkApplied:
		return "APPLIED"
	case LinkFailed:
		return "FAILED"
	case LinkDeleted:
		return "DELETED"
	}
	return "UNKNOWN"
}

// Link is a connection between two groups that one node dials.
type Link struct {
	ID          string
	SourceNode  string
	SourceGroup string
	DestNode    string // empty until a node of the group claimed it
	DestGroup   string

	// What the source dials. EndpointNode is whose detail it was.
	Endpoint     string // host:port
	EndpointNode string
	TLSRequired  bool
	AuthMethod   slimcppb.AuthMethod
	TrustDomain  string

	Status        LinkStatus
	StatusMessage string
	// Acked: the source acknowledged the dial of the present source revision.
	Acked bool
	// Revisions of the two ends (protocol L1).
	SourceRevision uint64
	DestRevision   uint64
	CreatedAt      time.Time
	UpdatedAt      time.Time
	// Failures counts refused dials since the link last stood.
	Failures uint32
	// ReachedAt is when a node of the source group last reached the endpoint.
	ReachedAt time.Time
	// ClaimMessage is the message that carried the last claim.
	ClaimMessage string
	// Gone: a deleted link that its source no longer holds. It stays listed for
	// the tombstone time.
	Gone bool
	// Tried are the pairs of nodes, dialling and dialled, that failed since the
	// link last stood (protocol C11).
	Tried []string
	// FullState: the link is dialled with the node's own settings, which only a
	// full state does.
	FullState bool
	// Exhausted: every way to make the pair's link was tried in vain since it last
	// stood. Its successors inherit that, until one stands.
	Exhausted bool
	// DisputedBy is a node that claims an end that another node holds; the
	// leader asks the source (protocol L2).
	DisputedBy string
}

// Live reports whether the link is wanted.
func (l *Link) Live() bool { return l.Status != LinkDeleted }

// NeedsCredentials reports whether the source needs its local credentials to
// dial, so that only a full state can carry the link (protocol C5).
func (l *Link) NeedsCredentials() bool {
	return l.FullState || l.TLSRequired || l.AuthMethod != slimcppb.AuthMethod_AUTH_METHOD_NONE
}

// RevisionAt returns the link's revision at the end that the node holds; 0 if
// it holds none.
func (l *Link) RevisionAt(nodeID string) uint64 {
	switch nodeID {
	case l.SourceNode:
		return l.SourceRevision
	case l.DestNode:
		return l.DestRevision
	}
	return 0
}

// PeerOf returns the node at the other end, empty if it is not known.
func (l *Link) PeerOf(nodeID string) string {
	if nodeID == l.SourceNode {
		return l.DestNode
	}
	return l.SourceNode
}

// PeerGroup returns the group at the other end.
func (l *Link) PeerGroup(group string) string {
	if group == l.SourceGroup {
		return l.DestGroup
	}
	return l.SourceGroup
}

// End returns the node that holds the group's end of the link.
func (l *Link) End(group string) string {
	switch group {
	case l.SourceGroup:
		return l.SourceNode
	case l.DestGroup:
		return l.DestNode
	}
	return ""
}

// Announcer is a node that announces a name.
type Announcer struct {
	NodeID string
	Group  string
	// First is where in the log the node first announced the name since it was
	// last absent there (protocol N2).
	First Position
	// Epoch is the highest of a session that set it (protocol S3).
	Epoch uint64
	// SaidAt is the index at which the node last announced it.
	SaidAt uint64
	// Replayed: in this session it was told only by the list that a node repeats
	// after registering. Repeated: it was announced more than once. In both cases
	// one withdrawal need not be the last application's (protocol N7).
	Replayed bool
	Repeated bool
	// DoubtedAt is the index of a withdrawal that waits for an audit, or 0.
	DoubtedAt uint64
}

// Position is a place in the log: entry and command within it.
type Position struct {
	Index   uint64
	Command uint32
}

// Compare orders positions.
func (p Position) Compare(other Position) int {
	return cmp.Or(cmp.Compare(p.Index, other.Index), cmp.Compare(p.Command, other.Command))
}

// NameRecord is an announced name.
type NameRecord struct {
	Name      Name
	Revision  uint64
	UpdatedAt time.Time
	// Announcers, the oldest first.
	Announcers []Announcer
}

// Groups returns the announcing groups, each once, by their oldest announcer.
func (r *NameRecord) Groups() []string { return announcingGroups(r.Announcers) }

func announcingGroups(announcers []Announcer) []string {
	groups := make([]string, 0, min(len(announcers), 16))
	known := map[string]struct{}{}
	for _, announcer := range announcers {
		if _, ok := known[announcer.Group]; ok || announcer.Group == "" {
			continue
		}
		known[announcer.Group] = struct{}{}
		groups = append(groups, announcer.Group)
	}
	return groups
}

// Tombstone remembers a withdrawn announcement, for listings to show and for
// the leader to confirm (protocol N9).
type Tombstone struct {
	Name      Name
	Announcer Announcer
	Revision  uint64
	RemovedAt time.Time
}

// Compare orders tombstones by name, then node.
func (t *Tombstone) Compare(other *Tombstone) int {
	return cmp.Or(t.Name.Compare(other.Name), strings.Compare(t.Announcer.NodeID, other.Announcer.NodeID))
}

// Group is a group that has nodes.
type Group struct {
	Name      string
	Nodes     int // records
	Present   int // nodes that have not departed
	Connected int // nodes with a session
	Dialable  int // nodes that have not departed and have an external endpoint
}

// UnlinkedGroup is a group of which some links have yet to be compared with the
// topology: those with the peers from NextPeer on, in order of name.
type UnlinkedGroup struct {
	Group    string
	NextPeer string
}

// Segment is a segment of the API-managed topology.
type Segment struct {
	Name  string
	Edges [][2]string // each ordered, in order
}

// Secret proves membership of a group at registration.
type Secret struct {
	Group string
	Value []byte
	KeyID string // of the key that encrypts the value; empty: plain
	Index uint64
}

// usedToken is a registration token that opened a session.
type usedToken struct {
	hash    string
	session SessionName
	expires time.Time
}
