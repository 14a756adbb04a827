// Package cluster runs one Raft replica, alone or one of several: it turns
// commands into log entries, hands committed entries to an fsm.Store, says who
// leads, and keeps the membership.
//
// A replica that does not lead forwards proposals to the leader and asks it for
// read indexes. Replicas talk on one port (package peer).
//
// Propose returns what Apply answered, an error that means that the command was
// surely not proposed, or ErrUnknownOutcome. Read returns a view that holds
// every command that was answered before the read began; View returns what this
// replica has applied so far. Work that only a leader may do is registered with
// LeadWith and proposes with ProposeAsLeader, so that nothing decided under one
// leadership takes effect under another.
//
// The library underneath, hashicorp/raft, has public faults. Each one that this
// package steers around is named where it does so; docs/cluster.md lists them.
package cluster
