package snapshotfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/slim-cp/slim-cp/fsm"
)

// Write makes the file at path out of what write writes, and says what it holds.
// The file is complete, checked and durable, or it is what it was before: it is
// written beside its place under the name path.tmp and moved there at the end.
func Write(path string, write func(io.Writer) error) (info fsm.SnapshotInfo, err error) {
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	info, err = fill(file, write)
	if err := errors.Join(err, file.Close()); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	if err := os.Rename(temporary, path); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return info, syncDir(filepath.Dir(path))
}

// fill writes a snapshot and reads it back: what cannot be restored must not pass
// for a backup.
func fill(file *os.File, write func(io.Writer) error) (fsm.SnapshotInfo, error) {
	if err := write(file); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	if err := file.Sync(); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return fsm.InspectSnapshot(file)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Inspect reads and checks the file at path, and says what it holds.
func Inspect(path string) (fsm.SnapshotInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer file.Close() // nothing was written
	info, err := fsm.InspectSnapshot(file)
	if err != nil {
		return fsm.SnapshotInfo{}, fmt.Errorf("%s: %w", path, err)
	}
	return info, nil
}
