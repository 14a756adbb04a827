package fsm

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// HashVersion is the version of what Hash computes. It changes with the encoding
// below, and with every field that a record gains. Only hashes of one version can
// be compared.
const HashVersion = 3

// Hash returns a hash of the whole state: every value of meta, the fleet
// configuration and every record. Replicas that applied the same log have the same
// one, also if they began with a snapshot of it (protocol X4). The indexes are not
// in it: they follow from the records. Neither are texts that Apply words for people,
// the message of a link and that of a request's error: another release may word them
// otherwise, and replicas of both must agree.
//
// It costs a pass over the state and is to be called beside Apply, which it does
// not hold up.
func (s *Snapshot) Hash() [sha256.Size]byte {
	sum := sha256.New()
	buffered := bufio.NewWriterSize(sum, 64<<10)
	h := hasher{w: buffered}
	h.uint(HashVersion)
	h.state(&s.tables)
	_ = buffered.Flush() // a hash takes every write
	return [sha256.Size]byte(sum.Sum(nil))
}

// hasher writes the canonical encoding. A number is an uvarint, a string its
// length and its bytes, a list its length and its elements, an optional value a
// flag and, if it is set, the value. Fields come in the order of the code, so that
// no library decides what the bytes are.
type hasher struct {
	w       *bufio.Writer
	scratch [binary.MaxVarintLen64]byte
}

func (h *hasher) uint(n uint64) {
	_, _ = h.w.Write(binary.AppendUvarint(h.scratch[:0], n))
}

func (h *hasher) string(s string) {
	h.uint(uint64(len(s)))
	_, _ = io.WriteString(h.w, s)
}

func (h *hasher) bytes(b []byte) {
	h.uint(uint64(len(b)))
	_, _ = h.w.Write(b)
}

func (h *hasher) bool(b bool) {
	if b {
		h.uint(1)
	} else {
		h.uint(0)
	}
}

func (h *hasher) time(t time.Time) { h.uint(uint64(timeToProto(t))) }

func (h *hasher) strings(list []string) {
	h.uint(uint64(len(list)))
	for _, s := range list {
		h.string(s)
	}
}

// hashTable writes the number of a table's records and the records.
func hashTable[T any](h *hasher, records table[T], write func(T)) {
	h.uint(uint64(records.len()))
	for record := range records.all() {
		write(record)
	}
}

func (h *hasher) state(t *tables) {
	h.meta(&t.meta)
	h.fleet(t.fleet)
	hashTable(h, t.nodes, h.node)
	hashTable(h, t.links, h.link)
	hashTable(h, t.names, h.nameRecord)
	hashTable(h, t.tombstones, h.tombstone)
	hashTable(h, t.ended, h.endedSession)
	hashTable(h, t.segments, h.segment)
	hashTable(h, t.secrets, h.secret)
	hashTable(h, t.tokens, h.token)
	hashTable(h, t.replicas, func(r *Replica) { h.replica(r, t.meta.ActiveSchema) })
	hashTable(h, t.requestOrder, h.request)
	if t.meta.ActiveSchema >= 2 {
		hashTable(h, t.unlinked, h.unlinkedGroup)
	}
	if template := t.fleet.GetTopology().GetSegmentsTemplate(); template != "" {
		// Only with schema 2, so that older replicas hash the same states alike.
		h.string(template)
		h.rendered(t.rendered)
	}
}

// rendered leaves the text of an error out: a release may word it differently.
func (h *hasher) rendered(r *slimcppb.RenderedSegments) {
	h.bytes(r.GetTemplate())
	h.bytes(r.GetGroups())
	h.bool(r.GetError() != "")
	h.fileSegments(r.GetSegments())
}

