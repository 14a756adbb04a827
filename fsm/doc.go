// Package fsm is the replicated state of the control plane and the only place
// that decides about it: which node is a gateway, which link carries which name.
//
// A Store applies the commands of the Raft log in order. Apply is a
// deterministic function of the log alone: it reads no clock, no random source,
// no file and no map in Go's order. Time and seed come with each command,
// stamped by the leader.
//
// Reads go through a View, an immutable copy of the whole state at one log
// index. Taking one costs O(1), since the tables are copy-on-write B-trees, so
// a reader never waits for Apply and Apply never waits for a reader.
//
// Routes are computed, not stored (protocol N1): View derives them from names,
// trees and links. What is stored carries the log index of its last change as
// its revision; a node confirms an index, and a route is applied when its
// revision is not newer than that.
//
// docs/fsm.md explains the tables, the revisions and the invariants.
package fsm
