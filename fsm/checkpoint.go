package fsm

// SetCheckpointHandler sets who is given the state at each Checkpoint command
// (protocol X4): the state after the command's whole entry, at the same index on
// every replica. The handler is called by the goroutine that applies and must not
// block: it hashes the snapshot elsewhere, or drops it if the last one is not
// hashed yet. Checkpoints that are replayed when a replica starts are handed out
// too. A nil handler takes none.
func (s *Store) SetCheckpointHandler(handler func(*Snapshot)) {
	if handler == nil {
		s.checkpoint.Store(nil)
		return
	}
	s.checkpoint.Store(&handler)
}

func (s *Store) handOutCheckpoint() {
	if handler := s.checkpoint.Load(); handler != nil {
		(*handler)(s.Capture())
	}
}
