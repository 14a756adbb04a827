package load_test

import (
	"flag"
	"testing"
	"time"
)

// steadyTime is how long full load lasts.
var steadyTime = flag.Duration("steady.time", 2*time.Minute, "how long BenchmarkSteadyLeadership loads a cluster")

// steadyCallers keep a cluster on one machine busy.
const steadyCallers = 256

// BenchmarkSteadyLeadership loads three local processes with operators' changes. It
// fails if anybody else is elected meanwhile: nobody asked for it.
func BenchmarkSteadyLeadership(b *testing.B) {
	for name, section := range map[string]string{"defaults": defaultTimings, "fast": fastTimings} {
		b.Run("timings="+name, func(b *testing.B) {
			members := formCluster(b, section, sharedSecret)
			leader, _ := leaderOf(b, members)
			before := term(b, leader)
			mutators := secretSetters(members)
			var rate float64
			for b.Loop() {
				rate = mutateFor(b, mutators, steadyCallers, *steadyTime)
			}
			if after := term(b, leader); after != before {
				b.Errorf("term %d after %s of load, %d before", after, *steadyTime, before)
			}
			b.ReportMetric(rate, "mutations/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func term(b *testing.B, m *member) uint64 {
	b.Helper()
	status, err := m.status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return status.GetTerm()
}
