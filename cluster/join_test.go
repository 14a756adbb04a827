package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
)

// leaderless forms a cluster of two, kills one and returns the other's name.
func leaderless(t *testing.T, e *ensemble) (left, killed string) {
	t.Helper()
	e.form("a", "b")
	left, killed = e.followers()[0], e.leader()
	e.kill(killed)
	eventually(t, "nobody leads", func() bool { return e.replicas[left].Status(t.Context()).LeaderID == "" })
	return left, killed
}

// A join that was surely not made may be repeated, and binds the replica to nothing.
func TestJoinWithoutALeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	left, killed := leaderless(t, e)
	d := e.start("d")
	for range 2 {
		err := d.Join(t.Context(), left+":1")
		if !errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, cluster.ErrMembership) || errors.Is(err, cluster.ErrUnknownOutcome) {
			t.Fatalf("join: %v", err)
		}
	}
	x := e.start("x")
	if err := x.Join(t.Context(), left+":1"); !errors.Is(err, cluster.ErrNoLeader) {
		t.Fatalf("join: %v", err)
	}
	if err := x.Init(t.Context()); err != nil {
		t.Errorf("init after a join that failed: %v", err)
	}
	e.start(killed)
	eventually(t, "d has joined", func() bool { return d.Join(t.Context(), left+":1") == nil })
	eventually(t, "d votes", func() bool { return voters(d)["d"] })
	if x.ClusterID() == d.ClusterID() {
		t.Errorf("both are in cluster %s", d.ClusterID())
	}
}

// A refusal that a follower passes on is still one.
func TestJoinRefusedThroughAFollower(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b")
	e.transfer("a")
	d := e.start("d", func(o *cluster.Options) { o.Peers.Advertise = "nowhere:1" })
	err := d.Join(t.Context(), "b:1")
	if !errors.Is(err, cluster.ErrMembership) || strings.Count(err.Error(), "membership:") != 1 || !strings.Contains(err.Error(), "nowhere:1") {
		t.Errorf("join: %v", err)
	}
	if err := d.Init(t.Context()); err != nil {
		t.Errorf("init after a join that was refused: %v", err)
	}
}

// A join that may have been made is no failure, and the replica stays bound to it.
func TestJoinWithAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"a", "b"} {
		t.Run("not answered through "+through, func(t *testing.T) {
			e, disk := newEnsemble(t), &faultyLogs{}
			e.start("a", func(o *cluster.Options) { *o = o.WithLogs(disk.wrap) })
			e.start("b")
			e.unite("a", "b")
			e.waitVoters("a", "b")
			e.transfer("a")
			d := e.start("d")
			unblock := disk.block()
			defer unblock()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			wantBound(t, d, d.Join(ctx, through+":1"))
			unblock()
			eventually(t, "it is taken in", func() bool { return voters(d)["d"] })
		})
	}
	t.Run("leadership lost", func(t *testing.T) {
		e, disk := newEnsemble(t), &faultyLogs{}
		e.start("a")
		e.start("b", func(o *cluster.Options) { *o = o.WithLogs(disk.wrap) })
		e.unite("a", "b")
		e.waitVoters("a", "b")
		e.transfer("a")
		d := e.start("d")
		unblock := disk.block()
		defer unblock()
		joined := make(chan error, 1)
		go func() { joined <- d.Join(t.Context(), "a:1") }()
		eventually(t, "it is in the log", func() bool { return isMember(e.replicas["a"], d.ReplicaID()) })
		e.network.separate("a", []string{"b"}, true)
		wantBound(t, d, <-joined)
	})
}

func wantBound(t *testing.T, d *cluster.Replica, err error) {
	t.Helper()
	if !errors.Is(err, cluster.ErrUnknownOutcome) || errors.Is(err, cluster.ErrMembership) {
		t.Errorf("join: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	// On a member init changes nothing, and it may be one.
	if err := d.Init(ctx); !errors.Is(err, cluster.ErrMembership) && len(d.Members()) < 2 {
		t.Errorf("init of a replica that may be a member: %v, members %v", err, d.Members())
	}
}

func TestLeaveWithAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	e, disk := newEnsemble(t), &faultyLogs{}
	e.start("a", func(o *cluster.Options) { *o = o.WithLogs(disk.wrap) })
	e.start("b")
	e.start("c")
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	c := e.replicas["c"]
	unblock := disk.block()
	defer unblock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.Leave(ctx); !errors.Is(err, cluster.ErrUnknownOutcome) || errors.Is(err, cluster.ErrMembership) {
		t.Errorf("leave: %v", err)
	}
	unblock()
	waitDone(t, c)
	if !errors.Is(c.Err(), cluster.ErrRemoved) {
		t.Errorf("it stopped with %v", c.Err())
	}
}

// Replicas that meet a member of a cluster form none, even if it cannot take them in.
func TestUnattendedStartBesideAClusterWithoutALeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	left, killed := leaderless(t, e)
	id := e.replicas[left].ClusterID()
	for _, name := range []string{"x", "y"} {
		e.start(name, func(o *cluster.Options) {
			o.Peers.Join, o.Peers.BootstrapExpect = []string{left + ":1", "x:1", "y:1"}, 2
		})
	}
	<-time.After(4 * time.Second)
	for _, name := range []string{"x", "y"} {
		if members := e.replicas[name].Members(); len(members) > 0 {
			t.Fatalf("%s is in a cluster of %v", name, members)
		}
	}
	e.start(killed)
	e.waitVoters("a", "b", "x", "y")
	for name, replica := range e.replicas {
		if replica.ClusterID() != id {
			t.Errorf("%s is in another cluster", name)
		}
	}
}

// A replica that is in no cluster says so, whatever it is asked.
func TestOutsideACluster(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	outside := e.start("a")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, reading := outside.Read(ctx)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, proposing := outside.Propose(ctx, register(1))
	for what, err := range map[string]error{"read": reading, "proposal": proposing} {
		if !errors.Is(err, cluster.ErrNoLeader) || !strings.Contains(err.Error(), "not a member of a cluster") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
