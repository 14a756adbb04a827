// Package dataplane holds the control side of a SLIM data-plane node: it
// registers with each of its control planes, obeys their commands, claims links,
// announces names and answers list requests just as the nodes in the field do,
// their faults included.
//
// A Node drives a Datapath. Network is an in-memory one that many nodes share,
// so that a whole fleet runs in one process and can be checked: Matrix sends a
// message from every group to every announced name along the tables that the
// nodes hold, and says where it arrived, how often, and where it went round in
// circles. What a control plane believes plays no part in that.
//
// Faults are switches on Node and Network: kill and restart, a cut stream or link
// (cut again and again it flaps), a stalled command loop, lost acknowledgements and
// claims, refused connections, routes forgotten without a word,
// subscriptions that the datapath does not answer. A node that is told
// to dial an endpoint that refuses, without a bound, is wedged until it answers.
package dataplane
