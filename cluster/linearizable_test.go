package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/segments"
)

// chaos is an ensemble whose replicas come and go while callers use them.
type chaos struct {
	*ensemble
	seats map[string]*atomic.Pointer[cluster.Replica]
	began time.Time
	// phase numbers what is done to the replicas.
	phase atomic.Int64
}

// hasty elections: whether a leader is lost too often does not matter here.
func hasty(o *cluster.Options) {
	o.Timings = cluster.Timings{Heartbeat: 200 * time.Millisecond, Election: 200 * time.Millisecond, LeaderLease: 150 * time.Millisecond}
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{ensemble: newEnsemble(t), seats: map[string]*atomic.Pointer[cluster.Replica]{}, began: time.Now()}
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, hasty)
	}
	c.unite("a", "b", "c")
	c.waitVoters("a", "b", "c")
	for name, replica := range c.replicas {
		c.seats[name] = &atomic.Pointer[cluster.Replica]{}
		c.seats[name].Store(replica)
	}
	return c
}

func (c *chaos) now() int64 { return int64(time.Since(c.began)) }

// wreak does something to the replicas that would disturb a bad cluster, again and
// again. The pauses are longer than an election, some shorter than a failed call.
func (c *chaos) wreak(rounds int) {
	c.tb.Helper()
	acts := []func(){c.killLeader, c.isolateLeader, c.pauseLeader, c.handOver, c.isolateFollower, c.changeMembers}
	for round := range rounds {
		c.phase.Add(1)
		acts[round%len(acts)]()
		<-time.After(200 * time.Millisecond)
	}
}

// killLeader ends a leader in the middle of its work: what it would still say
// does not arrive.
func (c *chaos) killLeader() {
	name := c.leader()
	c.network.isolate(name, true)
	c.kill(name)
	<-time.After(300 * time.Millisecond)
	c.network.isolate(name, false)
	c.seats[name].Store(c.start(name, hasty))
}

func (c *chaos) isolateLeader() {
	name := c.leader()
	c.network.isolate(name, true)
	<-time.After(600 * time.Millisecond)
	c.network.isolate(name, false)
}

func (c *chaos) pauseLeader() {
	thaw := c.network.freeze(c.leader())
	<-time.After(700 * time.Millisecond)
	thaw()
}

func (c *chaos) handOver() {
	_, _ = c.replicas[c.leader()].TransferLeadership(c.tb.Context(), "")
}

func (c *chaos) isolateFollower() {
	name := c.followers()[0]
	c.network.isolate(name, true)
	<-time.After(300 * time.Millisecond)
	_ = c.replicas[c.leader()].Snapshot(c.tb.Context())
	c.network.isolate(name, false)
}

// changeMembers takes a replica in and removes it again.
func (c *chaos) changeMembers() {
	c.dirs["d"] = ""
	d := c.start("d", hasty)
	eventually(c.tb, "d is taken in", func() bool { return d.Join(c.tb.Context(), c.followers()[0]+":1") == nil })
	eventually(c.tb, "d is removed", func() bool {
		err := c.replicas[c.leader()].Remove(c.tb.Context(), d.ReplicaID())
		return err == nil
	})
	waitDone(c.tb, d)
	c.kill("d")
}

// operator calls one replica, one call after the other, and writes down what it was
// told.
type operator struct {
	chaos  *chaos
	name   string
	client int
	// repeats: what has an unknown outcome is sent again under its request id.
	repeats bool
	history []porcupine.Operation
}

func (o *operator) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		input := segments.Call{
			Kind: []string{segments.Add, segments.Remove, segments.Read, segments.Read}[rand.IntN(4)],
			Name: fmt.Sprintf("s%d-%d", o.chaos.phase.Load(), rand.IntN(2)),
		}
		call := o.chaos.now()
		output, happened := o.call(ctx, input, fmt.Sprintf("%d-%d", o.client, i))
		if !happened {
			<-time.After(time.Millisecond)
			continue
		}
		operation := porcupine.Operation{ClientId: o.client, Input: input, Call: call, Output: output, Return: o.chaos.now()}
		if output.Unknown {
			operation.Return = math.MaxInt64 // it may take effect at any time from its call on
		}
		o.history = append(o.history, operation)
	}
}

// call reports false for what surely has no effect, and no answer.
func (o *operator) call(ctx context.Context, input segments.Call, requestID string) (segments.Answer, bool) {
	if input.Kind == segments.Read {
		patient, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		view, err := o.replica().Read(patient)
		if err != nil {
			return segments.Answer{}, false
		}
		return segments.Answer{There: view.HasSegment(input.Name)}, true
	}
	command := &slimcppb.Command{RequestId: requestID}
	if input.Kind == segments.Add {
		command.Payload = &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: input.Name}}
	} else {
		command.Payload = &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: input.Name}}
	}
	sent := false
	for {
		patient, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		result, err := o.replica().Propose(patient, command)
		cancel()
		switch {
		case err == nil:
			return segments.Answer{There: result.Err == nil}, true
		case errors.Is(err, cluster.ErrUnknownOutcome):
			sent = true
		}
		if !sent {
			return segments.Answer{}, false
		}
		if !o.repeats || ctx.Err() != nil {
			return segments.Answer{Unknown: true}, true
		}
		<-time.After(time.Millisecond)
	}
}

func (o *operator) replica() *cluster.Replica { return o.chaos.seats[o.name].Load() }

