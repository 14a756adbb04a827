package load_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	// leaderKills of one failover benchmark.
	leaderKills = 20
	// failoverTime bounds one failover, and what follows it.
	failoverTime = 30 * time.Second
)

// Sections of the cluster configuration: the defaults, and what the documentation
// gives for replicas in one zone.
const (
	defaultTimings = "insecure: true, autopilot: {stabilization_time: 300ms}"
	fastTimings    = defaultTimings + ", raft: {heartbeat_timeout: 250ms, election_timeout: 250ms, leader_lease_timeout: 200ms}"
)

// BenchmarkFailover kills the leader of three local processes again and again. It
// reports, in milliseconds after the kill, when a survivor answered an operator's
// write and when the new leadership had begun its work.
func BenchmarkFailover(b *testing.B) {
	for name, section := range map[string]string{"defaults": defaultTimings, "fast": fastTimings} {
		b.Run("timings="+name, func(b *testing.B) {
			replicas := formCluster(b, section, "")
			var writes, works []time.Duration
			for b.Loop() {
				for len(writes) < leaderKills {
					write, work := killLeader(b, replicas, len(writes))
					writes, works = append(writes, write), append(works, work)
				}
			}
			reportTimes(b, "write", writes)
			reportTimes(b, "work", works)
		})
	}
}

// BenchmarkHandOver has the leader hand over to each other replica in turn, and
// reports, in milliseconds, how long operators' writes stood still.
func BenchmarkHandOver(b *testing.B) {
	replicas := formCluster(b, defaultTimings, "")
	var gaps []time.Duration
	for b.Loop() {
		for len(gaps) < leaderKills {
			gaps = append(gaps, handOver(b, replicas, len(gaps)))
		}
	}
	reportTimes(b, "gap", gaps)
}

func reportTimes(b *testing.B, what string, times []time.Duration) {
	b.Helper()
	sorted := slices.Sorted(slices.Values(times))
	b.ReportMetric(float64(sorted[len(sorted)/2].Microseconds())/1000, what+"-median-ms")
	b.ReportMetric(float64(sorted[len(sorted)-1].Microseconds())/1000, what+"-worst-ms")
	b.ReportMetric(0, "ns/op")
}

// member is a replica's process with a connection of an operator.
type member struct {
	*process.Replica
	conn *grpc.ClientConn
}

func (m *member) write(ctx context.Context, segment string) error {
	_, err := controlplanepb.NewControlPlaneServiceClient(m.conn).AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: segment})
	return err
}

func (m *member) status(ctx context.Context) (*slimcppb.ClusterStatusResponse, error) {
	return slimcppb.NewClusterServiceClient(m.conn).ClusterStatus(ctx, &slimcppb.ClusterStatusRequest{})
}

// formCluster runs three replicas, each with a data directory of its own.
func formCluster(b *testing.B, section, yaml string) []*member {
	b.Helper()
	binaries, err := process.Build()
	if err != nil {
		b.Fatal(err)
	}
	var members []*member
	for i := range 3 {
		replica := process.StartMember(b, binaries, process.Member{Name: fmt.Sprintf("cp-%d", i+1), Section: section, YAML: yaml})
		conn, err := grpc.NewClient(replica.Northbound, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		members = append(members, &member{Replica: replica, conn: conn})
	}
	members[0].MustOperate(b, "cluster", "init")
	for _, m := range members[1:] {
		m.MustOperate(b, "cluster", "join", members[0].Cluster)
	}
	waitTolerant(b, members)
	return members
}

// waitTolerant waits until one replica may fail.
func waitTolerant(b *testing.B, members []*member) {
	b.Helper()
	poll(b, "every replica healthy", func(ctx context.Context) bool {
		for _, m := range members {
			status, err := m.status(ctx)
			if err != nil || status.GetFailureTolerance() != 1 {
				return false
			}
		}
		return true
	})
}

// leaderOf returns the leader and the others.
func leaderOf(b *testing.B, members []*member) (leader *member, others []*member) {
	b.Helper()
	poll(b, "a leader", func(ctx context.Context) bool {
		status, err := members[0].status(ctx)
		if err != nil {
			return false
		}
		leader, others = nil, nil
		for _, m := range members {
			if isLeader(status, m) {
				leader = m
			} else {
				others = append(others, m)
			}
		}
		return leader != nil
	})
	return leader, others
}

func isLeader(status *slimcppb.ClusterStatusResponse, m *member) bool {
	for _, replica := range status.GetReplicas() {
		if replica.GetReplicaId() == status.GetLeaderId() {
			return replica.GetName() == m.Member.Name
		}
	}
	return false
}

func poll(b *testing.B, what string, condition func(context.Context) bool) {
	b.Helper()
	deadline := time.Now().Add(failoverTime)
	for {
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
		done := condition(ctx)
		cancel()
		if done {
			return
		}
		if time.Now().After(deadline) {
			b.Fatal("not in time:", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// killLeader ends the leader with SIGKILL, and brings it back.
func killLeader(b *testing.B, members []*member, round int) (write, work time.Duration) {
	b.Helper()
	leader, survivors := leaderOf(b, members)
	leader.Kill(b)
	began := time.Now()
	var measuring sync.WaitGroup
	var first atomic.Int64
	for at, survivor := range survivors {
		measuring.Go(func() {
			segment := fmt.Sprintf("s%d-%d", round, at)
			for time.Since(began) < failoverTime {
				ctx, cancel := context.WithTimeout(b.Context(), failoverTime)
				err := survivor.write(ctx, segment)
				cancel()
				if err == nil {
					first.CompareAndSwap(0, int64(time.Since(began)))
					return
				}
			}
		})
	}
	measuring.Go(func() {
		poll(b, "a leadership at work", func(ctx context.Context) bool {
			status, err := survivors[0].status(ctx)
			return err == nil && status.GetLeaderId() != "" && !isLeader(status, leader) && status.GetLeaderWorks()
		})
		work = time.Since(began)
	})
	measuring.Wait()
	if first.Load() == 0 {
		b.Fatal("no survivor answered a write")
	}
	leader.Start(b)
	waitTolerant(b, members)
	return time.Duration(first.Load()), work
}

// handOver measures how long the writes of a caller stand still while the leader
// hands over.
func handOver(b *testing.B, members []*member, round int) time.Duration {
	b.Helper()
	leader, others := leaderOf(b, members)
	ctx, cancel := context.WithCancel(b.Context())
	var writing sync.WaitGroup
	var longest atomic.Int64
	started := make(chan struct{})
	writing.Go(func() {
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			if others[0].write(ctx, fmt.Sprintf("h%d-%d", round, i%2)) != nil {
				continue
			}
			now := time.Now()
			longest.Store(max(longest.Load(), int64(now.Sub(last))))
			if last = now; i == 2 {
				close(started)
			}
		}
	})
	<-started
	longest.Store(0)
	leader.MustOperate(b, "cluster", "transfer-leader", others[round%2].Member.Name)
	cancel()
	writing.Wait()
	waitTolerant(b, members)
	return time.Duration(longest.Load())
}
