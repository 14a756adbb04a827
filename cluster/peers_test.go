package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
)

// testTimings are as short as a busy machine with two processors bears.
var testTimings = cluster.Timings{
	Heartbeat: 400 * time.Millisecond, Election: 400 * time.Millisecond, LeaderLease: 350 * time.Millisecond,
}

// ensemble is a cluster under test.
type ensemble struct {
	tb       testing.TB
	network  *network
	dirs     map[string]string
	stores   map[string]*fsm.Store
	replicas map[string]*cluster.Replica
	register func(grpc.ServiceRegistrar) // adds a service between replicas
	fencing  bool                        // replicas are fenced on purpose; else none may be
}

func newEnsemble(tb testing.TB) *ensemble {
	e := &ensemble{
		tb: tb, network: newNetwork(), dirs: map[string]string{}, stores: map[string]*fsm.Store{},
		replicas: map[string]*cluster.Replica{},
	}
	tb.TempDir() // the directories are removed after the replicas have stopped
	tb.Cleanup(func() {
		e.checkNoneFenced()
		var stopping sync.WaitGroup
		for _, replica := range e.replicas {
			stopping.Go(func() { stop(tb, replica) })
		}
		stopping.Wait()
	})
	return e
}

// checkNoneFenced fails a test in which a replica was taken out of Raft: a leader that
// is one has all that was committed, whatever the network and the disks do.
func (e *ensemble) checkNoneFenced() {
	e.tb.Helper()
	for name, replica := range e.replicas {
		if reason := replica.Fenced(); reason != "" && !e.fencing {
			e.tb.Errorf("%s is fenced: %s", name, reason)
		}
		if alarm := replica.Alarm(); strings.Contains(alarm, "has lost entries") && !e.fencing {
			e.tb.Errorf("%s: %s", name, alarm)
		}
	}
}

// start starts a replica on its data directory. change may alter its options.
func (e *ensemble) start(name string, change ...func(*cluster.Options)) *cluster.Replica {
	e.tb.Helper()
	replica, err := e.open(name, change...)
	if err != nil {
		e.tb.Fatal(err)
	}
	return replica
}

func (e *ensemble) open(name string, change ...func(*cluster.Options)) (*cluster.Replica, error) {
	e.tb.Helper()
	if e.dirs[name] == "" {
		e.dirs[name] = e.tb.TempDir()
	}
	options := cluster.Options{
		Name: name, Version: "test", DataDir: e.dirs[name], Timings: testTimings,
		Peers: &cluster.Peers{
			Listener: e.network.listen(e.tb, name), Advertise: name + ":1", Dial: e.network.dial(name),
			Autopilot: cluster.Autopilot{StabilizationTime: 200 * time.Millisecond, DeadServerCleanup: true, MinQuorum: 3},
		},
	}
	for _, change := range change {
		change(&options)
	}
	store := fsm.New()
	replica, err := cluster.Open(context.Background(), options, store, quiet(e.tb).Named(name))
	if err != nil {
		_ = options.Peers.Listener.Close()
		return nil, err
	}
	if e.register != nil {
		replica.RegisterPeerService(e.register)
	}
	replica.ServePeers()
	e.stores[name], e.replicas[name] = store, replica
	return replica, nil
}

// form starts replicas and makes them one cluster in which all vote.
func (e *ensemble) form(names ...string) {
	e.tb.Helper()
	for _, name := range names {
		e.start(name)
	}
	e.unite(names...)
	e.waitVoters(names...)
}

// unite makes replicas one cluster. They need not vote yet.
func (e *ensemble) unite(names ...string) {
	e.tb.Helper()
	if err := e.replicas[names[0]].Init(e.tb.Context()); err != nil {
		e.tb.Fatal("init:", err)
	}
	for _, name := range names[1:] { // a busy machine may lose a leader
		eventually(e.tb, name+" joins", func() bool { return e.replicas[name].Join(e.tb.Context(), names[0]+":1") == nil })
	}
}

// promote gives a member its vote.
func (e *ensemble) promote(name string) {
	e.tb.Helper()
	eventually(e.tb, name+" votes", func() bool { return e.replicas[e.leader()].Promote(e.tb.Context(), name) == nil })
}

// transfer makes a replica the leader, once it votes.
func (e *ensemble) transfer(name string) {
	e.tb.Helper()
	eventually(e.tb, name+" leads", func() bool {
		_, err := e.replicas[e.leader()].TransferLeadership(e.tb.Context(), name)
		leading, _ := e.replicas[name].Leadership()
		return err == nil && leading
	})
}

