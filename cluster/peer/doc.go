// Package peer connects replicas: one port for the Raft library and for gRPC,
// and one hello at the start of every connection.
//
// The side that dials says which cluster it belongs to, who it is and what the
// connection is for; the other side answers with the same, or refuses in one
// line. Two clusters' logs look alike to Raft, so nothing of either protocol is
// read before that (protocol, design "Port"). With TLS the hello comes behind the
// handshake.
package peer
