package cluster_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// openOver opens a replica over a store that the test holds up.
func openOver(t *testing.T, store *fsm.Store) *cluster.Replica {
	t.Helper()
	replica, err := cluster.Open(t.Context(), cluster.Options{Name: "cp"}, store, quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	waitReady(t, replica)
	return replica
}

// holdApply makes the store hang in the next checkpoint until release is called.
func holdApply(store *fsm.Store) (release func()) {
	hold := make(chan struct{})
	store.SetCheckpointHandler(func(*fsm.Snapshot) { <-hold })
	return sync.OnceFunc(func() {
		store.SetCheckpointHandler(nil)
		close(hold)
	})
}

func checkpointAsLeader(t *testing.T, replica *cluster.Replica) {
	t.Helper()
	_, term := replica.Leadership()
	go func() {
		_, _ = replica.ProposeAsLeader(t.Context(), term, &slimcppb.Command{
			Payload: &slimcppb.Command_Checkpoint{Checkpoint: &slimcppb.Checkpoint{}},
		})
	}()
}

func ownStatus(t *testing.T, replica *cluster.Replica) cluster.MemberStatus {
	t.Helper()
	for _, member := range replica.Status(t.Context()).Members {
		if member.ReplicaID == replica.ReplicaID() {
			return member
		}
	}
	t.Fatal("a replica is not in its own status")
	return cluster.MemberStatus{}
}

// A leader that applies nothing looks well to everybody who only hears of it. It says
// that it is not, and stops when nobody else can lead.
func TestLeaderThatAppliesNothingIsNotHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fsm.New()
		replica := openOver(t, store)
		release := holdApply(store)
		checkpointAsLeader(t, replica)
		began := time.Now()
		for ownStatus(t, replica).Healthy {
			if time.Since(began) > 17*time.Second {
				t.Fatal("it is called healthy")
			}
			<-time.After(time.Second)
		}
		if took := time.Since(began); took < 14*time.Second {
			t.Errorf("it is called not healthy after %s", took)
		}
		if problem := ownStatus(t, replica).Problem; !strings.Contains(problem, "no command was applied") || problem != replica.Problem() {
			t.Errorf("its problem is %q, by itself %q", problem, replica.Problem())
		}
		<-replica.Done()
		if took := time.Since(began); !errors.Is(replica.Err(), cluster.ErrNotApplying) || took < 30*time.Second || took > time.Minute {
			t.Errorf("it stopped after %s with %v", took, replica.Err())
		}
		release()
		stop(t, replica)
	})
}

// A leader that comes round is healthy again, and goes on leading.
func TestLeaderThatComesRoundIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fsm.New()
		replica := openOver(t, store)
		defer stop(t, replica)
		release := holdApply(store)
		checkpointAsLeader(t, replica)
		<-time.After(19 * time.Second)
		if replica.Problem() == "" {
			t.Fatal("it is called healthy")
		}
		release()
		<-time.After(2 * time.Second)
		if status := ownStatus(t, replica); !status.Healthy || replica.Problem() != "" {
			t.Errorf("its problem is %q", status.Problem)
		}
		<-time.After(5 * time.Minute)
		if err := replica.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A cluster in which nothing happens is healthy, and writes little to prove it.
func TestQuietLeaderIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		before := len(logs.written())
		for range 600 {
			<-time.After(time.Second)
			if problem := replica.Problem(); problem != "" {
				t.Fatal(problem)
			}
		}
		if wrote := len(logs.written()) - before; wrote < 80 || wrote > 130 {
			t.Errorf("%d entries in 10 minutes", wrote)
		}
		// One that is busy proves it by what it does.
		before = len(logs.written())
		for i := range 100 {
			propose(t, replica, register(i))
			<-time.After(time.Second)
		}
		if wrote := len(logs.written()) - before; wrote > 105 {
			t.Errorf("%d entries for 100 commands", wrote)
		}
	})
}

