package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/cmd/operator/snapshotfile"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/fsm"
)

const (
	// snapshotTimeout bounds one scheduled snapshot.
	snapshotTimeout = 10 * time.Minute
	snapshotPrefix  = "slim-cp-"
	snapshotSuffix  = ".snapshot"
)

// snapshots saves the state on a schedule, on every replica: the machine with the
// newest file may be the one that is lost.
type snapshots struct {
	settings config.Snapshots
	view     func() *fsm.View
	save     func(context.Context, io.Writer) (fsm.SnapshotInfo, error)
	logger   hclog.Logger
	now      func() time.Time
}

func (r *process) scheduledSnapshots() *snapshots {
	return &snapshots{
		settings: r.settings.Cluster.Snapshots, view: r.replica.View, save: r.replica.SaveSnapshot,
		logger: r.logger.Named("snapshots"), now: time.Now,
	}
}

// run saves until the context ends.
func (s *snapshots) run(ctx context.Context) {
	if s.settings.Interval <= 0 {
		return
	}
	ticker := time.NewTicker(s.settings.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		switch err := s.once(ctx); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, cluster.ErrNoLeader): // which is the trouble, and named
			s.logger.Warn("no scheduled snapshot", "path", s.settings.Path, "error", err)
		default:
			s.logger.Error("scheduled snapshot failed", "path", s.settings.Path, "error", err)
		}
	}
}

// once saves the state if it is not that of the newest file, and removes the files
// that are too many.
func (s *snapshots) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	if err := os.MkdirAll(s.settings.Path, 0o700); err != nil {
		return err
	}
	files, err := s.files()
	if err != nil {
		return err
	}
	now := s.view()
	if len(files) > 0 && strings.HasSuffix(files[len(files)-1], snapshotMark(now.Generation(), now.Index())) {
		return nil
	}
	path, err := s.write(ctx)
	if err != nil {
		return err
	}
	if err := s.prune(filepath.Base(path)); err != nil {
		return err
	}
	s.logger.Info("saved a snapshot", "file", path)
	return nil
}

// prune removes the oldest files that are too many, and never the one that was just
// written.
func (s *snapshots) prune(written string) error {
	files, err := s.files()
	if err != nil {
		return err
	}
	excess := len(files) - s.settings.Retain
	for _, old := range files {
		if excess <= 0 {
			break
		}
		if old == written {
			continue
		}
		if err := os.Remove(filepath.Join(s.settings.Path, old)); err != nil {
			return err
		}
		excess--
	}
	return nil
}

// write saves the state under a name that tells when and what.
func (s *snapshots) write(ctx context.Context) (string, error) {
	temporary := filepath.Join(s.settings.Path, "scheduled")
	if left, err := filepath.Glob(temporary + ".*.tmp"); err == nil { // by a process that was killed
		for _, file := range left {
			_ = os.Remove(file)
		}
	}
	info, err := snapshotfile.Write(temporary, func(w io.Writer) error {
		_, err := s.save(ctx, w)
		return err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.settings.Path,
		snapshotPrefix+s.now().UTC().Format("20060102T150405Z")+snapshotMark(info.Generation, info.Index))
	return path, os.Rename(temporary, path)
}

// savedName is a name that write gives. What it holds orders it: the clock may have
// been wrong.
var savedName = regexp.MustCompile(`^slim-cp-[0-9]{8}T[0-9]{6}Z-([0-9]{6,20}-[0-9]{12,20})\.snapshot$`)

// snapshotMark ends the name of a snapshot's file. It has a fixed width, so that it
// sorts by what the file holds.
func snapshotMark(generation, index uint64) string {
	return fmt.Sprintf("-%06d-%012d%s", generation, index, snapshotSuffix)
}

// files returns the names of the scheduled snapshots, the oldest state first.
func (s *snapshots) files() ([]string, error) {
	entries, err := os.ReadDir(s.settings.Path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if savedName.MatchString(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(strings.Compare(savedName.FindStringSubmatch(a)[1], savedName.FindStringSubmatch(b)[1]), strings.Compare(a, b))
	})
	return names, nil
}
