package config

import (
	"math"
	"time"
)

func cluster(to **Cluster) decode {
	return func(v value) {
		c := defaultCluster()
		found := v.object(fields{
			"name":             str(&c.Name, "a name for this replica"),
			"data_dir":         str(&c.DataDir, "the path of a directory"),
			"endpoint":         endpoint(&c.Endpoint),
			"advertise":        str(&c.Advertise, "HOST:PORT"),
			"insecure":         boolean(&c.Insecure),
			"tls":              optional(func(v value) { serverTLS(&c.TLS, v) }),
			"bootstrap_expect": integer(&c.BootstrapExpect, 0, math.MaxInt32),
			"join":             strs(&c.Join),
			"raft":             optional(raftTimes(&c.Raft)),
			"autopilot":        optional(autopilot(&c.Autopilot)),
			"snapshots":        optional(snapshots(&c.Snapshots)),
		})
		found.require("data_dir", "the path of a directory")
		*to = c
		v.refuseToServe("a cluster of several replicas is", "no such key")
	}
}

func defaultCluster() *Cluster {
	return &Cluster{
		Endpoint: Endpoint{Network: "tcp", Address: defaultClusterAddress},
		TLS:      ServerTLS{Version: TLS13},
		Raft: RaftTimes{
			HeartbeatTimeout:   500 * time.Millisecond,
			ElectionTimeout:    500 * time.Millisecond,
			LeaderLeaseTimeout: 400 * time.Millisecond,
			SnapshotThreshold:  8192,
		},
		Autopilot: Autopilot{StabilizationTime: 10 * time.Second, DeadServerCleanup: true, MinQuorum: 3},
		Snapshots: Snapshots{Interval: time.Hour, Retain: 24},
	}
}

func raftTimes(r *RaftTimes) decode {
	return func(v value) {
		v.object(fields{
			"heartbeat_timeout":    duration(&r.HeartbeatTimeout),
			"election_timeout":     duration(&r.ElectionTimeout),
			"leader_lease_timeout": duration(&r.LeaderLeaseTimeout),
			"snapshot_threshold":   integer(&r.SnapshotThreshold, 1, math.MaxInt32),
		})
	}
}

func autopilot(a *Autopilot) decode {
	return func(v value) {
		v.object(fields{
			"stabilization_time":  duration(&a.StabilizationTime),
			"dead_server_cleanup": boolean(&a.DeadServerCleanup),
			"min_quorum":          integer(&a.MinQuorum, 1, math.MaxInt32),
		})
	}
}

func snapshots(s *Snapshots) decode {
	return func(v value) {
		v.object(fields{
			"interval": duration(&s.Interval),
			"retain":   integer(&s.Retain, 0, math.MaxInt32),
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
