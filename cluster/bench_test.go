package cluster_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// BenchmarkPropose lets sessions announce and withdraw a name on disk, each with
// one proposal in flight.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			replica := start(b, cluster.Options{DataDir: b.TempDir()})
			for caller := range callers {
				propose(b, replica, register(caller))
			}
			var taken atomic.Int64
			var running sync.WaitGroup
			b.ResetTimer()
			for caller := range callers {
				running.Go(func() {
					for sequence := uint64(1); taken.Add(1) <= int64(b.N); sequence++ {
						propose(b, replica, announce(caller, sequence))
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// announce is the caller's command with the given sequence number.
func announce(caller int, sequence uint64) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session:  register(caller).GetRegisterNode().GetSession(),
		Sequence: sequence,
		Changes: []*slimcppb.NameChange{{
			Name: &slimcppb.Name{
				Component0: "org", Component1: "ns", Component2: fmt.Sprintf("app-%d", caller),
			},
			Withdraw: sequence%2 == 0,
		}},
	}}}
}
