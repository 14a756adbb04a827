package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// What somebody asked for is no error in the log.
func TestARemovalIsNoError(t *testing.T) {
	for _, c := range []struct {
		err   error
		level string
	}{
		{fmt.Errorf("%w of the cluster", ErrRemoved), "[INFO]"},
		{fmt.Errorf("%w: the disk is gone", ErrStoreFailed), "[ERROR]"},
	} {
		var log bytes.Buffer
		r := &Replica{
			logger:  hclog.New(&hclog.LoggerOptions{Output: &log}),
			failure: failure{happened: make(chan struct{})},
		}
		r.fail(c.err)
		r.fail(errors.New("another reason"))
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, c.level) || !errors.Is(r.Err(), c.err) {
			t.Errorf("%v: the log is %q", c.err, text)
		}
	}
}

// A replica that was just removed knows its leader for a moment; what others say then
// is true. One that is told so for long while it has a leader should say it.
func TestSomebodySaysThatThisReplicaWasRemoved(t *testing.T) {
	var d removals
	begin := time.Now()
	for _, step := range []struct {
		at   time.Duration
		from string
		want bool
	}{
		{0, "a", false},
		{removalDoubt - 1, "a", false},
		{removalDoubt, "a", true},
		{removalDoubt, "b", false},
		{2 * removalDoubt, "b", true},
		{2*removalDoubt + removalMemory + 1, "b", false},
	} {
		if got := d.stay(step.from, begin.Add(step.at)); got != step.want {
			t.Errorf("%s after %v: %v", step.from, step.at, got)
		}
	}
}

// A replica that has lost its quorum goes on trying for hours. That is a few lines a
// minute, and no error.
func TestLibrariesAreTerse(t *testing.T) {
	var log bytes.Buffer
	logger := libraryLogger(hclog.New(&hclog.LoggerOptions{Output: &log}))
	for i := range 100 {
		for _, peer := range []string{"b", "c"} {
			logger.Error("failed to heartbeat to", "peer", peer, "error", i)
			logger.Error("failed to make requestVote RPC", "target", peer, "error", i)
		}
		logger.Error("Failed to reconcile current state with the desired state", "error", i)
		logger.Warn("Election timeout reached, restarting election")
		logger.Info("entering candidate state", "term", i)
		logger.Info("pre-vote campaign failed, waiting for election timeout", "term", i)
	}
	if text := log.String(); strings.Count(text, "\n") > 4 || strings.Contains(text, "[ERROR]") || !strings.Contains(text, "requestVote") {
		t.Errorf("the log is:\n%s", text)
	}
}
