package cluster_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestInitAndJoinAreIdempotent(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b")
	id := e.replicas["a"].ClusterID()
	if err := e.replicas["a"].Init(t.Context()); err != nil {
		t.Errorf("init again: %v", err)
	}
	if err := e.replicas["b"].Join(t.Context(), "a:1"); err != nil {
		t.Errorf("join again: %v", err)
	}
	if e.replicas["a"].ClusterID() != id || e.replicas["b"].ClusterID() != id || len(e.replicas["a"].Members()) != 2 {
		t.Errorf("members %v of %s", e.replicas["a"].Members(), e.replicas["a"].ClusterID())
	}
}

func TestInitIsRefusedBesideACluster(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a")
	b := e.start("b", func(o *cluster.Options) { o.Peers.Join = []string{"a:1"} })
	// The join list takes it in on its own, so that there is nothing to initialise.
	eventually(t, "it has joined", func() bool { return b.ClusterID() == e.replicas["a"].ClusterID() })

	c := e.start("c", func(o *cluster.Options) { o.Peers.Join = []string{"nobody:1", "a:1"} })
	if err := c.Init(t.Context()); err != nil && (!errors.Is(err, cluster.ErrMembership) || !strings.Contains(err.Error(), "a:1")) {
		t.Errorf("init: %v", err)
	}
	eventually(t, "it is in the one cluster", func() bool { return c.ClusterID() == e.replicas["a"].ClusterID() })
}

func TestUnattendedStart(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	list := []string{"a:1", "b:1", "c:1"}
	for _, name := range []string{"c", "a", "b"} {
		e.start(name, func(o *cluster.Options) { o.Peers.Join, o.Peers.BootstrapExpect = list, 3 })
	}
	e.waitVoters("a", "b", "c")
	id := e.replicas["a"].ClusterID()
	for name, replica := range e.replicas {
		if replica.ClusterID() != id {
			t.Errorf("%s is in another cluster", name)
		}
	}
	// One that comes later, or comes back, forms no other cluster.
	e.kill("a")
	e.start("a", func(o *cluster.Options) { o.Peers.Join, o.Peers.BootstrapExpect = list, 3 })
	e.waitVoters("a", "b", "c")
	if e.replicas["a"].ClusterID() != id {
		t.Error("it has formed another cluster")
	}
}

func TestUnattendedStartWaitsForEnoughReplicas(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	expect := func(o *cluster.Options) {
		o.Peers.Join, o.Peers.BootstrapExpect = []string{"a:1", "b:1", "c:1"}, 3
	}
	e.start("a", expect)
	e.start("b", expect)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := e.replicas["a"].WaitReady(ctx); err == nil {
		t.Error("two of three have formed a cluster")
	}
	e.start("c", expect)
	e.waitVoters("a", "b", "c")
}

func TestLoneReplicaBecomesTheFirstOfThree(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	dir := t.TempDir()
	lone := start(t, cluster.Options{Name: "a", DataDir: dir})
	propose(t, lone, register(1))
	id := lone.ClusterID()
	stop(t, lone)
	e.dirs["a"] = dir
	waitReady(t, e.start("a"))
	e.start("b")
	e.start("c")
	for _, name := range []string{"b", "c"} {
		if err := e.replicas[name].Join(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		}
	}
	e.waitVoters("a", "b", "c")
	for name, replica := range e.replicas {
		if view, err := replica.Read(t.Context()); err != nil || !hasNode(view, 1) || replica.ClusterID() != id {
			t.Errorf("%s: %v, cluster %s", name, err, replica.ClusterID())
		}
	}
}

// B-17: everything moves, behind the same names.
func TestAllAddressesChange(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	propose(t, e.replicas["a"], register(1))
	for _, name := range []string{"a", "b", "c"} {
		e.kill(name)
	}
	for _, name := range []string{"a", "b", "c"} {
		e.start(name) // on another port
	}
	e.waitVoters("a", "b", "c")
	if view, err := e.replicas["b"].Read(t.Context()); err != nil || !hasNode(view, 1) {
		t.Errorf("after the move: %v", err)
	}
}

func TestReplicaThatMovesKeepsItsID(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	id := e.replicas["c"].ReplicaID()
	e.kill("c")
	e.dirs["moved"] = e.dirs["c"]
	moved := e.start("moved")
	eventually(t, "the others know the new address", func() bool {
		for _, member := range e.replicas["a"].Members() {
			if member.ReplicaID == id {
				return member.Address == "moved:1" && moved.Ready()
			}
		}
		return false
	})
	propose(t, moved, register(1))
}

func TestLeaveHandsOverAndStops(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	leader := e.leader()
	leaving := e.replicas[leader]
	eventually(t, "it leaves", func() bool { return leaving.Leave(t.Context()) == nil }) // a transfer may take too long
	waitDone(t, leaving)
	if !errors.Is(leaving.Err(), cluster.ErrRemoved) {
		t.Errorf("it stopped with %v", leaving.Err())
	}
	e.kill(leader)
	rest := e.replicas[e.leader()]
	propose(t, rest, register(1))
	if len(rest.Members()) != 2 {
		t.Errorf("members %v", rest.Members())
	}
}

