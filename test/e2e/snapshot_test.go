//go:build e2e

package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// A saved state comes back on all replicas, while nodes stay connected.
func TestSnapshotSaveAndRestore(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	_, others := leaderOf(t, replicas)
	file := filepath.Join(t.TempDir(), "state.snapshot")
	others[0].MustOperate(t, "segment", "add", "saved")
	f := startFleet(t, others[0], 2, 1, 1)
	others[0].MustOperate(t, "link", "add", "group-1", "group-2")
	f.wantDelivery(t)

	if text := others[0].MustOperate(t, "snapshot", "save", file); !strings.Contains(text, "generation: 1") || !strings.Contains(text, "nodes: 2") {
		t.Errorf("save says\n%s", text)
	}
	if text := succeed(t, "slim-cp", "snapshot", "inspect", file); !strings.Contains(text, "generation: 1") || !strings.Contains(text, "nodes: 2") {
		t.Errorf("inspect says\n%s", text)
	}
	if _, err := os.Stat(file + ".tmp"); err == nil {
		t.Error("the temporary file is left")
	}
	others[1].MustOperate(t, "segment", "remove", "saved")
	others[1].MustOperate(t, "link", "remove", "group-1", "group-2")
	if text := others[1].MustOperate(t, "snapshot", "restore", file); !strings.Contains(text, "generation: 2") {
		t.Errorf("restore says\n%s", text)
	}
	for _, r := range replicas {
		if list := r.MustOperate(t, "segment", "list"); !strings.Contains(list, "saved") {
			t.Errorf("%s has not what was restored:\n%s", r.Member.Name, list)
		}
	}
	f.wantDelivery(t)

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, others[0], 1, []string{"damaged"}, "snapshot", "restore", damaged)
	fails(t, others[0], 1, []string{"damaged"}, "snapshot", "inspect", damaged)
	other := process.FormCluster(t, binaries, 1, "")
	fails(t, other[0], 1, []string{"another cluster"}, "snapshot", "restore", file)
	other[0].MustOperate(t, "snapshot", "restore", file, "--force")
}

// The state is saved on a schedule, when it has changed, and old files go.
func TestScheduledSnapshots(t *testing.T) {
	r := process.StartMember(t, binaries, process.Member{Name: "cp-1", Section: "insecure: true, snapshots: {interval: 200ms, retain: 2}"})
	r.MustOperate(t, "cluster", "init")
	folder := filepath.Join(r.Member.DataDir, "saved")
	var seen []string
	for _, segment := range []string{"a", "b", "c"} {
		r.MustOperate(t, "segment", "add", segment)
		eventually(t, "another file", func() bool {
			files := savedFiles(folder)
			return len(files) > 0 && !slices.Equal(files, seen) && strings.HasSuffix(files[len(files)-1], ".snapshot")
		})
		seen = savedFiles(folder)
	}
	// A file may be of a moment between two changes: the next one follows.
	eventually(t, "two files, the newest of the last change", func() bool {
		files := savedFiles(folder)
		return len(files) == 2 && strings.Contains(succeed(t, "slim-cp", "snapshot", "inspect", filepath.Join(folder, files[1])), "segments: 4,") // with the one that is always there
	})
}
