// Package operator is the command tree with which people and programs ask a
// control plane for its state. Two programs share it: slim-cp, which speaks our
// words, and slimctl, which keeps the words, flags and tables that users of the
// upstream tool and their scripts know. What differs between the two is a
// Dialect; everything else is the same code.
//
// One file holds one noun (node, link, route, …) with all of its commands.
//
// Tables go to standard output. The json and yaml documents hold one list under
// the plural of the noun; field names and enum values are those of the
// northbound wire schema, in both dialects, so that one script serves both.
// Errors are one line on standard error. The exit code is 0 for done, 1 for
// failed and 2 for wrong usage.
package operator
