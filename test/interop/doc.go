// Package interop tests slim-cp against real SLIM data-plane nodes and
// applications, which come from npm (see package.json). The tests have the
// build tag "interop"; "make interop" installs what they need and runs them: the
// scenarios of one replica also with the nodes on the followers of three
// ("-args -followers").
package interop
