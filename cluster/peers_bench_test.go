package cluster_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
)

// BenchmarkProposeThroughThree measures commands through three replicas of one
// process, on disk, with the callers spread over all of them.
func BenchmarkProposeThroughThree(b *testing.B) {
	e := newEnsemble(b)
	for _, name := range []string{"a", "b", "c"} {
		e.start(name, func(o *cluster.Options) { o.Timings = cluster.Timings{} })
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	var sequences [256]atomic.Uint64
	names := []string{"a", "b", "c"}
	for _, callers := range []int{1, 64, 256} {
		for caller := range callers {
			_, _ = e.replicas["a"].Propose(context.Background(), register(caller))
		}
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var taken atomic.Int64
			var running sync.WaitGroup
			for caller := range callers {
				replica := e.replicas[names[caller%len(names)]]
				running.Go(func() {
					for taken.Add(1) <= int64(b.N) {
						propose(b, replica, announce(caller, sequences[caller].Add(1)))
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}
