package cluster

import (
	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/logging"
)

// libraryLevels are the levels of Raft's messages that sound worse than they are.
var libraryLevels = map[string]hclog.Level{
	// A connection ended, which it also does when a replica stops.
	"failed to decode incoming command": hclog.Debug,
	"failed to flush response":          hclog.Debug,
	// A replica that is new waits to be told what it is part of.
	"no known peers, aborting election":                                                                              hclog.Debug,
	"not part of stable configuration, aborting election":                                                            hclog.Debug,
	"pre-vote is disabled because it is not supported by the Transport":                                              hclog.Debug,
	"heartbeat timeout reached, not part of a stable configuration or a non-voter, not triggering a leader election": hclog.Debug,
}

// libraryLogger is Raft's logger. Raft tries again by itself, and logs each time: what
// an operator must act on is logged by the replica.
func libraryLogger(logger hclog.Logger) hclog.Logger {
	return logging.Library(logging.Limit(logger.Named("raft"), hclog.Info), libraryLevels)
}
