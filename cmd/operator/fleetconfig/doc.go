// Package fleetconfig makes the fleet configuration, by which all replicas work,
// out of what one replica's configuration file says (protocol T1).
package fleetconfig
