package config

import (
	"slices"
	"time"
)

// Config is the complete configuration of a replica.
type Config struct {
	Northbound            []Listener // at least one
	Southbound            []Listener // at least one
	Reconciler            Reconciler
	Database              Database
	Tracing               Tracing
	Topology              Topology
	RegistrationAuth      RegistrationAuth
	EnforceNodeConnection EnforceNodeConnection
	Sessions              Sessions
	Limits                Limits
	Cluster               *Cluster // nil without a cluster section
	Admin                 *Admin   // nil without an admin section

	// Warnings are lines for the log: what was ignored, and why.
	Warnings []string

	unserved []Problem
}

// Unserved lists what the file asks for and this version does not serve. A
// server must not start on such a file: without what was asked for it would be
// less protected, or another server, than its operator believes.
func (c *Config) Unserved() []Problem { return slices.Clone(c.unserved) }

// Listener is an address on which gRPC is served.
type Listener struct {
	Key       string // where the file describes it, for messages: southbound, southbound[1]
	Endpoint  Endpoint
	TLS       ServerTLS
	Auth      Auth
	Keepalive Keepalive

	// Limits of one HTTP/2 connection; 0 leaves them to the server.
	MaxConcurrentStreams uint32
	MaxHeaderListSize    uint32 // bytes
}

// Keepalive are the pings of a server. A client that stays silent for Time is
// pinged, and taken for dead after another Timeout (protocol X8).
type Keepalive struct {
	Time    time.Duration
	Timeout time.Duration
}

// Reconciler tunes how nodes are brought to the wanted state.
type Reconciler struct {
	MaxRequeues           int           // failures of a node in a row before it waits for an event or a sweep
	BaseRetryDelay        time.Duration // doubled with every failure
	ReconcilePeriod       time.Duration // of the sweep over all nodes; 0: none
	EnableOrphanDetection bool          // remove connections from nodes that this control plane does not know
	Workers               int           // per queue, at least 1
}

// DatabaseType says where the state is kept.
type DatabaseType string

// InMemory loses the state with the process; Raft keeps it in a directory.
const (
	InMemory DatabaseType = "in_memory"
	Raft     DatabaseType = "raft"
)

// Database is the store of a replica without a cluster section.
type Database struct {
	Type DatabaseType
	Path string // directory; only with Raft

	// SQLitePath is the database file of upstream's control plane which the
	// file names with `type: sqlite`, else empty. Path is then SQLitePath + ".d".
	SQLitePath string
}

// Tracing is what gets logged.
type Tracing struct {
	LogLevel           string // trace, debug, info, warn, error
	DisplayThreadNames bool
	DisplayThreadIDs   bool
}

// Topology says which groups get linked.
type Topology struct {
	// ConfigManaged: the segments below are the topology. Otherwise there are
	// none, and operators manage the topology through the API.
	ConfigManaged bool
	Segments      []Segment
	// SegmentsTemplate is the template that the segments are made from; then there are
	// none above.
	SegmentsTemplate string
}

// DefaultSegment is the name of the segment that `topology.links` describes.
const DefaultSegment = "default"

// GroupTemplate in a segment's strings stands for each group in turn.
const GroupTemplate = "$group"

// Segment is a part of the topology with trees of its own. A name or a link
// with GroupTemplate in it makes it a template; `$domain` in the file is read as
// GroupTemplate.
type Segment struct {
	Name  string
	Links []Adjacency
}

// Adjacency links a group with neighbours, in both directions. "*" stands for
// every group.
type Adjacency struct {
	Group     string
	Neighbors []string
}

// EnforceNodeConnection are settings that every link gets, nil: the node's own.
type EnforceNodeConnection struct {
	Backoff   *uint32 // milliseconds between two attempts to connect
	Timeout   *uint32 // milliseconds for one attempt
	Keepalive *NodeKeepalive
}

// NodeKeepalive are a node's pings on its links.
type NodeKeepalive struct {
	TCPKeepalive       time.Duration
	HTTP2Keepalive     time.Duration
	Timeout            time.Duration
	KeepAliveWhileIdle bool
}

// Sessions are the waits around the end of nodes and replicas (protocol D2).
type Sessions struct {
	FailoverGrace      time.Duration // stream ended, a sibling can take over
	DepartureGrace     time.Duration // stream ended, no sibling
	ReplicaGrace       time.Duration // the node's replica is unreachable
	DetachedGrace      time.Duration // the same, and no sibling
	NodeRetention      time.Duration // a departed node stays listed
	TombstoneRetention time.Duration // a removed link or route stays listed
	ShutdownDelay      time.Duration // between the pause of the listeners and the end of a replica
}

