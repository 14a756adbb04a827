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

// What a leader did not hear while it stood still itself says nothing about the
// others.
func TestLeaderThatStoodStillGivesNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &lone{store: fsm.New()}
		for _, command := range []*slimcppb.Command{
			{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test"}}},
			{Generation: 1, Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
				Config: &slimcppb.FleetConfig{Graces: &slimcppb.Graces{ReplicaMs: 5000}},
			}}},
			{Generation: 1, Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
				Session: fsm.SessionName{ReplicaID: "other", BootID: "boot", Counter: 1}.Proto(), Group: "g", Node: "n",
			}}},
		} {
			if result, _ := leader.Propose(t.Context(), command); result.Err != nil {
				t.Fatal(result.Err)
			}
		}
		service := New(Options{Proposer: leader, Store: leader.store, Logger: hclog.NewNullLogger()})
		defer service.Close()
		router := NewRouter(RouterOptions{Service: service, Proposer: leader, Store: leader.store})
		c := newCustody(t.Context(), router, 1)
		defer c.close()
		node, _ := leader.store.View().Node("g/n")
		c.follow(node)
		pass(5 * time.Second)
		c.forgive(5 * time.Second)
		c.look(time.Now())
		synctest.Wait()
		if lost := leader.lostReplicas(); len(lost) > 0 {
			t.Errorf("sessions of %v were given up by a leader that had stood still", lost)
		}
		pass(5 * time.Second)
		c.look(time.Now())
		synctest.Wait()
		if lost := leader.lostReplicas(); !slices.Equal(lost, []string{"other"}) {
			t.Errorf("after another replica_grace sessions of %v were given up, want those of other", lost)
		}
	})
}