// B-13, B-29: whatever becomes of leaders, operators on all replicas are told what
// one copy of the state could have told them.
func TestOperatorsSeeOneCopy(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var operators []*operator
	var calling sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		for i := range 3 {
			o := &operator{chaos: c, name: name, client: len(operators), repeats: i == 0}
			operators = append(operators, o)
			calling.Go(func() { o.run(ctx) })
		}
	}
	c.wreak(12)
	cancel()
	calling.Wait()
	var history []porcupine.Operation
	unknown := 0
	for _, o := range operators {
		history = append(history, o.history...)
	}
	for _, operation := range history {
		if operation.Output.(segments.Answer).Unknown {
			unknown++
		}
	}
	t.Logf("%d answers, %d of them unknown", len(history), unknown)
	switch result := porcupine.CheckOperationsTimeout(segments.Model(), history, time.Minute); result {
	case porcupine.Ok:
	case porcupine.Illegal:
		t.Error("no single copy of the state could have given these answers")
	case porcupine.Unknown:
		t.Error("the answers could not be checked in time")
	}
	if len(history) < 200 {
		t.Errorf("only %d answers", len(history))
	}
}

// keeper registers nodes with a name each, and remembers what was acknowledged.
type keeper struct {
	chaos    *chaos
	name     string
	sessions map[string]*slimcppb.SessionName // by node
	names    map[string]fsm.Name              // by node
	links    map[string]bool
}

func (k *keeper) run(ctx context.Context, group string) {
	for i := uint64(1); ctx.Err() == nil; i++ {
		session := &slimcppb.SessionName{ReplicaId: "other-01", BootId: group, Counter: i}
		node := fmt.Sprintf("%s/n%d", group, i)
		if !k.acknowledged(ctx, &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
			Session: session, Group: group, Node: fmt.Sprintf("n%d", i),
			Details: []*slimcppb.ConnectionDetail{{Endpoint: node + ":1", ExternalEndpoint: &node}},
		}}}) {
			return
		}
		k.sessions[node] = session
		wire := &slimcppb.Name{Component0: "org", Component1: group, Component2: fmt.Sprint(i)}
		if !k.acknowledged(ctx, &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
			Session: session, Sequence: 1, Changes: []*slimcppb.NameChange{{Name: wire}},
		}}}) {
			return
		}
		k.names[node] = fsm.Name{C0: "org", C1: group, C2: fmt.Sprint(i), ID: fsm.NoInstance}
		patient, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		view, err := k.chaos.seats[k.name].Load().Read(patient)
		cancel()
		if err != nil {
			continue
		}
		for link := range view.Links() {
			k.links[link.ID] = true
		}
		<-time.After(5 * time.Millisecond)
	}
}

// acknowledged sends a command until it is answered; false when the context ends
// first. What took effect unanswered is answered the same way when it comes again.
func (k *keeper) acknowledged(ctx context.Context, command *slimcppb.Command) bool {
	for ctx.Err() == nil {
		patient, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		result, err := k.chaos.seats[k.name].Load().Propose(patient, command)
		cancel()
		switch {
		case err == nil && (result.Err == nil || errors.Is(result.Err, fsm.ErrStaleSequence)):
			return true
		case err == nil:
			k.chaos.tb.Error("refused:", result.Err)
			return false
		}
		<-time.After(time.Millisecond)
	}
	return false
}

// lost returns what was acknowledged and is not in a view.
func (k *keeper) lost(view *fsm.View) []string {
	var lost []string
	for id, name := range k.sessions {
		node, _ := view.Node(id)
		if node == nil || len(node.Sessions) != 1 || node.Sessions[0].Name.Counter != name.GetCounter() {
			lost = append(lost, "session of "+id)
		}
	}
	for id, name := range k.names {
		record, ok := view.NameRecord(name)
		if !ok || len(record.Announcers) != 1 || record.Announcers[0].NodeID != id {
			lost = append(lost, "announcement of "+id)
		}
	}
	for id := range k.links {
		if link, ok := view.Link(id); !ok || !link.Live() {
			lost = append(lost, "link "+id)
		}
	}
	return lost
}

// B-28, B-29: no session, link or announcement that was acknowledged is lost, and
// the replicas end with one state.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	groups := []string{"ga", "gb", "gc"}
	for i, group := range groups {
		edge := &slimcppb.AddEdge{Segment: fsm.DefaultSegment, GroupA: group, GroupB: groups[(i+1)%3]}
		proposeWithRetry(t, c.replicas["a"], &slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: edge}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var keepers []*keeper
	var calling sync.WaitGroup
	for i, name := range []string{"a", "b", "c"} {
		k := &keeper{
			chaos: c, name: name, sessions: map[string]*slimcppb.SessionName{}, names: map[string]fsm.Name{}, links: map[string]bool{},
		}
		keepers = append(keepers, k)
		calling.Go(func() { k.run(ctx, groups[i]) })
	}
	c.wreak(6)
	cancel()
	calling.Wait()
	c.waitVoters("a", "b", "c")
	for name, replica := range c.replicas {
		view, err := replica.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keepers {
			if lost := k.lost(view); len(lost) > 0 {
				t.Errorf("%s has lost %d things that were acknowledged, among them the %s", name, len(lost), lost[0])
			}
			if len(k.names) < 2 || len(k.links) != 3 {
				t.Errorf("%d announcements and %d links were acknowledged", len(k.names), len(k.links))
			}
		}
	}
	eventually(t, "one state", func() bool {
		a, b, c := c.replicas["a"].View(), c.replicas["b"].View(), c.replicas["c"].View()
		return a.Index() == b.Index() && b.Index() == c.Index() &&
			a.Snapshot().Hash() == b.Snapshot().Hash() && b.Snapshot().Hash() == c.Snapshot().Hash()
	})
}
