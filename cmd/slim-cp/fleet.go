package main

import (
	"time"

	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fleetConfig is the part of a replica's file that all replicas work by
// (protocol T1).
func fleetConfig(settings *config.Config) *slimcppb.FleetConfig {
	fleet := &slimcppb.FleetConfig{
		Topology:         &slimcppb.Topology{},
		RegistrationAuth: "none",
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
