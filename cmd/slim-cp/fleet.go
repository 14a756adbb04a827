package main

import (
	"github.com/slim-cp/slim-cp/cmd/operator/fleetconfig"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fleetConfig is the part of a replica's file that all replicas work by
// (protocol T1).
func fleetConfig(settings *config.Config) *slimcppb.FleetConfig {
	return fleetconfig.FromSettings(settings)
}
