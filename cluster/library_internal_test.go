package cluster

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// B-06: the library stands still while nobody takes what its channel tells, in the
// looks of a good follower.
func TestUndrainedChannelStopsAFollower(t *testing.T) {
	t.Parallel()
	t.Run("as it is", func(t *testing.T) {
		if standsStill(t, true) {
			t.Error("a former leader does not follow")
		}
	})
	t.Run("with a channel that is not drained", func(t *testing.T) {
		for range 4 {
			if standsStill(t, false) {
				return
			}
		}
		t.Error("the library no longer has the fault: the remedy can go")
	})
}

// standsStill makes a leader lose its leadership, and reports whether it then knows
// its leader and applies nothing.
func standsStill(t *testing.T, drain bool) bool {
	t.Helper()
	seen, cut := &senders{terms: map[uint64][]raft.ServerID{}}, &atomic.Pointer[raft.ServerID]{}
	until := make(chan struct{})
	replicas := bareCluster(t, func(n *raft.NetworkTransport, id raft.ServerID) raft.Transport {
		return observedTransport{peerTransport: n, id: id, senders: seen, cut: cut}
	})
	defer func() {
		for _, replica := range replicas {
			replica.startDraining(until)
			_ = replica.Shutdown().Error()
		}
		close(until)
	}()
	first := oneOf(t, replicas, (*bareReplica).leads)
	others := slices.DeleteFunc(slices.Clone(replicas), func(b *bareReplica) bool { return b == first })
	for _, other := range others {
		other.startDraining(until)
	}
	if drain {
		first.startDraining(until)
	}
	_ = first.Apply([]byte("a"), time.Second).Error()
	cut.Store(&first.id)
	second := oneOf(t, others, (*bareReplica).leads)
	oneOf(t, []*bareReplica{first}, func(b *bareReplica) bool { return !b.leads() })
	cut.Store(nil)
	for range 5 {
		if err := second.Apply([]byte("b"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Second)
	for first.AppliedIndex() < second.AppliedIndex() {
		if time.Now().After(deadline) {
			_, leader := first.LeaderWithID()
			return leader != "" && first.State() == raft.Follower
		}
		<-time.After(5 * time.Millisecond)
	}
	return false
}
