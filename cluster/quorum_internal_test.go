package cluster

import (
	"errors"
	"testing"
	"time"
)

// A quorum that is lost for a moment, as in a restart of all replicas, ends no wait and
// is no line in the log; one that is lost for long is one line, and its end another.
func TestQuorumLostForAMoment(t *testing.T) {
	lost := &QuorumLostError{Answering: 1, Voters: 3, Missing: []string{"b", "c"}}
	begin := time.Now()
	var q quorum
	ended := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.context().Err() != nil
	}
	for _, step := range []struct {
		at          time.Duration
		lost        *QuorumLostError
		ended       bool
		said, unsay bool
	}{
		{at: 0, lost: lost},
		{at: quorumHold / 2, lost: nil},
		{at: quorumHold, lost: lost},
		{at: 2 * quorumHold, lost: lost, ended: true},
		{at: 3 * quorumHold, lost: nil},
		{at: time.Minute, lost: lost},
		{at: time.Minute + quorumLogDelay, lost: lost, ended: true, said: true},
		{at: time.Minute + 2*quorumLogDelay, lost: lost, ended: true},
		{at: 2 * time.Minute, lost: nil, unsay: true},
		{at: 3 * time.Minute, lost: nil},
	} {
		now := begin.Add(step.at)
		q.note(step.lost, now, now)
		said, unsay := q.report(now)
		if ended() != step.ended || said != step.said || unsay != step.unsay {
			t.Errorf("after %v: ended %v, said %v, unsaid %v", step.at, ended(), said, unsay)
		}
	}
	q.note(lost, begin, begin.Add(quorumAskTimeout)) // those who are asked say nothing
	if !ended() {
		t.Error("a look that lasts as long as the hold does not count for it")
	}
	if !errors.Is(lost, ErrNoLeader) {
		t.Error("it is an error of its own")
	}
}