func TestDemotedReplicaStaysWithoutAVote(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	if err := e.replicas["a"].Demote(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	// Autopilot takes in another one, and so has had its chance.
	e.start("d")
	if err := e.replicas["d"].Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new one votes", func() bool {
		for _, member := range e.replicas["a"].Members() {
			if cluster.ReplicaName(member.ReplicaID) == "d" {
				return member.Voter
			}
		}
		return false
	})
	for _, status := range e.replicas["a"].Status(t.Context()).Members {
		if name := cluster.ReplicaName(status.ReplicaID); name == "c" && (status.Voter || !status.HeldBack) {
			t.Errorf("the demoted replica: %+v", status)
		}
	}
	e.promote("c")
	eventually(t, "it votes again", func() bool {
		for _, status := range e.replicas["a"].Status(t.Context()).Members {
			if cluster.ReplicaName(status.ReplicaID) == "c" {
				return status.Voter && !status.HeldBack
			}
		}
		return false
	})
}

func TestDeadVoterIsReplaced(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	soon := func(o *cluster.Options) { o.Peers.Autopilot.DeadAfter = time.Second }
	for _, name := range []string{"a", "b", "c"} {
		e.start(name, soon)
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	dead := e.replicas["c"].ReplicaID()
	e.kill("c")
	e.start("d", soon)
	if err := e.replicas["d"].Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	e.waitVoters("a", "b", "d")
	eventually(t, "the dead replica is barred", func() bool { return e.replicas["a"].View().ReplicaRemoved(dead) })
}

// Nobody knows what became of a removal but who looks: to repeat it does no harm.
func TestRemovalMayBeRepeated(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a, id := e.replicas["a"], e.replicas["c"].ReplicaID()
	if err := a.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	e.kill("c")
	for _, given := range []string{"c", id} {
		if err := a.Remove(t.Context(), given); err != nil {
			t.Errorf("remove %s again: %v", given, err)
		}
	}
	for _, given := range []string{"x", "x-00000000", id + "-00000000"} {
		if err := a.Remove(t.Context(), given); !errors.Is(err, cluster.ErrUnknownReplica) {
			t.Errorf("remove %s, which never was: %v", given, err)
		}
	}
	// By its id the old one is meant, whoever has its name now.
	delete(e.dirs, "c")
	again := e.start("c")
	if err := again.Join(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(t.Context(), id); err != nil {
		t.Errorf("remove the old one again: %v", err)
	}
	e.waitVoters("a", "b", "c")
}

// A leader that fails after the first step of a removal leaves the second to who
// repeats it.
func TestRepeatedRemovalBarsTheID(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	a, id := e.replicas["a"], e.replicas["c"].ReplicaID()
	eventually(t, "c has introduced itself", func() bool { record, ok := a.View().Replica(id); return ok && record.BootID != "" })
	if err := a.Raft().RemoveServer(raft.ServerID(id), 0, patience).Error(); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(t.Context(), id); err != nil {
		t.Errorf("remove: %v", err)
	}
	if !a.View().ReplicaRemoved(id) {
		t.Error("its id is not barred")
	}
}

func TestJoinerOfAnotherVersionOrAddressIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a")
	b := e.start("b", func(o *cluster.Options) { o.Peers.Advertise = "a:1" })
	if err := b.Join(t.Context(), "a:1"); !errors.Is(err, cluster.ErrMembership) || !strings.Contains(err.Error(), "a:1") {
		t.Errorf("join under another one's address: %v", err)
	}
}

// A stranger that says nothing, or something else, is let go.
func TestStrangersOnTheClusterPort(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a")
	e.network.mu.Lock()
	address := e.network.addresses["a:1"]
	e.network.mu.Unlock()
	for _, words := range []string{"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "scp1\xff\xff\xff\xff", "scp1\x00\x00\x00\x02\xff\xff"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(words)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 {
			t.Errorf("%q was answered", words)
		}
		_ = conn.Close()
	}
	propose(t, e.replicas["a"], register(1))
}

// B-05: the reply to a forwarded write is lost, and the caller sends it again.
func TestLostReplyDoesNotRepeatAWrite(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	add := func() *slimcppb.Command {
		return &slimcppb.Command{RequestId: "once", Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "s"}}}
	}
	for range 20 {
		var callers sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		callers.Go(func() { _, _ = e.replicas["b"].Propose(ctx, add()) })
		e.network.isolate("b", true)
		cancel()
		callers.Wait()
		e.network.isolate("b", false)
	}
	var first fsm.Result
	eventually(t, "the write is answered", func() bool {
		result, err := e.replicas["b"].Propose(t.Context(), add())
		first = result
		return err == nil && result.Err == nil
	})
	again, err := e.replicas["c"].Propose(t.Context(), add())
	if err != nil || again.Index != first.Index {
		t.Errorf("sent again it took effect at index %d, %v, not %d", again.Index, err, first.Index)
	}
}

// B-15: no write of a member fails for good while another one is added.
func TestWritesGoOnWhileAMemberIsAdded(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for at, name := range []string{"a", "b", "c"} {
		replica := e.replicas[name]
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				result, err := replica.Propose(t.Context(), registerNamed(name, uint64(at*1_000_000+i+1)))
				if err := errors.Join(err, result.Err); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	e.start("d")
	err := e.replicas["d"].Join(t.Context(), "b:1")
	e.waitVoters("a", "b", "c", "d")
	cancel()
	callers.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

// B-34: a member that swallows everything does not hold up the others.
func TestBlackHoleDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	e.transfer("a")
	e.network.isolate("c", true)
	began := time.Now()
	for i := range 50 {
		proposeWithRetry(t, e.replicas["b"], register(i))
	}
	if spent := time.Since(began); spent > 20*time.Second { // a held up write takes a second or more
		t.Errorf("50 writes took %s", spent)
	}
	e.network.isolate("c", false)
	eventually(t, "it catches up", func() bool { return hasNode(e.replicas["c"].View(), 49) })
	e.waitVoters("a", "b", "c")
}
