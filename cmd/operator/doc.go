// Package operator is the command tree with which people and programs ask a
// control plane for its state and change it. Two programs share it: slim-cp,
// which speaks our words, and slimctl, which keeps the words, flags and tables
// that users of the upstream tool and their scripts know. What differs between
// the two is a Dialect; everything else is the same code. What only our own
// control plane answers (explain, status, topology) is in slim-cp alone.
//
// One file holds one noun (node, link, route, …) with all of its commands.
//
// Tables and sentences go to standard output. The json and yaml documents hold
// one list under the plural of the noun, or for other answers the message as it
// is; field names and enum values are those of the northbound wire schema, in
// both dialects, so that one script serves both. Errors are one line on standard
// error. The exit code is 0 for done, 1 for failed, 2 for wrong usage, 3 for a
// change that may or may not have been made or a join that is not complete, and 4
// for a fleet that has not converged.
package operator
