package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/config"
)

// Files of a time when the clock was ahead neither displace what is saved now nor
// stay for ever.
func TestSavedFilesAreOrderedByWhatTheyHold(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"slim-cp-20310101T000000Z-000001-000000000010.snapshot",
		"slim-cp-20320101T000000Z-000001-000000000020.snapshot",
		"slim-cp-20330101T000000Z-000001-000000000030.snapshot",
		"slim-cp-mine.snapshot",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &snapshots{settings: config.Snapshots{Path: dir, Retain: 2}, logger: hclog.NewNullLogger(), now: time.Now}
	wrote := []string{"slim-cp-20260101T000000Z-000001-000000000040.snapshot", "slim-cp-20260101T000001Z-000001-000000000050.snapshot"}
	for _, name := range wrote {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.prune(name); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.files(); err != nil || !slices.Equal(got, wrote) {
		t.Errorf("files are %v, %v", got, err)
	}
	// A cluster that begins anew counts from one: what was just written stays.
	anew := "slim-cp-20260102T000000Z-000001-000000000003.snapshot"
	if err := os.WriteFile(filepath.Join(dir, anew), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.prune(anew); err != nil {
		t.Fatal(err)
	}
	if got, err := s.files(); err != nil || !slices.Equal(got, []string{anew, wrote[1]}) {
		t.Errorf("files are %v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "slim-cp-mine.snapshot")); err != nil {
		t.Error("a file of an operator was removed:", err)
	}
}
