package cluster_test

import (
	"context"
	"flag"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

var cuts = flag.Int("cuts", 8, "how many cuts are drawn")

// cutTime is how long the network is cut: some elections.
const cutTime = 2 * time.Second

// set says which calls do not arrive from now on, by caller and callee. Connections
// that they would take end.
func (n *network) set(cut map[[2]string]bool) {
	n.mu.Lock()
	n.cut = map[[2]string]bool{}
	for pair := range cut {
		n.cut[[2]string{pair[0] + ":1", pair[1] + ":1"}] = true
	}
	var ending []net.Conn
	for conn, ends := range n.conns {
		if n.cut[ends] {
			ending = append(ending, conn)
		}
	}
	n.mu.Unlock()
	for _, conn := range ending {
		_ = conn.Close()
	}
}

// cut is what is drawn for one round.
type cut struct {
	calls map[[2]string]bool
	// sides, if the cut is two-way: nobody on one reaches anybody on the other.
	sides [2][]string
}

// drawCut draws a cut between living replicas. Calls to the address of the dead one
// arrive where they lead, from every side but the one across the cut.
func drawCut(random *rand.Rand, round int, living []string, dead, leadsTo string) cut {
	c := cut{calls: map[[2]string]bool{}}
	order := slices.Clone(living)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	lost := func(from, to string) {
		c.calls[[2]string{from, to}] = true
		if to == leadsTo {
			c.calls[[2]string{from, dead}] = true
		}
	}
	switch round % 4 {
	case 0, 1: // two of each side, or one and three
		at := len(order)/2 - round%2
		c.sides = [2][]string{order[:at], order[at:]}
		for _, a := range c.sides[0] {
			for _, b := range c.sides[1] {
				lost(a, b)
				lost(b, a)
			}
		}
	case 2: // one way
		at := 1 + random.IntN(len(order)-1)
		for _, a := range order[:at] {
			for _, b := range order[at:] {
				lost(a, b)
			}
		}
	default:
		for _, a := range order {
			for _, b := range order {
				if a != b && random.IntN(3) == 0 {
					lost(a, b)
				}
			}
		}
	}
	return c
}

func (c cut) String() string {
	var calls []string
	for pair := range c.calls {
		calls = append(calls, pair[0]+"→"+pair[1])
	}
	slices.Sort(calls)
	return strings.Join(calls, " ")
}

// during is what replicas were seen to do during one cut.
type during struct {
	mu           sync.Mutex
	leaders      map[uint64]map[string]bool // by term
	acknowledged map[string][]int           // changes, by who was asked
}

func (d *during) led(term uint64, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaders[term] == nil {
		d.leaders[term] = map[string]bool{}
	}
	d.leaders[term][name] = true
}

func (d *during) answered(name string, change int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acknowledged[name] = append(d.acknowledged[name], change)
}

// by returns what some replicas acknowledged.
func (d *during) by(names []string) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var changes []int
	for _, name := range names {
		changes = append(changes, d.acknowledged[name]...)
	}
	return changes
}

// cutFor cuts the network for a while, in which all living replicas are asked for
// changes, and returns those that were acknowledged. Changes are numbered from next on.
func (e *ensemble) cutFor(c cut, living []string, next *int) []int {
	e.tb.Helper()
	seen := &during{leaders: map[uint64]map[string]bool{}, acknowledged: map[string][]int{}}
	e.network.set(c.calls)
	ctx, cancel := context.WithCancel(e.tb.Context())
	defer cancel()
	var running sync.WaitGroup
	for _, name := range living {
		replica, first := e.replicas[name], *next
		*next += 1000
		running.Go(func() { ask(ctx, replica, first, func(change int) { seen.answered(name, change) }) })
		running.Go(func() { watch(ctx, replica, func(term uint64) { seen.led(term, name) }) })
	}
	<-time.After(cutTime)
	for _, side := range c.sides {
		if len(side) > 2 {
			eventually(e.tb, "a majority goes on without the others", func() bool { return len(seen.by(side)) > 0 })
		}
	}
	cancel()
	running.Wait()
	e.network.set(nil)
	for term, names := range seen.leaders {
		if len(names) > 1 {
			e.tb.Errorf("several lead in term %d: %v", term, slices.Sorted(maps.Keys(names)))
		}
	}
	for _, side := range c.sides {
		if changes := seen.by(side); len(side) <= 2 && len(changes) > 0 {
			e.tb.Errorf("%v acknowledge %d changes without a majority", side, len(changes))
		}
	}
	return seen.by(living)
}

