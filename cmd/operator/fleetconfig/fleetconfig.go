package fleetconfig

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Load reads a configuration file and returns its fleet configuration, and what
// the file says in vain. It refuses a file with which no replica would start. The
// error may have several lines.
func Load(path string) (fleet *slimcppb.FleetConfig, warnings []string, err error) {
	settings, err := config.Load(path)
	if err != nil {
		return nil, nil, err
	}
	if problems := settings.Unserved(); len(problems) > 0 {
		lines := make([]string, len(problems))
		for i, problem := range problems {
			lines[i] = problem.String()
		}
		return nil, nil, errors.New(strings.Join(lines, "\n"))
	}
	return FromSettings(settings), settings.Warnings, nil
}

// FromSettings returns the part of a replica's settings that all replicas work
// by.
func FromSettings(settings *config.Config) *slimcppb.FleetConfig {
	fleet := &slimcppb.FleetConfig{
		Topology:         &slimcppb.Topology{SegmentsTemplate: settings.Topology.SegmentsTemplate},
		RegistrationAuth: string(settings.RegistrationAuth.Type),
		Graces: &slimcppb.Graces{
			FailoverMs:      inMilliseconds(settings.Sessions.FailoverGrace),
			DepartureMs:     inMilliseconds(settings.Sessions.DepartureGrace),
			ReplicaMs:       inMilliseconds(settings.Sessions.ReplicaGrace),
			DetachedMs:      inMilliseconds(settings.Sessions.DetachedGrace),
			TombstoneMs:     inMilliseconds(settings.Sessions.TombstoneRetention),
			NodeRetentionMs: inMilliseconds(settings.Sessions.NodeRetention),
		},
		EnforcedConnection: enforcedConnection(settings.EnforceNodeConnection),
	}
	for _, segment := range settings.Topology.Segments {
		converted := &slimcppb.Segment{Name: segment.Name}
		for _, link := range segment.Links {
			converted.Links = append(converted.Links, &slimcppb.Adjacency{Group: link.Group, Neighbors: link.Neighbors})
		}
		fleet.Topology.Segments = append(fleet.Topology.Segments, converted)
	}
	// In order, so that the same file always makes the same document.
	for _, group := range slices.Sorted(maps.Keys(settings.RegistrationAuth.Secrets)) {
		secret := settings.RegistrationAuth.Secrets[group]
		fleet.Secrets = append(fleet.Secrets, &slimcppb.GroupSecret{Group: group, Secret: []byte(secret.Reveal())})
	}
	return fleet
}

func enforcedConnection(settings config.EnforceNodeConnection) *slimcppb.EnforcedConnection {
	if settings.Backoff == nil && settings.Timeout == nil && settings.Keepalive == nil {
		return nil
	}
	enforced := &slimcppb.EnforcedConnection{TimeoutMs: settings.Timeout, BackoffMs: settings.Backoff}
	if keepalive := settings.Keepalive; keepalive != nil {
		enforced.Keepalive = &slimcppb.Keepalive{
			TcpKeepaliveMs:     inMilliseconds(keepalive.TCPKeepalive),
			Http2KeepaliveMs:   inMilliseconds(keepalive.HTTP2Keepalive),
			TimeoutMs:          inMilliseconds(keepalive.Timeout),
			KeepAliveWhileIdle: keepalive.KeepAliveWhileIdle,
		}
	}
	return enforced
}

func inMilliseconds(d time.Duration) uint64 { return uint64(d.Milliseconds()) }
