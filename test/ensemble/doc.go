// Package ensemble tests several replicas with the nodes of a fleet spread over
// them: in one process, with real Raft over loopback TCP, whose links can be cut or
// frozen, and with simulated nodes, whose delivery matrix tells whether traffic
// flows.
package ensemble