// ask proposes changes until the context ends.
func ask(ctx context.Context, replica *cluster.Replica, first int, acknowledged func(int)) {
	for change := first; change < first+1000 && ctx.Err() == nil; change++ {
		patient, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		result, err := replica.Propose(patient, register(change))
		cancel()
		if err == nil && result.Err == nil {
			acknowledged(change)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// watch tells in which terms a replica leads, until the context ends.
func watch(ctx context.Context, replica *cluster.Replica, leads func(term uint64)) {
	for library := replica.Raft(); ctx.Err() == nil; <-time.After(2 * time.Millisecond) {
		term := library.CurrentTerm()
		if library.State() == raft.Leader && library.CurrentTerm() == term {
			leads(term)
		}
	}
}

// serves waits until a replica reads, has the changes, and makes another one.
func (e *ensemble) serves(name string, changes []int) {
	e.tb.Helper()
	replica := e.replicas[name]
	var view *fsm.View
	eventually(e.tb, name+" reads", func() bool {
		ctx, cancel := context.WithTimeout(e.tb.Context(), time.Second)
		defer cancel()
		var err error
		view, err = replica.Read(ctx)
		return err == nil
	})
	for _, change := range changes {
		if !hasNode(view, change) {
			e.tb.Fatalf("%s has lost change %d, which was acknowledged", name, change)
		}
	}
	segment := &slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "by-" + name}}}
	eventually(e.tb, name+" changes something", func() bool {
		ctx, cancel := context.WithTimeout(e.tb.Context(), time.Second)
		defer cancel()
		_, err := replica.Propose(ctx, segment)
		return err == nil
	})
}

// reuses are those that the address of a dead member may lead to.
var reuses = []struct{ who, name string }{
	{"the leader", "a"}, {"a follower", "b"}, {"a former member", "former"}, {"another cluster", "stranger"},
}

// formBesideFormer forms a cluster of members, the first of which leads, beside a former
// member and a member of another cluster.
func (e *ensemble) formBesideFormer(members []string) {
	e.tb.Helper()
	keep := func(o *cluster.Options) { o.Peers.Autopilot.DeadServerCleanup = false }
	all := append(slices.Clone(members), "former")
	for _, name := range all {
		e.start(name, keep)
	}
	e.unite(all...)
	e.waitVoters(all...)
	e.transfer(members[0])
	e.kill("former")
	eventually(e.tb, "a member is removed", func() bool { return e.replicas[e.leader()].Remove(e.tb.Context(), "former") == nil })
	e.waitVotersOf(members, members...)
	e.start("former", keep, func(o *cluster.Options) { // it asks nobody, who would tell it that it was removed
		o.Peers.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	})
	if err := e.start("stranger").Init(e.tb.Context()); err != nil {
		e.tb.Fatal(err)
	}
}

// B-113: five replicas, one of them dead, whose address leads to the leader, to a
// follower, to a former member, or to a member of another cluster. Whatever calls do
// not arrive, each term has one leader, no side without a majority acknowledges a
// change, and what was acknowledged is there when all calls arrive again.
func TestCutsBesideAReusedAddress(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	members := []string{"a", "b", "c", "d", "e"}
	living := members[:4]
	e.formBesideFormer(members)
	e.kill("e")
	random := rand.New(rand.NewPCG(113, 0))
	next, acknowledged := 0, []int{}
	for round := range *cuts {
		reuse := reuses[round/2%len(reuses)]
		e.network.lead("e", reuse.name)
		drawn := drawCut(random, round, living, "e", reuse.name)
		t.Logf("the address of e leads to %s, calls that do not arrive: %v", reuse.who, drawn)
		acknowledged = append(acknowledged, e.cutFor(drawn, living, &next)...)
		for _, name := range living {
			e.serves(name, acknowledged)
		}
	}
	e.start("e")
	e.waitVotersOf(members, members...)
	e.serves("e", acknowledged)
	t.Logf("%d changes were acknowledged", len(acknowledged))
}
