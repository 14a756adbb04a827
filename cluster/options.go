package cluster

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// defaultDeadline bounds a call whose context has no deadline.
	defaultDeadline = 10 * time.Second
	// defaultSnapshotThreshold is the number of entries after a snapshot that
	// makes the next one due.
	defaultSnapshotThreshold = 8192
	// snapshotInterval is how often raft looks whether a snapshot is due; it
	// draws between one and two of it.
	snapshotInterval = 30 * time.Second
	// trailingLogs entries stay in the log after a snapshot (protocol X6). With
	// few of them a follower can be sent snapshots for ever (hashicorp/raft#697).
	trailingLogs = 100_000
	// trailingLogsInMemory entries stay in an in-memory log: nobody will ever
	// read them.
	trailingLogsInMemory = 1024
	// retainedSnapshots are kept in the data directory.
	retainedSnapshots = 2
	// maxAppendEntries bounds entries in one group commit.
	maxAppendEntries = 256
	// cachedEntries of the log are kept in memory for the other replicas.
	cachedEntries = 256
	// commitTimeout bounds how late followers learn of the last commit when
	// nothing follows it.
	commitTimeout = 20 * time.Millisecond
	// minTiming is the library's lower bound of each of its timeouts.
	minTiming = 5 * time.Millisecond
	// storeLimit is how long one write to the disk may take before the replica
	// counts as failed.
	storeLimit = 10 * time.Second
)

// Timings are Raft's timeouts, each at least 5 ms. For replicas in one region
// 500, 500 and 400 ms are a good choice.
type Timings struct {
	// Heartbeat is how long a follower waits for its leader; it draws between
	// one and two of it.
	Heartbeat time.Duration
	// Election is a candidate's retry; at least Heartbeat.
	Election time.Duration
	// LeaderLease is how long a leader goes on without a quorum; at most
	// Heartbeat.
	LeaderLease time.Duration
}

// loneTimings are a lone replica's: nobody else can win its election, so it
// need not wait long before it holds it.
var loneTimings = Timings{
	Heartbeat:   100 * time.Millisecond,
	Election:    100 * time.Millisecond,
	LeaderLease: 100 * time.Millisecond,
}

// peerTimings are good for replicas in one region.
var peerTimings = Timings{
	Heartbeat:   500 * time.Millisecond,
	Election:    500 * time.Millisecond,
	LeaderLease: 400 * time.Millisecond,
}

// Options configure a replica.
type Options struct {
	// Name is the operator's name of the replica: up to 63 letters, digits, dots,
	// hyphens and underscores. The replica id is drawn from it once.
	Name string
	// Version of the binary, for people.
	Version string
	// DataDir holds the log, the snapshots and the identity. Empty: everything
	// is in memory and lost when the process ends.
	DataDir string
	// Timings default to short ones for a lone replica, which has no rival, and
	// to 500, 500 and 400 ms for one of several.
	Timings Timings
	// Peers make the replica one of several. Nil: it is alone.
	Peers *Peers
	// SnapshotThreshold is the number of log entries between snapshots, 8192 if
	// it is 0.
	SnapshotThreshold uint64
	// MaxLogBytes bounds the entries of the log together (protocol X6). 0 stands for
	// 256 MiB, or for 64 MiB in memory; less than 32 MiB is refused.
	MaxLogBytes uint64
	// Now is the clock that stamps commands (protocol D6), time.Now if nil.
	Now func() time.Time

	// Set by tests only.
	wrapLogs   func(raft.LogStore) raft.LogStore
	wrapStable func(raft.StableStore) raft.StableStore
	// wrapTransport is for replicas of a cluster.
	wrapTransport func(peerTransport) peerTransport
	trailingLogs  uint64
	maxLogBytes   uint64 // if not 0, instead of MaxLogBytes
	// logSizePeriod of the look at the log's size.
	logSizePeriod time.Duration
	// checkpointPeriod of the comparison of states.
	checkpointPeriod time.Duration
	// remedies that tests switch off, to see the fault that each is for.
	without remedies
}

// remedies are what keeps public faults of the library away; true switches one
// off. docs/failures.md names the faults.
type remedies struct {
	mainLoopHeartbeats bool // B-02
	singleFlight       bool // B-01
	readConfirmation   bool // B-10, B-13
}

var replicaName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

var replicaID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}-[0-9a-f]{8}$`)

// withDefaults returns the options with all defaults filled in, or an error
// that names the option, its value and what is accepted.
func (o Options) withDefaults() (Options, error) {
	if !replicaName.MatchString(o.Name) {
		return o, fmt.Errorf("replica name %q: must be 1 to 63 letters, digits, '.', '-' or '_' and start with a letter or digit", o.Name)
	}
	if o.Peers != nil {
		if err := o.withPeers(); err != nil {
			return o, err
		}
	}
	if o.Timings == (Timings{}) {
		o.Timings = loneTimings
		if o.Peers != nil {
			o.Timings = peerTimings
		}
	}
	if t := o.Timings; t.LeaderLease < minTiming || t.Heartbeat < t.LeaderLease || t.Election < t.Heartbeat {
		return o, fmt.Errorf("raft timings heartbeat %s, election %s, leader lease %s: must be %s <= lease <= heartbeat <= election",
			t.Heartbeat, t.Election, t.LeaderLease, minTiming)
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = defaultSnapshotThreshold
	}
	if o.checkpointPeriod == 0 {
		o.checkpointPeriod = checkpointPeriod
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := o.boundLogBytes(); err != nil {
		return o, err
	}
	if o.trailingLogs == 0 {
		o.trailingLogs = trailingLogs
		if o.DataDir == "" {
			o.trailingLogs = trailingLogsInMemory
		}
	}
	return o, nil
}

func (o *Options) boundLogBytes() error {
	if o.logSizePeriod == 0 {
		o.logSizePeriod = logSizePeriod
	}
	switch {
	case o.maxLogBytes != 0:
		o.MaxLogBytes = o.maxLogBytes
	case o.MaxLogBytes == 0 && o.DataDir == "":
		o.MaxLogBytes = defaultMaxLogBytesInMemory
	case o.MaxLogBytes == 0:
		o.MaxLogBytes = defaultMaxLogBytes
	case o.MaxLogBytes < minMaxLogBytes:
		return fmt.Errorf("max log bytes %d: must be at least %d", o.MaxLogBytes, minMaxLogBytes)
	}
	return nil
}

// withPeers checks what makes the replica one of several.
func (o Options) withPeers() error {
	host, port, err := net.SplitHostPort(o.Peers.Advertise)
	switch {
	case err != nil || host == "" || port == "" || port == "0":
		return fmt.Errorf("advertised address %q: must be HOST:PORT", o.Peers.Advertise)
	case net.ParseIP(host) != nil && net.ParseIP(host).IsUnspecified():
		return fmt.Errorf("advertised address %q: must be one that the other replicas can reach", o.Peers.Advertise)
	case o.DataDir == "":
		return fmt.Errorf("a replica of a cluster needs a data directory (protocol X6)")
	case o.Peers.Listener == nil:
		return errors.New("a replica of a cluster needs a listener for the cluster port")
	}
	return nil
}