// A request is known for a minute, whatever the machine's clock says meanwhile, and not
// for much longer.
func TestRequestsAreForgottenAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // nanoseconds
		replica := start(t, cluster.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		command := func() *slimcppb.Command {
			return &slimcppb.Command{RequestId: "once", Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "s"}}}
		}
		propose(t, replica, command())
		<-time.After(10 * time.Second)
		ahead.Store(int64(24 * time.Hour))
		<-time.After(48 * time.Second)
		if !propose(t, replica, command()).Repeated {
			t.Error("it was forgotten within a minute")
		}
		<-time.After(30 * time.Second)
		if index, remembered := replica.View().OldestRequest(); remembered {
			t.Errorf("after 88 s that of entry %d is remembered", index)
		}
	})
}

// A follower that stands still in the middle of its work hears its leader as well as
// any other.
func TestFollowerThatAppliesNothingIsNotHealthy(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a, b := e.replicas["a"], e.replicas["b"]
	eventually(t, "one may fail", func() bool { return a.Status(t.Context()).FailureTolerance == 1 })
	release := holdApply(e.stores["b"])
	defer release()
	checkpointAsLeader(t, a)
	eventually(t, "b says that it is not healthy", func() bool { return b.Problem() != "" })
	eventually(t, "a says so", func() bool {
		for _, member := range a.Status(t.Context()).Members {
			if member.ReplicaID == b.ReplicaID() {
				return !member.Healthy && strings.Contains(member.Problem, "the leader had applied")
			}
		}
		return false
	})
	if more := a.Status(t.Context()).FailureTolerance; more != 0 {
		t.Errorf("%d more may fail", more)
	}
	if a.Problem() != "" {
		t.Errorf("the leader says %q", a.Problem())
	}
	release()
	eventually(t, "b is well again", func() bool { return b.Problem() == "" && a.Status(t.Context()).FailureTolerance == 1 })
}

// A replica that is up but does not serve nodes yet takes nobody's place.
func TestReplicaThatDoesNotServeIsNoReserve(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	a, c := e.replicas["a"], e.replicas["c"]
	eventually(t, "one may fail", func() bool { return a.Status(t.Context()).FailureTolerance == 1 })
	var serves atomic.Bool
	c.ReportServing(serves.Load)
	status := a.Status(t.Context())
	if status.FailureTolerance != 0 {
		t.Errorf("%d may fail while one does not serve", status.FailureTolerance)
	}
	for _, member := range status.Members {
		if want := member.ReplicaID != c.ReplicaID(); !member.Healthy || member.Ready != want {
			t.Errorf("%s: healthy %v, ready %v", member.ReplicaID, member.Healthy, member.Ready)
		}
	}
	serves.Store(true)
	if more := a.Status(t.Context()).FailureTolerance; more != 1 {
		t.Errorf("%d may fail", more)
	}
}

// A replica that is behind says so itself, and does not take itself for the measure.
func TestLagIsRightWhoeverIsAsked(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	release := holdApply(e.stores["b"])
	defer release()
	checkpointAsLeader(t, e.replicas["a"])
	var last uint64
	eventually(t, "b stands still", func() bool {
		last = propose(t, e.replicas["a"], registerNamed("n", last+1)).Index
		return e.replicas["b"].View().Index()+20 < last
	})
	for _, asked := range []string{"a", "b", "c"} {
		eventually(t, "b's lag is right at "+asked, func() bool {
			for _, member := range e.replicas[asked].Status(t.Context()).Members {
				behind := member.ReplicaID == e.replicas["b"].ReplicaID()
				if behind != (member.Lag >= 20) {
					return false
				}
			}
			return true
		})
	}
}

// Replicas that stop at the same time wait for nobody.
func TestQuorumThatStopsDoesNotRemain(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	a := e.replicas["a"]
	eventually(t, "all are there", func() bool { return a.QuorumRemains(t.Context()) })
	e.replicas["b"].SetDraining()
	if a.QuorumRemains(t.Context()) {
		t.Error("one of three is taken for a quorum")
	}
}

// A request to join that comes while there is no leader waits for the next one.
func TestJoinWaitsForALeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	d := e.start("d")
	e.kill("a")
	if err := d.Join(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
}
