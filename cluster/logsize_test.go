package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A log of large entries is shortened long before it has many of them: the number of
// entries alone would let it grow to tens of GB on every replica at once.
func TestLogIsKeptByBytes(t *testing.T) {
	const limit, large = 2 << 20, 32 << 10
	options := cluster.Options{DataDir: t.TempDir()}.WithMaxLogBytes(limit)
	replica := start(t, options)
	propose(t, replica, register(0))
	// A withdrawal of names that nobody announced is as large as one that counts.
	command := &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: register(0).GetRegisterNode().GetSession(),
	}}}
	for range large >> 10 {
		command.GetAnnounce().Changes = append(command.GetAnnounce().Changes, &slimcppb.NameChange{
			Withdraw: true, Name: &slimcppb.Name{Component0: strings.Repeat("a", 1000), Component1: "b", Component2: "c"},
		})
	}
	const rounds = 12
	for round := range rounds {
		for range limit / large {
			if _, err := replica.Propose(t.Context(), command); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "log within its bound", func() bool {
			if _, err := replica.Propose(t.Context(), register(round+1)); err != nil {
				t.Fatal(err)
			}
			return replica.LogBytes() <= limit
		})
	}
	first, err := replica.FirstLogIndex()
	if err != nil || first == 1 {
		t.Fatalf("log begins at %d, %v", first, err)
	}
	if kept := replica.LastLogIndex() - first; kept < 10 {
		t.Errorf("only %d entries are left for followers", kept)
	}
	stop(t, replica)
	info, err := os.Stat(filepath.Join(options.DataDir, "raft.db"))
	// All that was written has twelve times the bound.
	if err != nil || info.Size() > 9*limit {
		t.Errorf("file of %d bytes, %v", info.Size(), err)
	}
	replica = start(t, options)
	if replica.LogBytes() > limit || !hasNode(replica.View(), rounds) {
		t.Errorf("after the restart %d bytes, nodes %v", replica.LogBytes(), nodeIDs(replica.View()))
	}
}

func TestBoundOfTheLogIsChecked(t *testing.T) {
	_, err := open(t, cluster.Options{DataDir: t.TempDir(), MaxLogBytes: 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "max log bytes 1048576") || errors.Is(err, cluster.ErrDataDir) {
		t.Errorf("a bound of 1 MiB: %v", err)
	}
}