func (h *hasher) fileSegments(segments []*slimcppb.Segment) {
	h.uint(uint64(len(segments)))
	for _, segment := range segments {
		h.string(segment.GetName())
		h.uint(uint64(len(segment.GetLinks())))
		for _, adjacency := range segment.GetLinks() {
			h.string(adjacency.GetGroup())
			h.strings(adjacency.GetNeighbors())
		}
	}
}

func (h *hasher) meta(m *meta) {
	h.string(m.ClusterID)
	h.uint(m.Generation)
	h.uint(m.Index)
	h.uint(m.Term)
	h.time(m.Clock)
	h.uint(m.LeaderTerm)
	h.string(m.LeaderReplica)
	h.string(m.LeaderBoot)
	h.uint(m.TreesRevision)
	h.uint(m.FleetRevision)
	h.uint(uint64(m.ActiveSchema))
}

func (h *hasher) sessionName(name SessionName) {
	h.string(name.ReplicaID)
	h.string(name.BootID)
	h.uint(name.Counter)
}

func (h *hasher) details(details []ConnectionDetail) {
	h.uint(uint64(len(details)))
	for _, detail := range details {
		h.string(detail.Endpoint)
		h.string(detail.ExternalEndpoint)
		h.bool(detail.HasExternal)
		h.bool(detail.TLSRequired)
		h.uint(uint64(detail.AuthMethod))
		h.string(detail.TrustDomain)
		if detail.Malformed { // never before schema 2
			h.bool(true)
		}
	}
}

func (h *hasher) node(n *Node) {
	h.string(n.ID)
	h.string(n.Group)
	h.string(n.LocalID)
	h.time(n.CreatedAt)
	h.uint(uint64(n.State))
	h.uint(uint64(len(n.Sessions)))
	for _, session := range n.Sessions {
		h.sessionName(session.Name)
		h.uint(session.Epoch)
		h.uint(session.Sequence)
		h.details(session.Details)
		h.string(session.PeerAddress)
		h.bool(session.Resumed)
		h.time(session.RegisteredAt)
	}
	h.sessionName(n.LastSession.Name)
	h.uint(uint64(n.LastSession.Reason))
	h.time(n.LastSession.At)
	h.uint(n.LastSession.Index)
	h.details(n.Details)
	h.uint(n.Acked)
	h.uint(uint64(len(n.Failures)))
	for _, failure := range n.Failures {
		h.string(failure.LinkID)
		h.name(failure.Name)
		h.uint(failure.Revision)
		h.string(failure.Error)
		h.time(failure.UpdatedAt)
	}
	h.bool(n.Silent)
}

func (h *hasher) link(l *Link) {
	h.string(l.ID)
	h.string(l.SourceNode)
	h.string(l.SourceGroup)
	h.string(l.DestNode)
	h.string(l.DestGroup)
	h.string(l.Endpoint)
	h.string(l.EndpointNode)
	h.bool(l.TLSRequired)
	h.uint(uint64(l.AuthMethod))
	h.string(l.TrustDomain)
	h.uint(uint64(l.Status))
	h.bool(l.Acked)
	h.uint(l.SourceRevision)
	h.uint(l.DestRevision)
	h.time(l.CreatedAt)
	h.time(l.UpdatedAt)
	h.uint(uint64(l.Failures))
	h.time(l.ReachedAt)
	h.string(l.ClaimMessage)
	h.bool(l.Gone)
	h.strings(l.Tried)
	h.bool(l.FullState)
	h.string(l.DisputedBy)
	h.bool(l.Exhausted)
}

func (h *hasher) name(n Name) {
	h.string(n.C0)
	h.string(n.C1)
	h.string(n.C2)
	h.bytes(n.ID[:])
}

func (h *hasher) position(p Position) {
	h.uint(p.Index)
	h.uint(uint64(p.Command))
}

func (h *hasher) nameRecord(r *NameRecord) {
	h.name(r.Name)
	h.uint(r.Revision)
	h.time(r.UpdatedAt)
	h.uint(uint64(len(r.Announcers)))
	for _, announcer := range r.Announcers {
		h.announcer(announcer)
	}
}

