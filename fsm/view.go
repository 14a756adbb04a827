package fsm

import "sync"

// View is the whole state at one log index. It is immutable and may be used by
// any number of goroutines for as long as they like; an old one keeps the
// memory of what has changed since.
type View struct {
	tables

	// recentGraph is made when a listing first needs it.
	recentOnce  sync.Once
	recentGraph *graphs
}

// Snapshot returns the view as a snapshot to be written.
func (v *View) Snapshot() *Snapshot { return &Snapshot{tables: v.tables} }
