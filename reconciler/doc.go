// Package reconciler brings every node to the state that the fsm wants. It runs
// on the leader only.
//
// Two work queues, one for links and one for routes, say which node to look at.
// A driver for each node does the looking (protocol C1): it knows what the node
// holds (its mirror), sends the difference to what the view wants, one command
// at a time, and reports the outcome to the log. A worker never waits for a
// node: the answer queues the node again.
//
// Beside the drivers it keeps the clocks of a leadership: when a node without a
// session departs (protocol D), when an unclaimed link is looked at and when it
// is replaced (protocol L2), when a failed link is dialled again (protocol
// C11), when tombstones go (protocol N9).
//
// Everything here is a cache of the state: it is made when a leadership starts
// and dropped when it ends. Every proposal carries the term of the leadership,
// so that one decided under an old leadership changes nothing (protocol C14).
//
// docs/reconciler.md explains the driver.
package reconciler
