package logging

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

func textLogger() (hclog.Logger, *bytes.Buffer) {
	text := &bytes.Buffer{}
	return hclog.New(&hclog.LoggerOptions{Output: text, DisableTime: true, Level: hclog.Info}), text
}

// A line that comes back each second with another error each time is logged a few
// times, then once a minute with the number of those that were not.
func TestRepeatsAreLimitedByPlaceAndPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, text := textLogger()
		logger := Limit(plain, hclog.Warn).Named("cluster")
		for i := range 121 {
			err := errors.New(time.Now().String())
			logger.Warn("no answer", "peer", "cp-1", "error", err)
			if i == 0 {
				logger.Warn("no answer", "peer", "cp-2", "error", err)
				logger.With("peer", "cp-3").Warn("no answer", "error", err)
				logger.Warn("another line", "peer", "cp-1")
			}
			<-time.After(time.Second)
		}
		if got := strings.Count(text.String(), "peer=cp-1 error"); got != 7 {
			t.Errorf("%d lines about the peer:\n%s", got, text)
		}
		for words, want := range map[string]int{"left_out=55": 1, "left_out=59": 1, "peer=cp-2": 1, "peer=cp-3": 1, "another line": 1} {
			if got := strings.Count(text.String(), words); got != want {
				t.Errorf("%q is there %d times:\n%s", words, got, text)
			}
		}
	})
}

// What is left out is told even if the line does not come again, at its own level.
func TestLeftOutLinesOfAnEndedKindAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, text := textLogger()
		logger := Limit(plain, hclog.Warn)
		for range 10 {
			logger.Warn("cannot write", "error", "disk full")
		}
		<-time.After(3 * repeatPeriod)
		logger.Error("another line")
		if !strings.Contains(text.String(), `[WARN]  lines were left out: line=": cannot write" left_out=5`) {
			t.Errorf("the log is:\n%s", text)
		}
	})
}

// What an operator asked for is logged however often it is.
func TestLowerLevelsAreNotLimited(t *testing.T) {
	plain, text := textLogger()
	logger := Limit(plain, hclog.Warn)
	for range 100 {
		logger.Info("operator's change")
	}
	if got := strings.Count(text.String(), "operator's change"); got != 100 {
		t.Errorf("%d lines", got)
	}
}

// Peers that come under ever new names take neither the memory nor the log.
func TestKindsAreBounded(t *testing.T) {
	plain, text := textLogger()
	logger := Limit(plain, hclog.Warn).(limited)
	for i := range 3 * maxKinds {
		logger.Warn("refused", "peer", fmt.Sprint(i))
	}
	if got := len(logger.repeats.kinds); got > maxKinds+1 {
		t.Errorf("%d kinds are kept", got)
	}
	if got := strings.Count(text.String(), "\n"); got > maxKinds+repeatBurst {
		t.Errorf("%d lines", got)
	}
}

// A library's errors are nothing that an operator must act on.
func TestLibraryLinesAreMapped(t *testing.T) {
	plain, text := textLogger()
	logger := Library(plain, map[string]hclog.Level{"orderly": hclog.Debug, "worth a line": hclog.Info}).Named("raft").With("a", 1)
	logger.Error("orderly")
	logger.Warn("worth a line")
	logger.Error("trouble")
	if got, want := text.String(), "[INFO]  raft: worth a line: a=1\n[WARN]  raft: trouble: a=1\n"; got != want {
		t.Errorf("the log is:\n%s", got)
	}
}
