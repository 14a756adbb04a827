package config

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// config decodes the top level of a file.
func (v value) config(c *Config) {
	found := v.object(fields{
		"northbound":              listeners(&c.Northbound),
		"southbound":              listeners(&c.Southbound),
		"reconciler":              optional(reconciler(&c.Reconciler)),
		"database":                database(&c.Database),
		"tracing":                 optional(tracing(&c.Tracing)),
		"topology":                optional(topology(&c.Topology, &c.RegistrationAuth)),
		"enforce_node_connection": optional(enforcedConnection(&c.EnforceNodeConnection)),
		"sessions":                optional(sessions(&c.Sessions)),
		"limits":                  optional(limits(&c.Limits)),
		"cluster":                 optional(cluster(&c.Cluster)),
		"admin":                   optional(admin(&c.Admin)),
	})
	found.checkDatabase(c.Cluster, c.Database)
	for _, api := range []struct {
		key       string
		listeners []Listener
	}{{"northbound", c.Northbound}, {"southbound", c.Southbound}} {
		if !found.has(api.key) || found.keys[api.key].isNull() {
			v.claimDefault(api.key, api.listeners[0].Endpoint)
		}
	}
}

// claimDefault makes sure that no listener of the file has the endpoint that a
// listener gets which the file does not mention.
func (v value) claimDefault(key string, e Endpoint) {
	identity, _ := e.identity()
	if first, taken := v.endpoints[identity]; taken {
		first.Text = fmt.Sprintf("value %q: the same endpoint as %s (the default): accepted: each endpoint once", e.String(), key)
		v.problems = append(v.problems, first)
	}
}

func reconciler(r *Reconciler) decode {
	return func(v value) {
		v.object(fields{
			"max_requeues":            integer(&r.MaxRequeues, 0, math.MaxInt32),
			"base_retry_delay":        duration(&r.BaseRetryDelay),
			"reconcile_period":        duration(&r.ReconcilePeriod),
			"enable_orphan_detection": boolean(&r.EnableOrphanDetection),
			"workers":                 integer(&r.Workers, 0, math.MaxInt32),
		})
		r.Workers = max(r.Workers, 1)
	}
}

// database decodes the store. null is refused: who writes the key wants to say
// where the state is.
func database(d *Database) decode {
	return func(v value) {
		var path string
		kind, found := v.variant(map[string]fields{
			"in_memory": {},
			"inmemory":  {}, // what upstream's chart documents
			"raft":      {"path": str(&path, "the path of a directory")},
			"sqlite":    {"path": str(&path, "the path of a file")},
		})
		switch kind {
		case "raft":
			found.require("path", "the path of a directory")
			*d = Database{Type: Raft, Path: path}
		case "sqlite":
			found.require("path", "the path of a file")
			*d = Database{Type: Raft, Path: path + ".d", SQLitePath: path}
		}
	}
}

func tracing(t *Tracing) decode {
	return func(v value) {
		var filters []string
		v.strictObject(fields{
			"log_level":            logLevel(&t.LogLevel),
			"display_thread_names": boolean(&t.DisplayThreadNames),
			"display_thread_ids":   boolean(&t.DisplayThreadIDs),
			"filters":              strs(&filters), // names of upstream's crates
			"opentelemetry":        optional(openTelemetry),
		})
	}
}

// logLevel takes an unknown word for info, as upstream does.
func logLevel(to *string) decode {
	return func(v value) {
		const accepted = "trace, debug, info, warn, error"
		text, ok := v.text()
		level := strings.ToLower(text)
		switch {
		case !ok:
			v.refuse(accepted, true)
		case level == "trace", level == "debug", level == "info", level == "warn", level == "error":
			*to = level
		default:
			v.warn(fmt.Sprintf("value %s: accepted: %s; info is used", v.show(), accepted))
		}
	}
}

func openTelemetry(v value) {
	var enabled bool
	var text string
	var seconds int
	found := v.strictObject(fields{
		"enabled":               boolean(&enabled),
		"grpc":                  ignore,
		"service_name":          anyStr(&text),
		"service_version":       anyStr(&text),
		"environment":           anyStr(&text),
		"metrics_interval_secs": integer(&seconds, 0, math.MaxInt32),
	})
	if enabled {
		found.keys["enabled"].warn("ignored: traces are not exported")
	}
}

func enforcedConnection(e *EnforceNodeConnection) decode {
	return func(v value) {
		var backoff, timeout uint32
		found := v.object(fields{
			"backoff": optional(integer(&backoff, 0, math.MaxUint32)),
			"timeout": optional(integer(&timeout, 0, math.MaxUint32)),
			"keepalive": optional(func(v value) {
				e.Keepalive = nodeKeepalive(v)
			}),
		})
		if found.given("backoff") {
			e.Backoff = &backoff
		}
		if found.given("timeout") {
			e.Timeout = &timeout
		}
	}
}

func nodeKeepalive(v value) *NodeKeepalive {
	k := &NodeKeepalive{TCPKeepalive: time.Minute, HTTP2Keepalive: time.Minute, Timeout: 10 * time.Second}
	v.object(fields{
		"tcp_keepalive":         duration(&k.TCPKeepalive),
		"http2_keepalive":       duration(&k.HTTP2Keepalive),
		"timeout":               duration(&k.Timeout),
		"keep_alive_while_idle": boolean(&k.KeepAliveWhileIdle),
	})
	return k
}

func sessions(s *Sessions) decode {
	return func(v value) {
		v.object(fields{
			"failover_grace":      duration(&s.FailoverGrace),
			"departure_grace":     duration(&s.DepartureGrace),
			"replica_grace":       duration(&s.ReplicaGrace),
			"detached_grace":      duration(&s.DetachedGrace),
			"node_retention":      duration(&s.NodeRetention),
			"tombstone_retention": duration(&s.TombstoneRetention),
			"shutdown_delay":      duration(&s.ShutdownDelay),
		})
	}
}

func limits(l *Limits) decode {
	return func(v value) {
		size := l.MaxMessageSize / mebibyte
		v.object(fields{
			"max_message_size": integer(&size, minMessageSize, maxMessageSize),
		})
		l.MaxMessageSize = size * mebibyte
	}
}

// Bounds of max_message_size in MiB: a node may send 4 (upstream's own limit),
// and gRPC cannot receive more than 2 GiB.
const (
	minMessageSize = 4
	maxMessageSize = 2047
)
