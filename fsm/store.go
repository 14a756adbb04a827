package fsm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// SchemaVersion is the newest schema of commands that this binary knows.
const SchemaVersion = 2

// Errors that Apply answers a command with. They are results like any other:
// every replica computes the same one.
var (
	ErrUnknownCommand  = errors.New("unknown command")
	ErrSchema          = errors.New("schema is newer than this binary")
	ErrNotInitialised  = errors.New("cluster is not initialised")
	ErrInitialised     = errors.New("cluster is initialised already")
	ErrStaleGeneration = errors.New("decided under another generation of the state")
	ErrStaleTerm       = errors.New("decided under another leadership")
	ErrStaleSequence   = errors.New("sequence number was passed already")
	ErrSessionEnded    = errors.New("session has ended")
	ErrUnknownSession  = errors.New("no such session")
	ErrUnknownNode     = errors.New("no such node")
	ErrUnknownLink     = errors.New("no such link")
	ErrInvalid         = errors.New("invalid command")
	ErrStale           = errors.New("the state has moved on")
)

// Result is what Apply answers one command with.
type Result struct {
	Err error
	// Index is the command's place in the log; of a command that was delivered
	// again under its request id, the place of the first (protocol X1).
	Index uint64
	// NodeID and Epoch answer RegisterNode.
	NodeID string
	Epoch  uint64
	// LinkID answers ReplaceLink: the id of the new link, if there is one.
	LinkID string
	// Repeated: the command was delivered again, and this is the first one's result.
	Repeated bool
}

// Store holds the state. Apply, Restore and Snapshot's start are called by one
// goroutine, the Raft library's; everything else may be called by any.
type Store struct {
	// state is owned by the goroutine that applies.
	state tables
	// fatal is set once an entry could not be understood: this binary must not
	// go on applying (protocol X5).
	fatal error
	// known is the newest schema that this binary knows.
	known uint32
	// linkBudget is entryLinkBudget; the same on every replica.
	linkBudget int
	// checkpoint takes the state at each Checkpoint; nil: nobody does.
	checkpoint atomic.Pointer[func(*Snapshot)]

	view atomic.Pointer[View]

	mu      sync.Mutex
	feeds   map[*Feed]struct{}
	applied chan struct{} // closed and replaced after each publication
}

// New returns a store with an empty state.
func New() *Store {
	s := &Store{
		state:      newTables(),
		known:      SchemaVersion,
		linkBudget: entryLinkBudget,
		feeds:      map[*Feed]struct{}{},
		applied:    make(chan struct{}),
	}
	s.publish(nil)
	return s
}

// View returns the state after the last published entry. It never blocks.
func (s *Store) View() *View { return s.view.Load() }

// WaitApplied returns once the entry at the index is applied and visible to
// View, or with the context's error.
func (s *Store) WaitApplied(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		applied := s.applied
		s.mu.Unlock()
		if s.View().Index() >= index {
			return nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Batch is a run of log entries that are applied together.
type Batch struct {
	Index uint64
	Term  uint64
	Entry *slimcppb.Entry
}

// Apply applies one entry of the log and publishes the state after it. The
// results are in the order of the entry's commands.
func (s *Store) Apply(index, term uint64, entry *slimcppb.Entry) []Result {
	return s.ApplyBatch([]Batch{{Index: index, Term: term, Entry: entry}})[0]
}

// ApplyBatch applies entries in order and publishes the state once, after the
// last. An error of a command is its result and changes nothing; Fatal reports
// an entry that this binary cannot apply.
func (s *Store) ApplyBatch(batch []Batch) [][]Result {
	results := make([][]Result, len(batch))
	changes := &changeSet{}
	for i, logged := range batch {
		results[i] = s.applyEntry(logged, changes)
	}
	s.publish(changes)
	return results
}

// Fatal returns why this binary cannot go on applying the log, nil if it can.
// The replica must stop: to skip a command would let its state diverge.
func (s *Store) Fatal() error { return s.fatal }

func (s *Store) applyEntry(logged Batch, changes *changeSet) []Result {
	results := make([]Result, len(logged.Entry.GetCommands()))
	checkpoint := false
	linkBudget := s.linkBudget
	for i, command := range logged.Entry.GetCommands() {
		if s.fatal != nil {
			results[i] = Result{Err: s.fatal, Index: logged.Index}
			continue
		}
		a := &applier{
			tables:     &s.state,
			changes:    changes,
			position:   Position{Index: logged.Index, Command: uint32(i)},
			term:       logged.Term,
			command:    command,
			known:      s.known,
			linkBudget: &linkBudget,
		}
		results[i] = a.apply()
		if results[i].Index == 0 { // not a result of long ago
			results[i].Index = logged.Index
		}
		checkpoint = checkpoint || a.checkpoint
		if errors.Is(results[i].Err, ErrSchema) || errors.Is(results[i].Err, ErrUnknownCommand) {
			s.fatal = results[i].Err
		}
	}
	if s.fatal != nil {
		return results
	}
	s.state.meta.Index, s.state.meta.Term = logged.Index, logged.Term
	if checkpoint {
		s.handOutCheckpoint()
	}
	return results
}

// publish makes the state visible to readers and hands the changes to the
// feeds. A nil change set stands for "anything may have changed".
func (s *Store) publish(changes *changeSet) {
	view := &View{tables: s.state.copy()}
	s.view.Store(view)
	s.mu.Lock()
	defer s.mu.Unlock()
	for feed := range s.feeds { // any order: feeds do not see each other
		feed.push(changes, view)
	}
	close(s.applied)
	s.applied = make(chan struct{})
}
