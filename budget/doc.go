// Package budget owns what a process may spend on those who connect to it:
// descriptors, connections, and memory of requests that are not finished. The
// budgets follow from the limits of the process and are fixed when it starts.
//
// Limits of gRPC count bytes of one message on the wire. Here are those beyond:
// what a message costs once it is decoded (Codec), what connections cost together
// before they are known to be nodes (Connections), and what is set aside for the
// log, for files and for operators (Plan).
package budget
