package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Snapshot writes the state to the snapshot store and shortens the log. It is
// not an error that there is nothing new to write. One snapshot is written at a
// time; when the context ends, or after 10 s without a deadline, the writing may
// still go on.
func (r *Replica) Snapshot(ctx context.Context) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	select {
	case r.snapshotting <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("another snapshot is being written: %w", ctx.Err())
	}
	err := r.calls.await(ctx, func() error {
		defer func() { <-r.snapshotting }()
		return r.snapshot()
	})
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// snapshot blocks until Raft has written a snapshot.
func (r *Replica) snapshot() error {
	if leading, _ := r.Leadership(); leading {
		// Raft refuses a snapshot while its last change of members is newer than
		// what the state has applied; a barrier moves the state past it.
		if err := r.raft.Barrier(enqueueTimeout).Error(); err != nil {
			return err
		}
	}
	return r.raft.Snapshot().Error()
}
