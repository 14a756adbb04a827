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
