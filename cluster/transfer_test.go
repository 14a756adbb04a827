package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fill makes the state large: in steps of about 390 kB.
func fill(t *testing.T, replica *cluster.Replica, megabytes int) {
	t.Helper()
	proposeWithRetry(t, replica, registerNamed("large", 1))
	long := strings.Repeat("x", 1000)
	sequence := uint64(0)
	for bytes := 0; bytes < megabytes<<20; {
		sequence++
		announce := &slimcppb.Announce{Session: registerNamed("large", 1).GetRegisterNode().GetSession(), Sequence: sequence}
		for i := range 128 {
			name := &slimcppb.Name{Component0: long, Component1: long, Component2: fmt.Sprintf("%d-%d-%s", sequence, i, long)}
			announce.Changes = append(announce.Changes, &slimcppb.NameChange{Name: name})
			bytes += 3000
		}
		proposeWithRetry(t, replica, &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: announce}})
	}
}

// B-21, B-22: a snapshot takes longer to arrive than a call may last, and more is
// written meanwhile than starts the next snapshot. It arrives once, the log goes on
// behind it, and it holds nobody up.
func TestSnapshotThatTakesLong(t *testing.T) {
	t.Parallel()
	const megabytes, bandwidth = 20, 8 << 20
	e := newEnsemble(t)
	for _, name := range []string{"a", "b", "c"} {
		e.start(name, steady)
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	fill(t, e.replicas["a"], megabytes)
	// A log without the beginning, so that a newcomer needs the snapshot.
	for _, name := range []string{"c", "b", "a"} {
		e.kill(name)
		waitReady(t, e.start(name, steady, func(o *cluster.Options) { *o = o.WithTrailingLogs(1) }))
		if err := e.replicas[name].Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.kill(name)
		waitReady(t, e.start(name, steady))
	}
	e.waitVoters("a", "b", "c")
	leader := e.replicas[e.leader()]
	begins, err := leader.FirstLogIndex()
	if err != nil || begins == 1 {
		t.Fatalf("the log begins at %d, %v", begins, err)
	}

	e.network.slow("d", bandwidth)
	d := e.start("d", steady)
	began := time.Now()
	if err := d.Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	var last fsm.Result
	written := uint64(0)
	for d.View().NodeCount() == 0 {
		written++
		sent := time.Now()
		last = proposeWithRetry(t, leader, registerNamed("meanwhile", 100+written))
		slowest = max(slowest, time.Since(sent))
		if written%50 == 0 {
			if err := leader.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(began) > 2*patience {
			t.Fatal("the snapshot does not arrive")
		}
	}
	if took := time.Since(began); took < megabytes<<20*time.Second/bandwidth {
		t.Errorf("the snapshot took %s: the link is not slow", took)
	}
	if slowest > patience/4 {
		t.Errorf("a write took %s meanwhile", slowest)
	}
	if !reaches(d, last.Index, patience) {
		t.Error("it does not catch up")
	}
	if first, err := leader.FirstLogIndex(); err != nil || first != begins {
		t.Errorf("the log began at %d, after more snapshots it begins at %d: %v", begins, first, err)
	}
}
