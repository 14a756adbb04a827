package fsm

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// meta holds the state's single values.
type meta struct {
	ClusterID  string
	Generation uint64
	// Index and Term are those of the last command applied.
	Index uint64
	Term  uint64
	// Clock is the highest stamped time seen; it never goes back (protocol D6).
	Clock time.Time
	// LeaderTerm, LeaderReplica and LeaderBoot are the last LeaderStarted's.
	LeaderTerm    uint64
	LeaderReplica string
	LeaderBoot    string
	// TreesRevision is the index of the last change after which the path between
	// two groups that were there before may differ.
	TreesRevision uint64
	// FleetRevision is the index of the last SetFleetConfig.
	FleetRevision uint64
	// ActiveSchema is the newest schema that a command may need (protocol X5).
	ActiveSchema uint32
}

// pairKey is an unordered pair of groups, a < b, and the live link between them.
type pairKey struct{ a, b, linkID string }

func pairOf(a, b string) pairKey {
	if b < a {
		a, b = b, a
	}
	return pairKey{a: a, b: b}
}

// formerKey is a deleted link of a pair; the one deleted last is the highest.
type formerKey struct {
	pairKey
	revision uint64
}

func formerOf(link *Link) formerKey {
	key := formerKey{pairKey: pairOf(link.SourceGroup, link.DestGroup), revision: link.SourceRevision}
	key.linkID = link.ID
	return key
}

type nodeLinkKey struct{ node, link string }
type groupNodeKey struct{ group, node string }
type groupLinkKey struct{ group, peer string }
type nodeNameKey struct {
	node string
	name Name
}
type sessionKey struct {
	name SessionName
	node string
}
type endedSession struct {
	name  SessionName
	index uint64
}

// tables is the state: records and the indexes that a rule needs. Its methods
// only read.
type tables struct {
	meta  meta
	fleet *slimcppb.FleetConfig
	// rendered is what the template of the fleet configuration was rendered to.
	rendered *slimcppb.RenderedSegments
	graph    *graphs

	nodes      table[*Node]
	links      table[*Link]
	names      table[*NameRecord]
	tombstones table[*Tombstone]
	groups     table[*Group]
	// ended holds names of sessions that were lost, so that a registration under
	// way does not revive them (protocol S2).
	ended      table[endedSession]
	endedOrder table[endedSession] // the oldest first
	segments   table[*Segment]     // of the API-managed topology
	secrets    table[*Secret]      // set through the API
	replicas   table[*Replica]
	// tokens that were used, by hash, and by time of expiry.
	tokens       table[usedToken]
	tokenExpires table[usedToken]
	// requests are results of operators' commands, by request id, and the oldest
	// first (protocol X1).
	requests     table[requestByID]
	requestOrder table[requestByAge]
	// unlinked are groups with links that have yet to be compared with the topology.
	unlinked table[UnlinkedGroup]

	sessions    table[sessionKey]   // live sessions
	members     table[groupNodeKey] // nodes of a group
	connected   table[groupNodeKey] // nodes of a group with a session
	pairs       table[pairKey]      // live link of a pair of groups
	former      table[formerKey]    // deleted links of a pair, while they are listed
	groupLinks  table[groupLinkKey] // groups that a group has a live link with
	linksOfNode table[nodeLinkKey]  // links by each node that holds an end
	namesOfNode table[nodeNameKey]  // names by announcing node
	blocked     blockedPairs        // pairs that names are led around
}

