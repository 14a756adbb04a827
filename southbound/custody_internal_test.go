package southbound

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// lone is a leader whose log is a store alone.
type lone struct {
	store *fsm.Store

	mu    sync.Mutex
	index uint64
	lost  []string // replicas of the sessions that were ended
}

func (l *lone) ReplicaID() string                       { return "leader" }
func (l *lone) BootID() string                          { return "boot" }
func (l *lone) LeaderKnown() (bool, time.Time)          { return true, time.Time{} }
func (l *lone) Read(context.Context) (*fsm.View, error) { return l.store.View(), nil }

func (l *lone) Propose(_ context.Context, command *slimcppb.Command) (fsm.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The cluster may use an older schema than this binary's newest.
	if command.GetSchema() > 0 {
		return fsm.Result{Err: fsm.ErrInactiveSchema}, nil
	}
	l.index++
	command = proto.CloneOf(command)
	command.TimeUnixNanos = time.Now().UnixNano()
	if lost := command.GetSessionLost(); lost != nil {
		l.lost = append(l.lost, lost.GetSession().GetReplicaId())
	}
	return l.store.Apply(l.index, 1, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0], nil
}

func (l *lone) ProposeAsLeader(ctx context.Context, _ uint64, command *slimcppb.Command) (fsm.Result, error) {
	return l.Propose(ctx, command)
}

func (l *lone) lostReplicas() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lost)
}

// watching is the custody of a leader whose state has a session on another replica
// that never attaches. What it returns besides closes it.
func (l *lone) watching(t *testing.T) (*custody, func()) {
	t.Helper()
	for _, command := range []*slimcppb.Command{
		{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test", ActiveSchema: fsm.SchemaVersion}}},
		{Generation: 1, Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
			Config: &slimcppb.FleetConfig{Graces: &slimcppb.Graces{ReplicaMs: 5000}},
		}}},
		{Generation: 1, Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
			Session: fsm.SessionName{ReplicaID: "other", BootID: "boot", Counter: 1}.Proto(), Group: "g", Node: "n",
		}}},
	} {
		if result, _ := l.Propose(t.Context(), command); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	service := New(Options{Proposer: l, Store: l.store, Logger: hclog.NewNullLogger()})
	router := NewRouter(RouterOptions{Service: service, Proposer: l, Store: l.store})
	c := newCustody(t.Context(), router, 1)
	node, _ := l.store.View().Node("g/n")
	c.follow(node)
	return c, func() { c.close(); service.Close() }
}

// What a leader did not hear while it stood still itself says nothing about the
// others.
func TestLeaderThatStoodStillGivesNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &lone{store: fsm.New()}
		c, end := leader.watching(t)
		defer end()
		looks := 0
		c.pause = func(ctx context.Context, d time.Duration) bool {
			if looks++; looks == 3 {
				d = 10 * time.Minute // the machine sleeps, or the process is stopped
			}
			return pause(ctx, d)
		}
		c.running.Go(c.watch)
		pass(10*time.Minute + 4*time.Second)
		synctest.Wait()
		if lost := leader.lostReplicas(); len(lost) > 0 {
			t.Errorf("sessions of %v were given up by a leader that had stood still", lost)
		}
		pass(2 * time.Second)
		synctest.Wait()
		if lost := leader.lostReplicas(); !slices.Equal(lost, []string{"other"}) {
			t.Errorf("after another replica_grace sessions of %v were given up, want those of other", lost)
		}
	})
}

// In the midst of a rolling upgrade the leader may know a newer schema than the
// cluster uses (protocol X5). It gives sessions up all the same.
func TestSessionsAreGivenUpBeforeAnUpgradeIsFinalized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &lone{store: fsm.New()}
		c, end := leader.watching(t)
		defer end()
		pass(5 * time.Second)
		c.look(time.Now())
		synctest.Wait()
		if node, ok := leader.store.View().Node("g/n"); !ok || node.Connected() {
			t.Error("the session of a replica that is gone was not given up")
		}
	})
}
