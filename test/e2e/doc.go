// Package e2e tests the built binaries as processes. The tests have the build
// tag "e2e"; "make e2e" runs them.
package e2e
