// Package world runs a whole control plane and a simulated fleet inside a
// testing/synctest bubble: the replicated state, the southbound service over
// in-memory connections, the reconciler as the leader, and nodes that behave as
// those in the field do. Time passes only when everything waits, so minutes of
// back-off cost milliseconds.
//
// Only the log is not the real one: commands are applied at once, by a Replica
// with switches for what a log can do to its callers, such as a stall or a
// lost leadership.
//
// Defects compares what the nodes hold with what the topology and the live
// applications ask for. It computes that by itself: what the control plane
// believes is compared too, and never trusted.
package world
