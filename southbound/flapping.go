package southbound

import (
	"context"
	"time"
)

const (
	// flapBurstBytes of withdrawals, and of names that come back, a node may have
	// proposed at once: some 50,000 names of an application that stops.
	flapBurstBytes = 4 << 20
	// flapBytesPerSecond is what it may have proposed in the long run. Each replica
	// writes all of it to its disk.
	flapBytesPerSecond = 128 << 10
)

// flapping slows a node that withdraws and announces names again and again: what it
// has proposed beyond its allowance is a debt, which time pays. Meanwhile only the last
// word on each name is kept, so that nothing is lost and the node is read on.
type flapping struct {
	debt   float64   // bytes
	at     time.Time // debt was true then
	logged bool
}

// charge counts what is about to be proposed.
func (f *flapping) charge(bytes int) {
	f.settle()
	f.debt += float64(bytes)
}

// wait is how long nothing more may be proposed.
func (f *flapping) wait() time.Duration {
	f.settle()
	return time.Duration(max(f.debt-flapBurstBytes, 0) / flapBytesPerSecond * float64(time.Second))
}

func (f *flapping) settle() {
	now := time.Now()
	if !f.at.IsZero() {
		f.debt = max(f.debt-now.Sub(f.at).Seconds()*flapBytesPerSecond, 0)
	}
	f.at = now
}

// slow waits while the node has flapped too much; it returns false if the context ended
// first. The last words of a stream that has ended do not wait.
func (p *proposals) slow(ctx context.Context) bool {
	delay := p.flapping.wait()
	if delay == 0 || p.ctx.Err() != nil {
		return true
	}
	p.service.stats.slowed.Add(1)
	if !p.flapping.logged {
		p.flapping.logged = true
		p.log.Warn("a node withdraws and announces names again and again: it is slowed down; more of this stream is only counted")
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
