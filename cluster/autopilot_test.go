package cluster_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
)

// voters returns the names of the members that vote, as a replica knows it.
func voters(replica *cluster.Replica) map[string]bool {
	names := map[string]bool{}
	for _, member := range replica.Members() {
		if member.Voter {
			names[cluster.ReplicaName(member.ReplicaID)] = true
		}
	}
	return names
}

func isMember(replica *cluster.Replica, id string) bool {
	for _, member := range replica.Members() {
		if member.ReplicaID == id {
			return true
		}
	}
	return false
}

// loneLeader starts a cluster of a, whose disk can be blocked, and d without a vote.
func loneLeader(t *testing.T, stabilisation time.Duration) (e *ensemble, disk *faultyLogs) {
	t.Helper()
	e, disk = newEnsemble(t), &faultyLogs{}
	slow := func(o *cluster.Options) { o.Peers.Autopilot.StabilizationTime = stabilisation }
	a := e.start("a", slow, func(o *cluster.Options) { *o = o.WithLogs(disk.wrap) })
	if err := a.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Autopilot gives votes without delay to whoever joins before it has run so long.
	<-time.After(stabilisation + stabilisation/4)
	d := e.start("d", slow)
	if err := d.Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "d has introduced itself", func() bool { _, ok := a.View().Replica(d.ReplicaID()); return ok })
	return e, disk
}

// Autopilot decides by what it saw a moment ago, when the replica was a member.
func TestAutopilotDoesNotBringBackARemovedReplica(t *testing.T) {
	t.Parallel()
	e, disk := loneLeader(t, 2*time.Second)
	a, id := e.replicas["a"], e.replicas["d"].ReplicaID()
	unblock := disk.block()
	defer unblock()
	removed := make(chan error, 1)
	go func() { removed <- a.Remove(t.Context(), id) }()
	<-time.After(3 * time.Second) // the time for d's vote comes
	if voters(a)["d"] {
		t.Fatal("d votes already")
	}
	unblock()
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Second) // autopilot, too, has done what it had decided
	if isMember(a, id) || !a.View().ReplicaRemoved(id) {
		t.Errorf("members %v, barred %v", a.Members(), a.View().ReplicaRemoved(id))
	}
	propose(t, a, register(1))
}

// A change that its caller gave up on may yet be made. The next one waits for it.
func TestChangeThatWasGivenUpIsNotUndone(t *testing.T) {
	t.Parallel()
	e, disk := loneLeader(t, time.Second)
	a, id := e.replicas["a"], e.replicas["d"].ReplicaID()
	eventually(t, "d votes", func() bool { return voters(a)["d"] })
	if err := a.Demote(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	unblock := disk.block()
	defer unblock()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := a.Remove(ctx, id); !errors.Is(err, cluster.ErrUnknownOutcome) || errors.Is(err, cluster.ErrMembership) {
		t.Fatalf("remove: %v", err)
	}
	promoted := make(chan error, 1)
	go func() { promoted <- a.Promote(t.Context(), id) }()
	<-time.After(500 * time.Millisecond) // it judges what it sees
	unblock()
	if err := <-promoted; !errors.Is(err, cluster.ErrUnknownReplica) {
		t.Errorf("promote: %v", err)
	}
	if isMember(a, id) {
		t.Errorf("members %v", a.Members())
	}
}

// A replica that an operator keeps from voting does not make up for a dead voter.
func TestMinQuorumCountsOnlyVoters(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	soon := func(o *cluster.Options) { o.Peers.Autopilot.DeadAfter = time.Second }
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		e.start(name, soon)
	}
	e.unite(names...)
	e.waitVoters(names...)
	e.transfer("a")
	a := e.replicas["a"]
	if err := a.Demote(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	e.kill("c")
	<-time.After(3 * time.Second)
	if len(voters(a)) != 3 {
		t.Fatalf("voters %v, and min_quorum is 3", voters(a))
	}
	e.promote("d")
	eventually(t, "c is removed", func() bool { return !voters(a)["c"] })
	if len(voters(a)) != 3 {
		t.Errorf("voters %v", voters(a))
	}
}

// A replica that has joined and never voted does not make up for one either: the
// library counts it.
func TestMinQuorumDoesNotCountNewcomers(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	change := func(o *cluster.Options) {
		o.Peers.Autopilot.DeadAfter, o.Peers.Autopilot.StabilizationTime = time.Second, 5*time.Second
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		e.start(name, change)
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	a := e.replicas["a"]
	<-time.After(6 * time.Second) // until the newcomer has to wait for its vote
	if err := e.replicas["d"].Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	e.kill("c")
	for end := time.Now().Add(patience); voters(a)["c"] && time.Now().Before(end); {
		if len(voters(a)) < 3 {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	if !voters(a)["d"] || len(voters(a)) != 3 {
		t.Errorf("voters %v when the dead one was removed", voters(a))
	}
}