// Limits bound what a peer may cost.
type Limits struct {
	MaxMessageSize int // bytes of one received gRPC message
}

// Cluster is a replica's part in a cluster.
type Cluster struct {
	Name      string // empty: the host's name
	DataDir   string
	Endpoint  Endpoint
	Advertise string // host:port for the other replicas
	Insecure  bool   // plaintext
	// TLS is mutual: Source is this replica's certificate towards both sides, and
	// ClientCA vouches for the other replicas whichever side dialled.
	TLS             ServerTLS
	PeerIdentity    PeerIdentity
	BootstrapExpect int      // replicas, found through Join, form a cluster on their own; 0: an operator does it
	Join            []string // host:port of members
	Raft            RaftTimes
	Autopilot       Autopilot
	Snapshots       Snapshots
}

// IdentityMode says what becomes of a replica whose certificate does not bear its name.
type IdentityMode string

// Modes of PeerIdentity.
const (
	IdentityRequire IdentityMode = "require" // it is refused
	IdentityWarn    IdentityMode = "warn"    // the log names it
	IdentityOff     IdentityMode = "off"     // nobody looks
)

// PeerIdentity binds the certificates of the cluster port to the replicas that use
// them. Names are DNS names or URIs of which a certificate has to hold one, with
// {name} for the name in the replica's id.
type PeerIdentity struct {
	Mode  IdentityMode
	Names []string
}

// RaftTimes are the timings of Raft. The defaults are good for replicas in one
// region; for those in one zone 250, 250 and 200 ms halve the time without a leader.
type RaftTimes struct {
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration
	SnapshotThreshold  uint64 // log entries between two snapshots
	MaxLogBytes        uint64 // of the log entries together
}

// Autopilot promotes new replicas and removes dead ones.
type Autopilot struct {
	StabilizationTime time.Duration
	DeadServerCleanup bool          // remove members that are dead
	DeadAfter         time.Duration // for so long
	MinQuorum         int
}

// Snapshots are saved on a schedule.
type Snapshots struct {
	Interval time.Duration // 0: none
	Retain   int           // files, at least 1
	Path     string        // directory
}

// Admin is the HTTP port for health, metrics and the console.
type Admin struct {
	Endpoint Endpoint
}

// Default returns the configuration of an empty file: plaintext listeners on
// ports 50051 (northbound) and 50052 (southbound), state in memory, topology
// managed through the API.
func Default() *Config {
	return &Config{
		Northbound: []Listener{defaultListener("northbound", defaultNorthbound)},
		Southbound: []Listener{defaultListener("southbound", defaultSouthbound)},
		Reconciler: Reconciler{
			MaxRequeues:     15,
			BaseRetryDelay:  200 * time.Millisecond,
			ReconcilePeriod: time.Minute,
			Workers:         4,
		},
		Database:         Database{Type: InMemory},
		Tracing:          Tracing{LogLevel: "info", DisplayThreadNames: true},
		RegistrationAuth: RegistrationAuth{Type: RegistrationNone},
		Sessions: Sessions{
			FailoverGrace:      time.Second,
			DepartureGrace:     10 * time.Second,
			ReplicaGrace:       5 * time.Second,
			DetachedGrace:      10 * time.Minute,
			NodeRetention:      24 * time.Hour,
			TombstoneRetention: time.Minute,
			ShutdownDelay:      time.Second,
		},
		Limits: Limits{MaxMessageSize: 64 * mebibyte},
	}
}

const (
	mebibyte = 1 << 20

	defaultNorthbound     = "0.0.0.0:50051"
	defaultSouthbound     = "0.0.0.0:50052"
	defaultClusterAddress = "0.0.0.0:50053"
	defaultAdminAddress   = "127.0.0.1:50054"
)

// defaultListener is what a listener is when its section is absent.
func defaultListener(key, address string) Listener {
	return Listener{
		Key:       key,
		Endpoint:  Endpoint{Network: "tcp", Address: address},
		TLS:       ServerTLS{Insecure: true, Version: TLS13},
		Auth:      Auth{Type: AuthNone},
		Keepalive: defaultKeepalive(),
	}
}

// defaultKeepalive notices a dead peer within half a minute (protocol X8).
func defaultKeepalive() Keepalive {
	return Keepalive{Time: 20 * time.Second, Timeout: 10 * time.Second}
}
