// Package interop tests slim-cp against real SLIM data-plane nodes and
// applications: of 2.x, from npm (package.json), and of 3.x, from PyPI
// (requirements.txt). The tests have the build tag "interop"; "make interop"
// installs what they need and runs them: with both releases in one fleet, then the
// scenarios of one replica with the nodes on the followers of three
// ("-args -followers -releases 3").
package interop
