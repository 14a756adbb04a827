package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
)

// restoreTimeout bounds the hand-over of a verified snapshot to Raft and its way
// to a quorum.
const restoreTimeout = time.Minute

const (
	// receiveTimeout bounds the way of a snapshot from the operator to the leader's
	// disk.
	receiveTimeout = 10 * time.Minute
	// maxRestoreBytes bounds what an operator may put on the disk of the log.
	maxRestoreBytes = 4 << 30
	// maxRestoreBytesInMemory bounds it where there is no disk. The memory holds it
	// three times.
	maxRestoreBytesInMemory = 256 << 20
	// temporaryFiles are those of a restore, left behind by one that was cut off.
	temporaryFiles = "restore-*.tmp"
)

// SaveSnapshot writes the state to w, with everything that was answered before
// the call. Any replica can do it.
func (r *Replica) SaveSnapshot(ctx context.Context, w io.Writer) (fsm.SnapshotInfo, error) {
	view, err := r.readSoon(ctx)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return writeSnapshot(view, w)
}

// SaveStaleSnapshot writes what this replica has applied, which may be old and needs no
// leader: one whose quorum is lost for good has nothing better.
func (r *Replica) SaveStaleSnapshot(w io.Writer) (fsm.SnapshotInfo, error) {
	view := r.store.View()
	if view.ClusterID() == "" {
		return fsm.SnapshotInfo{}, fmt.Errorf("%w: this replica has no state yet", ErrNoLeader)
	}
	return writeSnapshot(view, w)
}

func writeSnapshot(view *fsm.View, w io.Writer) (fsm.SnapshotInfo, error) {
	snapshot := view.Snapshot()
	if err := snapshot.Write(w); err != nil {
		return fsm.SnapshotInfo{}, fmt.Errorf("write the snapshot: %w", err)
	}
	return snapshot.Info(), nil
}

// readSoon is Read for a caller who has patience for what follows, not for a leader,
// and who is told before its own time is over.
func (r *Replica) readSoon(ctx context.Context) (*fsm.View, error) {
	limit := leaderPatience
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*4/5)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return r.Read(ctx)
}

// RestoreSnapshot makes a saved snapshot the state of the cluster (protocol X3).
// It is the leader's. The file is read to its end and checked first: a bad one
// changes nothing. Proposals under way have an unknown outcome. Sessions are
// registered again by the replicas that hold their streams. With force the
// snapshot may be another cluster's. One restore is received at a time.
func (r *Replica) RestoreSnapshot(ctx context.Context, file io.Reader, force bool) (fsm.SnapshotInfo, error) {
	leading, term := r.Leadership()
	if !leading {
		return fsm.SnapshotInfo{}, r.leads()
	}
	if !r.restoring.TryLock() {
		return fsm.SnapshotInfo{}, fmt.Errorf("%w: another restore is under way", ErrMembership)
	}
	defer r.restoring.Unlock()
	// An operator's network may be slow: it holds up nothing else.
	received, err := r.receive(ctx, file)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer discard(received)
	rewritten, err := r.newStagedFile()
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer discard(rewritten)
	if err := r.members.lock(ctx); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer r.members.unlock()
	// From here on nothing of this leadership is proposed: what is read for the
	// present must be the last word of its generation.
	if !r.leadership.suspend(term) {
		return fsm.SnapshotInfo{}, ErrNoLeader
	}
	defer r.leadership.resume()
	r.proposer.settle()
	if err := r.barrier(ctx); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	info, err := fsm.RewriteSnapshot(rewritten, received, r.store.View(), fsm.RestoreOptions{Now: r.options.Now(), Force: force})
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return info, r.install(rewritten, info)
}

// receive is stage for a reader that may block for ever.
func (r *Replica) receive(ctx context.Context, from io.Reader) (stagedFile, error) {
	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()
	var file stagedFile
	err := r.calls.await(ctx, func() (err error) {
		file, err = r.stage(ctx, from)
		if err == nil && ctx.Err() != nil { // nobody waits for it any more
			discard(file)
			err = ctx.Err()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// stage copies what an operator sends to a file, since Raft's main loop reads it
// (hashicorp/raft holds writes up meanwhile), and verifies it.
func (r *Replica) stage(ctx context.Context, from io.Reader) (stagedFile, error) {
	staged, err := r.newStagedFile()
	if err != nil {
		return nil, err
	}
	limit := int64(maxRestoreBytes)
	if r.options.DataDir == "" {
		limit = maxRestoreBytesInMemory
	}
	size, err := io.Copy(staged, io.LimitReader(readerWithContext{ctx: ctx, reader: from}, limit+1))
	if err == nil && size > limit {
		err = fmt.Errorf("%w: longer than %d bytes", fsm.ErrSnapshot, limit)
	}
	if err == nil {
		_, err = staged.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = fsm.InspectSnapshot(staged)
	}
	if err == nil {
		_, err = staged.Seek(0, io.SeekStart)
	}
	if err != nil {
		discard(staged)
		return nil, err
	}
	return staged, nil
}

// removeTemporary removes what a restore left behind that was cut off by the end of
// its process.
func removeTemporary(dataDir string) error {
	left, err := filepath.Glob(filepath.Join(dataDir, temporaryFiles))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// install hands a rewritten snapshot to Raft. It goes on when its caller is gone:
// work must not begin again before it is known whether the restore is the state. It
// ends when the library has it on a majority or leads no more.
func (r *Replica) install(file stagedFile, info fsm.SnapshotInfo) error {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r.logger.Info("restoring a snapshot", "generation", info.Generation, "index", info.Index, "bytes", size)
	return r.calls.await(context.Background(), func() error {
		return r.installMarked(&raft.SnapshotMeta{
			Version: raft.SnapshotVersionMax, Index: info.Index, Term: info.Term, Size: size,
		}, file, info.Generation)
	})
}

// installMarked returns when a quorum has the restored state. When this replica has
// it and whether the others get it is open, it stops: at its next start the restore
// is dropped, unless the others have it (see openRestore).
func (r *Replica) installMarked(meta *raft.SnapshotMeta, file io.Reader, generation uint64) error {
	if err := r.markRestore(); err != nil {
		return err
	}
	if memory, ok := r.storage.snapshots.(*memorySnapshots); ok {
		memory.keepRestored(true)
		defer memory.keepRestored(false)
	}
	err := r.raft.Restore(meta, file, restoreTimeout)
	if err != nil && r.store.View().Generation() == generation {
		r.fail(fmt.Errorf("%w: %w", ErrRestoreOpen, err))
		return &UnknownOutcomeError{Cause: fmt.Errorf("restore: %w", err)}
	}
	if unmarked := unmarkRestore(r.options.DataDir); unmarked != nil {
		r.fail(fmt.Errorf("%w: %w", ErrStoreFailed, unmarked))
	}
	if err != nil {
		return fmt.Errorf("%w: nothing was restored: %w", ErrNoLeader, err)
	}
	return nil
}

// readerWithContext fails once its context has ended.
type readerWithContext struct {
	ctx    context.Context
	reader io.Reader
}

func (r readerWithContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.reader.Read(p)
}