func newTables() tables {
	return tables{
		meta:  meta{ActiveSchema: 1},
		fleet: &slimcppb.FleetConfig{},
		graph: newGraphs(nil, newBlockedPairs()),

		nodes:      newTable(func(a, b *Node) bool { return a.ID < b.ID }),
		links:      newTable(func(a, b *Link) bool { return a.ID < b.ID }),
		names:      newTable(func(a, b *NameRecord) bool { return a.Name.Compare(b.Name) < 0 }),
		tombstones: newTable(func(a, b *Tombstone) bool { return a.Compare(b) < 0 }),
		groups:     newTable(func(a, b *Group) bool { return a.Name < b.Name }),
		ended:      newTable(func(a, b endedSession) bool { return a.name.Compare(b.name) < 0 }),
		endedOrder: newTable(func(a, b endedSession) bool {
			return cmp.Or(cmp.Compare(a.index, b.index), a.name.Compare(b.name)) < 0
		}),
		segments: newTable(func(a, b *Segment) bool { return a.Name < b.Name }),
		secrets:  newTable(func(a, b *Secret) bool { return a.Group < b.Group }),
		replicas: newTable(func(a, b *Replica) bool { return a.ID < b.ID }),
		tokens:   newTable(func(a, b usedToken) bool { return a.hash < b.hash }),
		tokenExpires: newTable(func(a, b usedToken) bool {
			return cmp.Or(a.expires.Compare(b.expires), strings.Compare(a.hash, b.hash)) < 0
		}),
		requests:     newTable(lessRequestByID),
		requestOrder: newTable(lessRequestByAge),
		unlinked:     newTable(func(a, b UnlinkedGroup) bool { return a.Group < b.Group }),

		sessions: newTable(func(a, b sessionKey) bool { return a.name.Compare(b.name) < 0 }),
		members:  newTable(lessGroupNode), connected: newTable(lessGroupNode),
		pairs: newTable(lessPair),
		former: newTable(func(a, b formerKey) bool {
			return cmp.Or(strings.Compare(a.a, b.a), strings.Compare(a.b, b.b),
				cmp.Compare(a.revision, b.revision), strings.Compare(a.linkID, b.linkID)) < 0
		}),
		groupLinks: newTable(lessGroupLink), blocked: newBlockedPairs(),
		linksOfNode: newTable(func(a, b nodeLinkKey) bool {
			return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.link, b.link)) < 0
		}),
		namesOfNode: newTable(func(a, b nodeNameKey) bool {
			return cmp.Or(strings.Compare(a.node, b.node), a.name.Compare(b.name)) < 0
		}),
	}
}

func lessGroupNode(a, b groupNodeKey) bool {
	return cmp.Or(strings.Compare(a.group, b.group), strings.Compare(a.node, b.node)) < 0
}

func lessGroupLink(a, b groupLinkKey) bool {
	return cmp.Or(strings.Compare(a.group, b.group), strings.Compare(a.peer, b.peer)) < 0
}

func lessPair(a, b pairKey) bool {
	return cmp.Or(strings.Compare(a.a, b.a), strings.Compare(a.b, b.b)) < 0
}

// copy costs O(1) a table. The blocked pairs are shared: who changes them copies
// them first.
func (t *tables) copy() tables {
	c := *t
	c.nodes, c.links, c.names = t.nodes.copy(), t.links.copy(), t.names.copy()
	c.tombstones, c.groups, c.ended, c.endedOrder = t.tombstones.copy(), t.groups.copy(), t.ended.copy(), t.endedOrder.copy()
	c.segments, c.secrets, c.replicas = t.segments.copy(), t.secrets.copy(), t.replicas.copy()
	c.tokens, c.tokenExpires = t.tokens.copy(), t.tokenExpires.copy()
	c.requests, c.requestOrder, c.unlinked = t.requests.copy(), t.requestOrder.copy(), t.unlinked.copy()
	c.sessions, c.members, c.connected = t.sessions.copy(), t.members.copy(), t.connected.copy()
	c.pairs, c.former, c.groupLinks = t.pairs.copy(), t.former.copy(), t.groupLinks.copy()
	c.linksOfNode, c.namesOfNode = t.linksOfNode.copy(), t.namesOfNode.copy()
	return c
}

// Node returns a node by its full id.
func (t *tables) Node(id string) (*Node, bool) { return t.nodes.get(&Node{ID: id}) }

// Nodes yields all nodes by id.
func (t *tables) Nodes() iter.Seq[*Node] { return t.nodes.all() }

// NodeCount returns the number of node records.
func (t *tables) NodeCount() int { return t.nodes.len() }

// Link returns a link by its id, also one that is being deleted.
func (t *tables) Link(id string) (*Link, bool) { return t.links.get(&Link{ID: id}) }

// Links yields all links by id, also those being deleted.
func (t *tables) Links() iter.Seq[*Link] { return t.links.all() }

// LinkBetween returns the live link of two groups.
func (t *tables) LinkBetween(a, b string) (*Link, bool) {
	pair, ok := t.pairs.get(pairOf(a, b))
	if !ok {
		return nil, false
	}
	return t.Link(pair.linkID)
}

// formerLinkBetween returns the link of two groups that was deleted last, while
// it is still listed.
func (t *tables) formerLinkBetween(a, b string) (*Link, bool) {
	pair := pairOf(a, b)
	last, ok := t.former.lastBefore(formerKey{pairKey: pair, revision: math.MaxUint64})
	if !ok || last.a != pair.a || last.b != pair.b {
		return nil, false
	}
	return t.Link(last.linkID)
}

// LinksOf yields the links of which the node holds an end, also those being
// deleted, by id.
func (t *tables) LinksOf(nodeID string) iter.Seq[*Link] {
	return func(yield func(*Link) bool) {
		for key := range t.linksOfNode.from(nodeLinkKey{node: nodeID}) {
			if key.node != nodeID {
				return
			}
			if link, ok := t.Link(key.link); ok && !yield(link) {
				return
			}
		}
	}
}