// waitVoters waits until exactly these replicas vote and all of them know it.
func (e *ensemble) waitVoters(names ...string) {
	e.tb.Helper()
	e.waitVotersOf(names, names...)
}

// waitVotersOf is waitVoters where not all of those who vote are there.
func (e *ensemble) waitVotersOf(present []string, names ...string) {
	e.tb.Helper()
	eventually(e.tb, fmt.Sprintf("voters %v", names), func() bool {
		for _, name := range present {
			var voters []string
			for _, member := range e.replicas[name].Members() {
				if member.Voter {
					voters = append(voters, cluster.ReplicaName(member.ReplicaID))
				}
			}
			if slices.Sort(voters); !slices.Equal(voters, slices.Sorted(slices.Values(names))) || !e.replicas[name].Ready() {
				return false
			}
		}
		return true
	})
}

// leader returns the name of the replica that leads.
func (e *ensemble) leader() string {
	e.tb.Helper()
	var leader string
	eventually(e.tb, "a leader", func() bool {
		for name, replica := range e.replicas {
			if leading, _ := replica.Leadership(); leading {
				leader = name
				return true
			}
		}
		return false
	})
	return leader
}

// followers returns the names of those that do not lead.
func (e *ensemble) followers() []string {
	e.tb.Helper()
	leader := e.leader()
	var names []string
	for name := range e.replicas {
		if name != leader {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// kill ends a replica. Its data directory stays.
func (e *ensemble) kill(name string) {
	e.tb.Helper()
	e.checkNoneFenced()
	stop(e.tb, e.replicas[name])
	delete(e.replicas, name)
}

func TestThreeReplicasFormACluster(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	for i, name := range []string{"a", "b", "c"} {
		result := propose(t, e.replicas[name], register(i))
		for _, reader := range e.replicas {
			view, err := reader.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if view.Index() < result.Index || !hasNode(view, i) {
				t.Errorf("%s read index %d, which lacks what %s was answered at index %d", reader.ReplicaID(), view.Index(), name, result.Index)
			}
		}
	}
	ids := map[string]bool{}
	for _, replica := range e.replicas {
		ids[replica.ClusterID()] = true
	}
	if len(ids) != 1 {
		t.Errorf("cluster ids %v", ids)
	}
	status := e.replicas["b"].Status(t.Context())
	if status.FailureTolerance != 1 || len(status.Members) != 3 {
		t.Errorf("status %+v", status)
	}
	for _, member := range status.Members {
		if !member.Healthy || member.Version != "test" {
			t.Errorf("member %+v", member)
		}
	}
}

func TestClusterSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	propose(t, e.replicas["a"], register(0))
	old := e.leader()
	e.waitRecorded(old) // its version is what it said when it started
	e.kill(old)
	for name, replica := range e.replicas {
		for _, member := range replica.Status(t.Context()).Members {
			if member.Version != "test" {
				t.Errorf("%s says that %s has version %q", name, member.ReplicaID, member.Version)
			}
		}
	}
	for name, replica := range e.replicas {
		eventually(t, "a write through "+name, func() bool {
			// Unknown at first, if it was under way to the one that died; the same
			// name takes effect once.
			result, err := replica.Propose(t.Context(), register(1))
			if err != nil && !errors.Is(err, cluster.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			return err == nil && result.Err == nil
		})
	}
	e.start(old)
	e.waitVoters("a", "b", "c")
	eventually(t, "the old leader has what was written without it", func() bool { return hasNode(e.replicas[old].View(), 1) })
}

func TestRestoreBringsTheSavedStateBack(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	e.form("a", "b", "c")
	for i := range 5 {
		propose(t, e.replicas["a"], register(i))
	}
	var saved bytes.Buffer
	info, err := e.replicas[e.followers()[0]].SaveSnapshot(t.Context(), &saved)
	if err != nil {
		t.Fatal(err)
	}
	for i := 5; i < 10; i++ {
		propose(t, e.replicas["b"], register(i))
	}
	leader := e.replicas[e.leader()]
	if _, err := leader.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()[:saved.Len()-1]), false); !errors.Is(err, fsm.ErrSnapshot) {
		t.Errorf("a cut file: %v", err)
	}
	before := leader.View().Index()
	restored, err := leader.RestoreSnapshot(t.Context(), bytes.NewReader(saved.Bytes()), false)
	if err != nil {
		t.Fatal(err)
	}
	if restored.Generation != info.Generation+1 {
		t.Errorf("generation %d after %d", restored.Generation, info.Generation)
	}
	for name, replica := range e.replicas {
		view, err := replica.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !hasNode(view, 4) || hasNode(view, 5) || view.Generation() != restored.Generation {
			t.Errorf("%s: nodes %v, generation %d", name, nodeIDs(view), view.Generation())
		}
		if view.Index() <= before {
			t.Errorf("%s: read at index %d, %d was read before the restore", name, view.Index(), before)
		}
	}
	propose(t, e.replicas[e.followers()[0]], register(6))
	// It is the state that a restarted replica has, too.
	follower := e.followers()[0]
	e.kill(follower)
	waitReady(t, e.start(follower))
	if view := e.replicas[follower].View(); !hasNode(view, 6) || hasNode(view, 5) || view.Generation() != restored.Generation {
		t.Errorf("after a restart: nodes %v, generation %d", nodeIDs(view), view.Generation())
	}
}

// corruptedLogs is a disk that changes a byte of some entries.
type corruptedLogs struct {
	raft.LogStore
	from, to string
}

func (c *corruptedLogs) StoreLogs(logs []*raft.Log) error {
	for _, log := range logs {
		log.Data = bytes.ReplaceAll(log.Data, []byte(c.from), []byte(c.to))
	}
	return c.LogStore.StoreLogs(logs)
}

func TestDivergedReplicaIsTakenOutOfService(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	often := func(o *cluster.Options) { *o = o.WithCheckpoints(300 * time.Millisecond) }
	e.start("a", often)
	e.start("b", often)
	e.start("c", often, func(o *cluster.Options) {
		*o = o.WithLogs(func(logs raft.LogStore) raft.LogStore {
			return &corruptedLogs{LogStore: logs, from: "n42", to: "n43"}
		})
	})
	if err := e.replicas["a"].Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		if err := e.replicas[name].Join(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		}
	}
	e.waitVoters("a", "b", "c")
	propose(t, e.replicas["b"], register(1))
	waitReady(t, e.replicas["c"])
	if reason := e.replicas["c"].Distrusted(); reason != "" {
		t.Fatalf("out of service without a reason: %s", reason)
	}
	propose(t, e.replicas["b"], register(42))
	eventually(t, "the odd one out is found", func() bool { return e.replicas["c"].Distrusted() != "" })
	for _, name := range []string{"a", "b"} {
		if reason := e.replicas[name].Distrusted(); reason != "" {
			t.Errorf("%s: %s", name, reason)
		}
	}
	status := e.replicas[e.leader()].Status(t.Context())
	if status.Alarm == "" || status.FailureTolerance != 0 {
		t.Errorf("status tells of %q, tolerance %d", status.Alarm, status.FailureTolerance)
	}
	if leader := e.leader(); leader == "c" {
		t.Error("the odd one out leads")
	}
	// A restart does not make its state right.
	e.transfer("a")
	e.kill("c")
	c := e.start("c", often)
	if c.Distrusted() == "" {
		t.Error("after a restart it is in service")
	}
	if view, err := c.Read(t.Context()); !errors.Is(err, cluster.ErrNoLeader) {
		t.Errorf("it reads %v, %v", nodeIDs(view), err)
	}
	// Elected, it leads nobody and hands over.
	eventually(t, "it is elected", func() bool {
		err := e.replicas["a"].Raft().LeadershipTransferToServer(raft.ServerID(c.ReplicaID()), "c:1").Error()
		return err == nil
	})
	eventually(t, "another one leads", func() bool {
		if leading, _ := c.Leadership(); leading {
			t.Fatal("the odd one out leads")
		}
		for _, name := range []string{"a", "b"} {
			if leading, _ := e.replicas[name].Leadership(); leading {
				return true
			}
		}
		return false
	})
	propose(t, e.replicas["b"], register(2))
}

func TestStatusOfALoneReplica(t *testing.T) {
	t.Parallel()
	replica := start(t, cluster.Options{})
	status := replica.Status(t.Context())
	if len(status.Members) != 1 || !status.Members[0].Healthy || !status.Members[0].Leader || status.FailureTolerance != 0 {
		t.Errorf("status %+v", status)
	}
}
