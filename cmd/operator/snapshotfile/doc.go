// Package snapshotfile keeps saved states in files.
package snapshotfile
