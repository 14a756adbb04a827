package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func cluster(to **Cluster) decode {
	return func(v value) {
		c := defaultCluster()
		found := v.object(fields{
			"name":             replicaName(&c.Name),
			"data_dir":         str(&c.DataDir, "the path of a directory"),
			"endpoint":         endpoint(&c.Endpoint),
			"advertise":        hostPort(&c.Advertise),
			"insecure":         boolean(&c.Insecure),
			"tls":              optional(func(v value) { serverTLS(&c.TLS, v, fields{"peer_identity": optional(peerIdentity(&c.PeerIdentity))}) }),
			"bootstrap_expect": integer(&c.BootstrapExpect, 0, math.MaxInt32),
			"join":             hostPorts(&c.Join),
			"raft":             optional(raftTimes(&c.Raft)),
			"autopilot":        optional(autopilot(&c.Autopilot)),
			"snapshots":        optional(snapshots(&c.Snapshots)),
		})
		*to = c
		if !found.valid {
			return
		}
		found.require("data_dir", "the path of a directory")
		found.checkClusterPort(c)
		found.checkClusterTLS(c)
		if c.BootstrapExpect > 0 && len(c.Join) == 0 && !found.failedBelow("join") {
			found.failAt("bootstrap_expect", "no join list: accepted: 0, or the number of replicas with their addresses in join")
		}
		if c.Snapshots.Path == "" && c.DataDir != "" {
			c.Snapshots.Path = filepath.Join(c.DataDir, "saved")
		}
	}
}

// peerIdentity decodes how a replica's certificate is bound to its name.
func peerIdentity(to *PeerIdentity) decode {
	return func(v value) {
		v.object(fields{
			"mode":  choice(&to.Mode, map[string]IdentityMode{"require": IdentityRequire, "warn": IdentityWarn, "off": IdentityOff}),
			"names": optional(identityNames(&to.Names)),
		})
	}
}

func identityNames(to *[]string) decode {
	return func(v value) {
		list := []string{}
		v.list("a list of DNS names and URIs, with {name} for the name of the replica", func(item value) {
			text, _ := item.text()
			if text == "" || len(text) > 255 || strings.Contains(text, "*") {
				item.refuse("a DNS name or a URI without wildcards, with {name} for the name of the replica", true)
				return
			}
			list = append(list, text)
		})
		if len(list) == 0 {
			v.refuse("at least one name; {name} is the default", false)
		}
		*to = list
	}
}

// replicaName decodes the name that a replica's id begins with.
func replicaName(to *string) decode {
	return func(v value) {
		text, _ := v.text()
		if !validReplicaName.MatchString(text) {
			v.refuse("1 to 63 letters, digits, dots, hyphens and underscores, a letter or digit first", true)
			return
		}
		*to = text
	}
}

var validReplicaName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

const acceptedHostPort = "HOST:PORT"

// hostPort decodes an address to connect to. Names stay names.
func hostPort(to *string) decode {
	return func(v value) {
		text, _ := v.text()
		host, port, err := net.SplitHostPort(text)
		if err != nil || !validHost(host) || !validPort(port) || strings.Trim(port, "0") == "" {
			v.refuse(acceptedHostPort, true)
			return
		}
		*to = text
	}
}

func hostPorts(to *[]string) decode {
	return func(v value) {
		list := []string{}
		v.list("a list of "+acceptedHostPort, func(item value) {
			var address string
			hostPort(&address)(item)
			list = append(list, address)
		})
		*to = list
	}
}

// checkClusterPort refuses a port that the other replicas could not reach, and
// fills in how they do.
func (o object) checkClusterPort(c *Cluster) {
	const accepted = "accepted: " + acceptedHostPort + " at which the other replicas reach this one"
	switch {
	case o.failedBelow("endpoint") || o.failedBelow("advertise"):
	case c.Endpoint.Network != "tcp":
		o.failAt("endpoint", "the cluster port is no unix socket: accepted: IP:PORT, [IPv6]:PORT or HOST:PORT")
	case c.Advertise == "" && isUnspecified(c.Endpoint.Address):
		o.failAt("advertise", "missing, and the endpoint "+c.Endpoint.Address+" is every address of this host: "+accepted)
	case c.Advertise == "":
		c.Advertise = c.Endpoint.Address
	case isUnspecified(c.Advertise):
		o.failAt("advertise", strconv.Quote(c.Advertise)+" is every address of a host: "+accepted)
	}
}

// isUnspecified reports whether an address stands for all of a host's, or has no
// fixed port.
func isUnspecified(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return true
	}
	parsed, err := netip.ParseAddr(host)
	return err == nil && parsed.IsUnspecified() || strings.Trim(port, "0") == ""
}

