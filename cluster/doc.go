// Package cluster runs one Raft replica: it turns commands into log entries,
// hands committed entries to an fsm.Store and says who leads.
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
