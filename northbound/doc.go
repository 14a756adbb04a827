// Package northbound is the operator API of one replica: gRPC lists of nodes,
// links, routes, segments and groups, what a node itself reports, changes of the
// topology and of the groups, and explanations of what works and what does not.
//
// A list is rendered from one view of the state and is linearizable: it holds
// everything that was acknowledged before the call. A caller that sends the
// metadata "slimcp-consistency: stale" gets what this replica has applied so
// far, which works without a leader too. Streamed lists are rendered row by row
// at the pace of their reader, so a long one needs no more memory than a short
// one.
//
// The lists of a node's own tables (ListConnections, ListNodeRoutes) are asked
// of the node for each call and never answered from what the control plane
// believes.
//
// A change is a command in the log and is answered when it is committed. Each one,
// made or refused, leaves a line in the log. One whose outcome is not known is
// answered with the code ABORTED: after any other error it was not made. A caller may
// give a change an id (metadata "slimcp-request-id") and send it again under that id:
// it is made once.
//
// Explanations (ClusterService) are computed from one view like lists, and put
// into plain words here rather than in a client, so that every client has the
// same.
//
// Any replica answers every call. Those that only the leader can answer travel one
// hop over the cluster port, with who asked for them; the others are answered from
// the replica's own copy of the state.
//
// Both generations of method names, Domain and Group, run the same handlers.
package northbound
