package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/bbolt"
)

const (
	// minCompactBytes of a log file are not worth a compaction below.
	minCompactBytes = 64 << 20
	// compactBatch bounds a transaction of the copy.
	compactBatch = 16 << 20
)

// compactLog copies a log file of which more than half is free: bbolt never gives
// back what a long log took once (hashicorp/consul#21875). The file is not open.
// An interrupted copy leaves the old file in place.
func compactLog(path string, minimum int64, logger hclog.Logger) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < minimum {
		return nil
	}
	if err != nil {
		return err
	}
	copied := path + ".compact"
	if err := os.Remove(copied); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	done, err := copyLog(copied, path)
	if err != nil || !done {
		return errors.Join(err, os.RemoveAll(copied))
	}
	if err := errors.Join(os.Rename(copied, path), syncDir(filepath.Dir(path))); err != nil {
		return err
	}
	after, err := os.Stat(path)
	if err == nil {
		logger.Info("compacted the log file", "before_bytes", info.Size(), "after_bytes", after.Size())
	}
	return err
}

// copyLog reports whether it made a copy: it does if more than half of the file is
// free.
func copyLog(to, from string) (done bool, err error) {
	defer func() {
		if reason := recover(); reason != nil { // bbolt's, over some damages
			done, err = false, damagedLog(from, reason)
		}
	}()
	options := *boltOptions()
	options.PreLoadFreelist = true
	source, err := bbolt.Open(from, 0o600, &options)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", from, err)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	stats := source.Stats()
	info, err := os.Stat(from)
	if err != nil {
		return false, err
	}
	if free := int64(stats.FreePageN) * int64(os.Getpagesize()); free <= info.Size()/2 {
		return false, nil
	}
	target, err := bbolt.Open(to, 0o600, boltOptions())
	if err != nil {
		return false, err
	}
	err = bbolt.Compact(target, source, compactBatch)
	return err == nil, errors.Join(err, target.Sync(), target.Close())
}

// boltOptions of the log file. The list of free pages grows with the log's
// history; written on each append it has stopped clusters (hashicorp/consul#5181).
func boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout:        boltLockTimeout,
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
	}
}
