package cluster_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// blockedReader sends the beginning of a file and then nothing.
type blockedReader struct {
	began chan struct{}
	once  sync.Once
	ctx   context.Context
}

func (b *blockedReader) Read(p []byte) (int, error) {
	first := false
	b.once.Do(func() { first = true; close(b.began) })
	if first {
		return 1, nil
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

// A client that sends a snapshot and stops in the middle holds up no change of the
// members and no hand-over, and its file goes.
func TestRestoreThatIsNeverSentHoldsUpNothing(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a := e.replicas["a"]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := &blockedReader{began: make(chan struct{}), ctx: ctx}
	ended := make(chan error, 1)
	go func() {
		_, err := a.RestoreSnapshot(ctx, stuck, false)
		ended <- err
	}()
	<-stuck.began
	if _, err := a.RestoreSnapshot(t.Context(), strings.NewReader(""), false); !errors.Is(err, cluster.ErrMembership) {
		t.Errorf("another restore meanwhile: %v", err)
	}
	if err := a.Demote(t.Context(), "b"); err != nil {
		t.Errorf("a change meanwhile: %v", err)
	}
	if _, err := a.TransferLeadership(t.Context(), "c"); err != nil {
		t.Errorf("a hand-over meanwhile: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the restore ended with %v", err)
	}
	eventually(t, "its file is gone", func() bool {
		left, err := filepath.Glob(filepath.Join(e.dirs["a"], "*.tmp"))
		return err == nil && len(left) == 0
	})
}

// What a restore has left behind when its process died does not stay.
func TestStartRemovesWhatARestoreLeftBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, "restore-123.tmp")
	if err := os.WriteFile(left, []byte("half a snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, cluster.Options{DataDir: dir})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
