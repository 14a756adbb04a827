// Package process runs programs for tests: it builds the project's binaries,
// starts processes with their output captured, waits for lines of that output,
// and ends what it started, by process id, when the test ends.
package process
