package southbound

import (
	"testing"
	"testing/synctest"
	"time"
)

// Time pays what a node has proposed, so that one that has flapped is not slowed for
// good.
func TestTimePaysForFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flapping
		wait := func(when string, want time.Duration) {
			t.Helper()
			if got := f.wait(); got != want {
				t.Errorf("%s: nothing is proposed for %s, want %s", when, got, want)
			}
		}
		f.charge(flapBurstBytes)
		wait("within the allowance", 0)
		f.charge(4 * flapBytesPerSecond)
		wait("beyond it", 4*time.Second)
		pass(3 * time.Second)
		wait("3 s later", time.Second)
		pass(time.Hour)
		f.charge(flapBurstBytes)
		wait("an hour later", 0)
	})
}
