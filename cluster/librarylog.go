package cluster

import (
	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/logging"
)

// libraryLevels are the levels of the libraries' messages that sound worse than they
// are, or say again what another line says.
var libraryLevels = map[string]hclog.Level{
	// A connection ended, which it also does when a replica stops.
	"failed to decode incoming command": hclog.Debug,
	"failed to flush response":          hclog.Debug,
	// A replica that joins has none of the log.
	"appendEntries rejected, sending older logs": hclog.Info,
	// An election begins; while none can be won it begins again and again, and the
	// replica says why.
	"heartbeat timeout reached, starting election":             hclog.Info,
	"entering candidate state":                                 hclog.Debug,
	"Election timeout reached, restarting election":            hclog.Debug,
	"pre-vote campaign failed, waiting for election timeout":   hclog.Debug,
	"Failed to reconcile current state with the desired state": hclog.Debug, // behind the reason
	// A replica that is new waits to be told what it is part of.
	"no known peers, aborting election":                                                                              hclog.Debug,
	"not part of stable configuration, aborting election":                                                            hclog.Debug,
	"pre-vote is disabled because it is not supported by the Transport":                                              hclog.Debug,
	"heartbeat timeout reached, not part of a stable configuration or a non-voter, not triggering a leader election": hclog.Debug,
}

// libraryLogger is the logger of Raft or of its autopilot. They try again by themselves,
// and log each time: what an operator must act on is logged by the replica.
func libraryLogger(logger hclog.Logger) hclog.Logger {
	return logging.Library(logging.LimitTo(logging.Limit(logger, hclog.Info), hclog.Warn, 1), libraryLevels)
}
