package fsm

import (
	"context"
	"sync"
)

// maxFeedChanges bounds what a slow reader of a feed leaves waiting. Beyond it
// the feed says "anything may have changed", so nothing is lost.
const maxFeedChanges = 100_000

// Changes says what a run of entries changed, by key, each at least once.
type Changes struct {
	// All: anything may have changed; the other fields are empty.
	All bool
	// Names whose announcers changed, each with its announcing groups before
	// the change.
	Names []NameChange
	// Links that were made, changed or removed, with the nodes that held their
	// ends before.
	Links []LinkChange
	// Nodes whose record or sessions changed.
	Nodes []string
	// Trees: paths between groups may have changed.
	Trees bool
	// Fleet: the fleet configuration changed.
	Fleet bool
	// Doubts are nodes of which a withdrawal waits for an audit (protocol N7).
	Doubts []string
	// Suspects are nodes that hinted at a lost link (protocol N7).
	Suspects []string
	// Forgotten are names that nodes withdrew, announced or not: a node that
	// sends a withdrawal can no longer delete its own routes of that name
	// (protocol N6).
	Forgotten []NodeName
	// Disputes are links whose end another node claims (protocol L2).
	Disputes []string
}

// NameChange is a change of a name's announcers.
type NameChange struct {
	Name         Name
	GroupsBefore []string
}

// NodeName is a name at a node.
type NodeName struct {
	NodeID string
	Name   Name
}

// LinkChange is a change of a link.
type LinkChange struct {
	LinkID string
	// Before is nil for a new link.
	Before *Link
}

// changeSet collects changes while entries are applied.
type changeSet = Changes

// Feed is a reader's queue of changes. Only the newest view is kept: changes
// of several entries merge while the reader is busy.
type Feed struct {
	store *Store

	mu      sync.Mutex
	changes Changes
	view    *View
	ready   chan struct{} // holds one token while there is something to read
}

// Subscribe returns a feed whose first batch says that anything may have
// changed. Close it when done.
func (s *Store) Subscribe() *Feed {
	feed := &Feed{store: s, ready: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds[feed] = struct{}{}
	feed.push(nil, s.View())
	return feed
}

// Close ends the feed. It may be called more than once.
func (f *Feed) Close() {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	delete(f.store.feeds, f)
}

// Next returns what changed since the last call and the view after it. Every
// change up to the view's index has been handed out. It blocks until there is a
// change or the context ends.
func (f *Feed) Next(ctx context.Context) (Changes, *View, error) {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return Changes{}, nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changes, view := f.changes, f.view
	f.changes = Changes{}
	return changes, view, nil
}

// push never blocks; the store's lock is held.
func (f *Feed) push(changes *changeSet, view *View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view = view
	f.changes.merge(changes)
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (c *Changes) merge(more *changeSet) {
	if more == nil || more.All || c.size()+more.size() > maxFeedChanges {
		// Hints are not in the state: they are kept.
		*c = Changes{All: true, Fleet: true, Suspects: c.Suspects, Doubts: c.Doubts, Disputes: c.Disputes, Forgotten: c.Forgotten}
	}
	if more == nil {
		return
	}
	if c.size() < maxFeedChanges {
		c.Suspects = append(c.Suspects, more.Suspects...)
		c.Doubts = append(c.Doubts, more.Doubts...)
		c.Forgotten = append(c.Forgotten, more.Forgotten...)
		c.Disputes = append(c.Disputes, more.Disputes...)
	}
	if c.All {
		return
	}
	c.Names = append(c.Names, more.Names...)
	c.Links = append(c.Links, more.Links...)
	c.Nodes = append(c.Nodes, more.Nodes...)
	c.Trees = c.Trees || more.Trees
	c.Fleet = c.Fleet || more.Fleet
}

func (c *Changes) size() int {
	return len(c.Names) + len(c.Links) + len(c.Nodes) + len(c.Suspects) + len(c.Doubts) + len(c.Forgotten) + len(c.Disputes)
}
