// Package load is the load generator: it registers a fleet of simulated nodes
// with a complete replica in one process, and measures how long it takes until
// every message arrives and every route is confirmed, and with how much memory.
//
// "make bench" runs it at full size; the ordinary tests run a small fleet.
package load
