package snapshotfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slim-cp/slim-cp/fsm"
)

// Write makes the file at path out of what write writes, and says what it holds.
// The file is complete, checked and durable, or it is what it was before: it is
// written beside its place under a name that nobody can guess, and moved there at the
// end, over a link and never through one. What is there and is no regular file, such as
// a pipe, is written to.
func Write(path string, write func(io.Writer) error) (info fsm.SnapshotInfo, err error) {
	if there, err := os.Stat(path); err == nil && !there.Mode().IsRegular() {
		return writeThrough(path, write)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600, O_EXCL
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Path = path // the other name tells nobody anything
	}
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	info, err = fill(file, write)
	if err := errors.Join(err, file.Close()); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return info, syncDir(filepath.Dir(path))
}

func writeThrough(path string, write func(io.Writer) error) (fsm.SnapshotInfo, error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	info, err := WriteTo(file, write)
	return info, errors.Join(err, file.Close())
}

// WriteTo passes on what write writes, checks it meanwhile, and says what it holds.
// After an error a part of it may have been passed on.
func WriteTo(out io.Writer, write func(io.Writer) error) (fsm.SnapshotInfo, error) {
	copied, tee := io.Pipe()
	type judgement struct {
		info fsm.SnapshotInfo
		err  error
	}
	judged := make(chan judgement, 1)
	go func() {
		info, err := fsm.InspectSnapshot(copied)
		_, _ = io.Copy(io.Discard, copied) // what is wrong must not hold up the writer
		judged <- judgement{info, err}
	}()
	err := write(io.MultiWriter(out, tee))
	_ = tee.CloseWithError(err) // nil: the end
	result := <-judged
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	return result.info, result.err
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