func (h *hasher) announcer(a Announcer) {
	h.string(a.NodeID)
	h.string(a.Group)
	h.position(a.First)
	h.uint(a.Epoch)
	h.uint(a.SaidAt)
	h.bool(a.Replayed)
	h.bool(a.Repeated)
	h.uint(a.DoubtedAt)
}

func (h *hasher) tombstone(t *Tombstone) {
	h.name(t.Name)
	h.announcer(t.Announcer)
	h.uint(t.Revision)
	h.time(t.RemovedAt)
}

func (h *hasher) endedSession(e endedSession) {
	h.sessionName(e.name)
	h.uint(e.index)
}

func (h *hasher) segment(s *Segment) {
	h.string(s.Name)
	h.uint(uint64(len(s.Edges)))
	for _, edge := range s.Edges {
		h.string(edge[0])
		h.string(edge[1])
	}
}

func (h *hasher) secret(s *Secret) {
	h.string(s.Group)
	h.bytes(s.Value)
	h.string(s.KeyID)
	h.uint(s.Index)
}

func (h *hasher) token(t usedToken) {
	h.string(t.hash)
	h.sessionName(t.session)
	h.time(t.expires)
}

// replica writes a record of a replica. What the active schema, which is in the hash
// before it, does not know is left out, so that a binary that knows only that one has
// the same hash.
func (h *hasher) replica(r *Replica, schema uint32) {
	h.string(r.ID)
	h.bytes(r.Fingerprint)
	h.string(r.BootID)
	h.string(r.Name)
	h.string(r.Address)
	h.string(r.Version)
	h.uint(uint64(r.Schema))
	h.bool(r.HeldBack)
	h.bool(r.Removed)
	if schema >= 2 {
		h.uint(r.Boots)
		h.uint(r.Confirmed)
	}
}

func (h *hasher) request(r requestByAge) {
	h.string(r.id)
	h.uint(r.request.index)
	h.string(r.nodeID)
	h.string(r.linkID)
	h.uint(r.epoch)
	h.string(r.errorName)
	h.uint(r.payload)
}

func (h *hasher) unlinkedGroup(u UnlinkedGroup) {
	h.string(u.Group)
	h.string(u.NextPeer)
}

func (h *hasher) fleet(f *slimcppb.FleetConfig) {
	topology := f.GetTopology()
	h.bool(topology != nil)
	h.fileSegments(topology.GetSegments())
	h.enforced(f.GetEnforcedConnection())
	h.string(f.GetRegistrationAuth())
	graces := f.GetGraces()
	h.bool(graces != nil)
	h.uint(graces.GetFailoverMs())
	h.uint(graces.GetDepartureMs())
	h.uint(graces.GetReplicaMs())
	h.uint(graces.GetDetachedMs())
	h.uint(graces.GetTombstoneMs())
	h.uint(graces.GetNodeRetentionMs())
	h.uint(uint64(len(f.GetSecrets())))
	for _, secret := range f.GetSecrets() {
		h.string(secret.GetGroup())
		h.bytes(secret.GetSecret())
		h.string(secret.GetKeyId())
	}
}

func (h *hasher) enforced(e *slimcppb.EnforcedConnection) {
	h.bool(e != nil)
	if e == nil {
		return
	}
	h.optional(e.TimeoutMs)
	h.optional(e.BackoffMs)
	keepalive := e.GetKeepalive()
	h.bool(keepalive != nil)
	h.uint(keepalive.GetTcpKeepaliveMs())
	h.uint(keepalive.GetHttp2KeepaliveMs())
	h.uint(keepalive.GetTimeoutMs())
	h.bool(keepalive.GetKeepAliveWhileIdle())
}

func (h *hasher) optional(n *uint32) {
	h.bool(n != nil)
	if n != nil {
		h.uint(uint64(*n))
	}
}