// checkClusterTLS refuses a cluster port that is neither mutual TLS nor plaintext
// by the operator's own word.
func (o object) checkClusterTLS(c *Cluster) {
	key := keyPath(o.path, "tls")
	insecure := c.Insecure || c.TLS.Insecure
	c.Insecure, c.TLS.Insecure = insecure, insecure
	certified, verified := c.TLS.Source.Type != SourceNone, c.TLS.ClientCA.Type != SourceNone
	switch {
	case insecure:
		if certified || verified {
			o.keys["tls"].warn("the certificates are not used: insecure: true means plaintext")
		}
	case o.failedBelow("tls"):
	case !certified || !verified:
		o.failAt("tls", "the replicas prove themselves to each other: name a certificate and its authority, "+
			key+": {source: {type: file, cert: …, key: …}, client_ca: {type: file, path: …}}, or write "+
			keyPath(o.path, "insecure")+": true for plaintext")
	default:
		o.keys["tls"].refuseUnservedTLS(c.TLS)
	}
}

// checkDatabase refuses a second place for the state.
func (o object) checkDatabase(c *Cluster, d Database) {
	if c == nil || c.DataDir == "" || !o.has("database") || o.failedBelow("database") {
		return
	}
	accepted := fmt.Sprintf("accepted: {type: raft, path: %s}, or no such key", c.DataDir)
	switch {
	case d.Type == InMemory:
		o.failAt("database", "a replica of a cluster keeps its state in cluster.data_dir: "+accepted)
	case filepath.Clean(d.Path) != filepath.Clean(c.DataDir):
		o.failAt("database", "the state is in "+d.Path+" by this key, and in cluster.data_dir: "+accepted)
	}
}

func defaultCluster() *Cluster {
	return &Cluster{
		Endpoint: Endpoint{Network: "tcp", Address: defaultClusterAddress},
		TLS:      ServerTLS{Version: TLS13},

		PeerIdentity: PeerIdentity{Mode: IdentityWarn, Names: []string{"{name}"}},

		Raft: RaftTimes{
			HeartbeatTimeout:   500 * time.Millisecond,
			ElectionTimeout:    500 * time.Millisecond,
			LeaderLeaseTimeout: 400 * time.Millisecond,
			SnapshotThreshold:  8192,
			MaxLogBytes:        256 << 20,
		},
		Autopilot: Autopilot{StabilizationTime: 10 * time.Second, DeadServerCleanup: true, DeadAfter: time.Hour, MinQuorum: 3},
		Snapshots: Snapshots{Interval: time.Hour, Retain: 24},
	}
}

// minRaftTime is the least that Raft takes for each of its timeouts.
const minRaftTime = 5 * time.Millisecond

func raftTimes(r *RaftTimes) decode {
	return func(v value) {
		found := v.object(fields{
			"heartbeat_timeout":    duration(&r.HeartbeatTimeout),
			"election_timeout":     duration(&r.ElectionTimeout),
			"leader_lease_timeout": duration(&r.LeaderLeaseTimeout),
			"snapshot_threshold":   integer(&r.SnapshotThreshold, 1, math.MaxInt32),
			"max_log_bytes":        integer(&r.MaxLogBytes, 32<<20, 1<<40),
		})
		if !found.has("election_timeout") {
			r.ElectionTimeout = max(r.ElectionTimeout, r.HeartbeatTimeout)
		}
		if !found.has("leader_lease_timeout") {
			r.LeaderLeaseTimeout = min(r.LeaderLeaseTimeout, r.HeartbeatTimeout)
		}
		if r.LeaderLeaseTimeout < minRaftTime || r.HeartbeatTimeout < r.LeaderLeaseTimeout || r.ElectionTimeout < r.HeartbeatTimeout {
			v.fail(fmt.Sprintf("leader_lease_timeout %v, heartbeat_timeout %v, election_timeout %v: accepted: %v or more, none less than the one before",
				r.LeaderLeaseTimeout, r.HeartbeatTimeout, r.ElectionTimeout, minRaftTime))
		}
	}
}

func autopilot(a *Autopilot) decode {
	return func(v value) {
		v.object(fields{
			"stabilization_time":  duration(&a.StabilizationTime),
			"dead_server_cleanup": boolean(&a.DeadServerCleanup),
			"dead_after":          duration(&a.DeadAfter),
			"min_quorum":          integer(&a.MinQuorum, 1, math.MaxInt32),
		})
	}
}

func snapshots(s *Snapshots) decode {
	return func(v value) {
		v.object(fields{
			"interval": duration(&s.Interval),
			"retain":   integer(&s.Retain, 1, math.MaxInt32),
			"path":     str(&s.Path, "the path of a directory"),
		})
	}
}

func admin(to **Admin) decode {
	return func(v value) {
		a := &Admin{Endpoint: Endpoint{Network: "tcp", Address: defaultAdminAddress}}
		v.object(fields{"endpoint": endpoint(&a.Endpoint)})
		*to = a
		v.refuseToServe("the admin port is", "no such key")
	}
}
