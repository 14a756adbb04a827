// Package dataplane holds the control side of a SLIM data-plane node: it
// registers with a control plane, obeys its commands, claims links, announces
// names and answers list requests just as the nodes in the field do, their
// faults included.
//
// A Node drives a Datapath. Network is an in-memory one that many nodes share,
// so that a whole fleet runs in one process and can be checked: Matrix sends a
// message from every group to every announced name along the tables that the
// nodes hold, and says where it arrived, how often, and where it went round in
// circles. What a control plane believes plays no part in that.
//
// Faults are switches on Node: kill and restart, a cut stream, a stalled
// command loop, lost acknowledgements and claims, refused connections.
package dataplane