// NameRecord returns an announced name.
func (t *tables) NameRecord(name Name) (*NameRecord, bool) {
	return t.names.get(&NameRecord{Name: name})
}

// Names yields all announced names in order.
func (t *tables) Names() iter.Seq[*NameRecord] { return t.names.all() }

// NameCount returns how many names are announced.
func (t *tables) NameCount() int { return t.names.len() }

// NamesOf yields the names that the node announces, in order.
func (t *tables) NamesOf(nodeID string) iter.Seq[Name] {
	return func(yield func(Name) bool) {
		for key := range t.namesOfNode.from(nodeNameKey{node: nodeID}) {
			if key.node != nodeID || !yield(key.name) {
				return
			}
		}
	}
}

// Tombstones yields all tombstones by name, then node.
func (t *tables) Tombstones() iter.Seq[*Tombstone] { return t.tombstones.all() }

// tombstonesOf yields the tombstones of a name.
func (t *tables) tombstonesOf(name Name) iter.Seq[*Tombstone] {
	return func(yield func(*Tombstone) bool) {
		for tombstone := range t.tombstones.from(&Tombstone{Name: name}) {
			if tombstone.Name != name || !yield(tombstone) {
				return
			}
		}
	}
}

// Groups yields all groups that have nodes, by name.
func (t *tables) Groups() iter.Seq[*Group] { return t.groups.all() }

// Group returns a group that has nodes.
func (t *tables) Group(name string) (*Group, bool) { return t.groups.get(&Group{Name: name}) }

// Members yields the ids of a group's nodes.
func (t *tables) Members(group string) iter.Seq[string] { return idsOf(t.members, group) }

// ConnectedMembers yields the ids of a group's nodes that have a session.
func (t *tables) ConnectedMembers(group string) iter.Seq[string] { return idsOf(t.connected, group) }

func idsOf(index table[groupNodeKey], group string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range index.from(groupNodeKey{group: group}) {
			if key.group != group || !yield(key.node) {
				return
			}
		}
	}
}

// LinkedGroups yields the groups that a group has a live link with, in order.
func (t *tables) LinkedGroups(group string) iter.Seq[string] { return t.linkedFrom(group, "") }

// linkedFrom yields the groups from a peer on that a group has a live link with.
func (t *tables) linkedFrom(group, peer string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range t.groupLinks.from(groupLinkKey{group: group, peer: peer}) {
			if key.group != group || !yield(key.peer) {
				return
			}
		}
	}
}

// SessionNode returns the node of a live session.
func (t *tables) SessionNode(name SessionName) (*Node, bool) {
	key, ok := t.sessions.get(sessionKey{name: name})
	if !ok {
		return nil, false
	}
	return t.Node(key.node)
}

// Secret returns the registration secret of a group: the one set through the API,
// else the one that the file gave.
func (t *tables) Secret(group string) (Secret, bool) {
	if secret, ok := t.secrets.get(&Secret{Group: group}); ok {
		return *secret, true
	}
	for _, secret := range t.fleet.GetSecrets() {
		if secret.GetGroup() == group {
			return Secret{Group: group, Value: secret.GetSecret(), KeyID: secret.GetKeyId(), Index: t.meta.FleetRevision}, true
		}
	}
	return Secret{}, false
}

// SecretGroups returns the groups that have a registration secret, in order.
func (t *tables) SecretGroups() []string {
	var groups []string
	for secret := range t.secrets.all() {
		groups = append(groups, secret.Group)
	}
	for _, secret := range t.fleet.GetSecrets() {
		groups = append(groups, secret.GetGroup())
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// Index returns the log index of the last command applied.
func (t *tables) Index() uint64 { return t.meta.Index }

// Term returns the term of the entry at Index.
func (t *tables) Term() uint64 { return t.meta.Term }

// Generation changes with each restore of a snapshot (protocol X3).
func (t *tables) Generation() uint64 { return t.meta.Generation }

// ClusterID is empty until the cluster was initialised.
func (t *tables) ClusterID() string { return t.meta.ClusterID }

// LeaderTerm returns the term of the last leadership that started its work.
func (t *tables) LeaderTerm() uint64 { return t.meta.LeaderTerm }

// Clock returns the highest time that a leader stamped.
func (t *tables) Clock() time.Time { return t.meta.Clock }

// Fleet returns the fleet configuration; the caller must not change it.
func (t *tables) Fleet() *slimcppb.FleetConfig { return t.fleet }

// FleetRevision returns the index of the last change of the fleet
// configuration, 0 if there was none.
func (t *tables) FleetRevision() uint64 { return t.meta.FleetRevision }
