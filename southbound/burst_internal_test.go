package southbound

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// While the reader is held up the node drops what it cannot queue: that is no
// pause of the node's.
func TestBurstThatIsHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		b := newBurst(func() { told.Add(1) })
		for range burstMessages + 1 {
			b.begin()
			pass(10 * burstQuiet)
			b.end()
		}
		b.begin()
		pass(10 * burstQuiet)
		if told.Load() != 0 {
			t.Error("told before it was over")
		}
		b.end()
		pass(burstQuiet)
		synctest.Wait()
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
	})
}
