package ensemble_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/reconciler"
	"github.com/slim-cp/slim-cp/southbound"
)

func TestNodesOnFollowersConverge(t *testing.T) {
	e := form(t)
	for i, r := range append(e.followers(), e.leader()) {
		e.join(fmt.Sprintf("g%d", i), "n1", r)
		e.join(fmt.Sprintf("g%d", i), "n2", r)
	}
	e.converged()
	// What a node on a follower says later arrives, and reaches the others.
	late := e.join("late", "n1", e.followers()[0])
	e.converged()
	late.Withdraw(late.Names()[0])
	e.eventually("withdrawn everywhere", func() error {
		if leftovers := e.datapath.Leftovers(); len(leftovers) > 0 {
			return fmt.Errorf("%v", leftovers)
		}
		return nil
	})
	// So do an operator's questions, and the end of a node.
	node := e.nodes[0]
	entries, err := e.leader().reconciler.ListConnections(t.Context(), node.ID())
	if err != nil || len(entries) == 0 {
		t.Errorf("connections of a node on a follower: %v, %v", entries, err)
	}
	if err := node.Deregister(t.Context()); err != nil {
		t.Error("deregister:", err)
	}
	e.eventually("the node has left", func() error {
		if record, ok := e.view().Node(node.ID()); ok {
			return fmt.Errorf("its state is %v", record.State)
		}
		return nil
	})
	for _, r := range e.running() {
		if lost := r.nodes.Stats().SessionsReplaced; lost > 0 {
			t.Errorf("%s registered %d streams again", r.name, lost)
		}
	}
}

// The fleet does not notice the end of the leader: no stream is closed, no link is
// made anew, every message arrives, during and after.
func TestLeaderKilled(t *testing.T) {
	e := form(t)
	followers := e.followers()
	for i := range 6 {
		e.join(fmt.Sprintf("g%d", i/2), fmt.Sprintf("n%d", i%2), followers[i%2])
	}
	e.converged()
	old := e.leader()
	links, before := linkIDs(e.view()), sessions(e.view())

	stopWatching := e.watchDelivery("new")
	e.kill(old.name)
	leader := e.leader()
	// The new leader pushes to nodes on the other survivor and on its own replica.
	e.join("new", "n0", leader)
	e.eventually("the new leader works", func() error {
		for _, node := range e.nodes {
			if record, ok := e.view().Node(node.ID()); !ok || !record.Connected() {
				return fmt.Errorf("%s is not connected", node.ID())
			}
		}
		if len(linkIDs(e.view())) != len(links)+3 {
			return errors.New("the new group has no links")
		}
		return nil
	})
	e.converged()
	stopWatching()
	after := sessions(e.view())
	delete(after, "new/n0")
	wantEqual(t, "sessions", after, before)
	now := linkIDs(e.view())
	for id, ends := range links {
		if now[id] != ends {
			t.Errorf("link %s was between %v, now %v", id, ends, now[id])
		}
	}
}

// The sessions of a dead replica end: a sibling takes over from a node that has
// one, and a node without one keeps what it has (protocol D2).
func TestReplicaUnreachable(t *testing.T) {
	e := form(t)
	dead := e.leader()
	survivors := e.followers()
	e.join("pair", "goes", dead) // the first of its group holds the links
	alone := e.join("alone", "n1", dead)
	e.join("other", "n1", survivors[1])
	e.converged()
	e.join("pair", "stays", survivors[0])
	e.converged()
	links := linkIDs(e.view())
	e.kill(dead.name)
	e.eventually("the dead replica's nodes have no session", func() error {
		view := e.view()
		for _, id := range []string{"pair/goes", alone.ID()} {
			record, _ := view.Node(id)
			if record.Connected() {
				return fmt.Errorf("%s is connected", id)
			}
			if record.LastSession.Reason != slimcppb.LossReason_LOSS_REASON_UNREACHABLE {
				return fmt.Errorf("%s lost its session for reason %v", id, record.LastSession.Reason)
			}
		}
		record, _ := view.Node("pair/goes")
		if record.State != fsm.NodeDeparted {
			return errors.New("pair/goes has not departed")
		}
		return nil
	})
	e.throughout(e.hold, "a node without a sibling keeps its links", func() error {
		record, _ := e.view().Node(alone.ID())
		if record.State != fsm.NodePresent {
			return fmt.Errorf("its state is %v", record.State)
		}
		return nil
	})
	view := e.view()
	held := 0
	for id, ends := range linkIDs(view) {
		for _, end := range ends {
			if end == "pair/goes" {
				t.Errorf("link %s is still at pair/goes", id)
			}
			if end == alone.ID() {
				held++
				if _, kept := links[id]; !kept && ends[0] == alone.ID() {
					t.Errorf("link %s of the detached node was made anew", id)
				}
			}
		}
	}
	if held == 0 {
		t.Error("the detached node holds no links")
	}
}

// Nodes of a dead follower come back on another replica, under the same links.
func TestFollowerKilled(t *testing.T) {
	e := form(t)
	followers := e.followers()
	dead, other := followers[0], followers[1]
	for i := range 4 {
		e.join(fmt.Sprintf("g%d", i), "n1", dead, other, e.leader())
	}
	e.join("fixed", "n1", other)
	e.converged()
	links := linkIDs(e.view())
	e.kill(dead.name)
	e.eventually("its nodes are back", func() error {
		for id, session := range sessions(e.view()) {
			if session.ReplicaID == dead.ReplicaID() {
				return fmt.Errorf("%s is still on the dead replica", id)
			}
		}
		return nil
	})
	e.converged()
	wantEqual(t, "links", linkIDs(e.view()), links)
	e.start(dead.name)
	e.converged()
	wantEqual(t, "links", linkIDs(e.view()), links)
}

// A call to a replica that is gone fails, and is not the node's fault.
func TestCallToUnreachableReplica(t *testing.T) {
	e := form(t)
	follower := e.followers()[0]
	node := e.join("g", "n1", follower)
	e.converged()
	leader := e.leader()
	_, term := leader.Leadership()
	record, _ := e.view().Node(node.ID())
	session, _ := record.CommandSession()
	node.Stall(true)
	defer node.Stall(false)
	answers := make(chan southbound.Answer, 2)
	call := southbound.Call{NodeID: node.ID(), Session: session.Name, Term: term, ListRoutes: true}
	leader.router.Call(call, func(answer southbound.Answer) { answers <- answer })
	e.links.isolate(follower.name, others(follower.name), true)
	if answer := await(t, answers); !errors.Is(answer.Err, southbound.ErrUnreachable) {
		t.Errorf("a call under way: %v, want %v", answer.Err, southbound.ErrUnreachable)
	}
	leader.router.Call(call, func(answer southbound.Answer) { answers <- answer })
	if answer := await(t, answers); !errors.Is(answer.Err, southbound.ErrUnreachable) {
		t.Errorf("a new call: %v, want %v", answer.Err, southbound.ErrUnreachable)
	}
	if leader.router.Reached(follower.ReplicaID()) {
		t.Error("the replica counts as reached")
	}
	e.links.isolate(follower.name, others(follower.name), false)
	e.eventually("reached again", func() error {
		if !leader.router.Reached(follower.ReplicaID()) {
			return errors.New("it is not")
		}
		return nil
	})
}

func await(t *testing.T, answers <-chan southbound.Answer) southbound.Answer {
	t.Helper()
	select {
	case answer := <-answers:
		return answer
	case <-time.After(patience):
		t.Fatal("the call is not answered")
		return southbound.Answer{}
	}
}

// A replica that is back says which streams it holds: those of its life before have
// ended, however patient the leader is (protocol S2).
func TestRestartedReplicaEndsItsOldSessions(t *testing.T) {
	settings := defaults()
	settings.graces.ReplicaMs = 60_000
	e := formWith(t, settings)
	follower := e.followers()[0]
	stopped := e.join("g0", "n1", follower)
	back := e.join("g1", "n1", follower)
	e.converged()
	e.kill(follower.name)
	stopped.Kill()
	boot := e.start(follower.name).BootID()
	e.eventually("the old sessions have ended", func() error {
		view := e.view()
		record, _ := view.Node(stopped.ID())
		if record.Connected() || record.LastSession.Reason != slimcppb.LossReason_LOSS_REASON_ENDED {
			return fmt.Errorf("%s has sessions %v, lost its last for reason %v", stopped.ID(), record.Sessions, record.LastSession.Reason)
		}
		record, _ = view.Node(back.ID())
		if len(record.Sessions) != 1 || record.Sessions[0].Name.BootID != boot {
			return fmt.Errorf("%s has sessions %v, want one of boot %s", back.ID(), record.Sessions, boot)
		}
		return nil
	})
}

// Without a quorum the survivor serves nodes provisionally; when a leader is back
// they are registered (protocol A5).
func TestLoneSurvivor(t *testing.T) {
	e := form(t)
	survivor := e.leader()
	e.join("g0", "n1", survivor)
	e.converged()
	for _, r := range e.followers() {
		e.kill(r.name)
	}
	e.eventually("no leader is known", func() error {
		if known, _ := survivor.LeaderKnown(); known {
			return errors.New("one is")
		}
		return nil
	})
	node := e.join("g1", "n1", survivor)
	e.eventually("served provisionally", func() error {
		if ids := survivor.nodes.Provisional(); len(ids) != 1 || ids[0] != node.ID() {
			return fmt.Errorf("provisional: %v", ids)
		}
		return nil
	})
	e.start(others(survivor.name)[0])
	e.converged()
	if survivor.nodes.Stats().SessionsReplaced > 0 {
		t.Error("a stream was registered again")
	}
}

// After a restore every stream is registered again, and none is closed (protocol
// X3, S5).
func TestRestoreKeepsStreams(t *testing.T) {
	with := defaults()
	with.timings = steady                       // a leader that is lost meanwhile ends
	with.hold = reconciler.DefaultDepartureHold // of deletions, too, until all streams are back
	e := formWith(t, with)
	for i, r := range e.running() {
		e.join(fmt.Sprintf("g%d", i), "n1", r)
	}
	e.converged()
	links, before := linkIDs(e.view()), sessions(e.view())
	var saved bytes.Buffer
	leader := e.leader()
	if _, err := leader.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal("save:", err)
	}
	e.nodes[0].Announce(dataplane.InstanceName("org", "g0", "announced-later"))
	e.converged()
	stopWatching := e.watchDelivery("")
	if _, err := leader.RestoreSnapshot(t.Context(), &saved, false); err != nil {
		t.Fatal("restore:", err)
	}
	e.eventually("every stream has another session", func() error {
		now := sessions(e.view())
		for id, old := range before {
			if name, ok := now[id]; !ok || name == old || name.BootID != old.BootID {
				return fmt.Errorf("that of %s is %v, was %v", id, name, old)
			}
		}
		return nil
	})
	e.converged()
	stopWatching()
	wantEqual(t, "links", linkIDs(e.view()), links)
}

// A call that an older leadership decided is refused by the replica that holds the
// stream (protocol C14).
func TestOldLeadersCallIsRefused(t *testing.T) {
	e := form(t)
	node := e.join("g", "n1", e.followers()[0])
	e.converged()
	_, term := e.leader().Leadership()
	record, _ := e.view().Node(node.ID())
	session, _ := record.CommandSession()
	call := func(term uint64) error {
		answers := make(chan southbound.Answer, 1)
		e.leader().router.Call(southbound.Call{NodeID: node.ID(), Session: session.Name, Term: term, ListConnections: true},
			func(answer southbound.Answer) { answers <- answer })
		return await(t, answers).Err
	}
	e.eventually("the leader's own call is answered", func() error { return call(term) })
	if err := call(term - 1); !errors.Is(err, southbound.ErrStaleTerm) {
		t.Errorf("a call of an older leadership: %v, want %v", err, southbound.ErrStaleTerm)
	}
}

// The replica that holds the stream tells the leader that a node does not answer.
func TestSilenceIsToldToTheLeader(t *testing.T) {
	with := defaults()
	with.timings = steady
	e := formWith(t, with)
	node := e.join("g", "n1", e.followers()[0])
	e.converged()
	node.Stall(true)
	defer node.Stall(false)
	silent, answers := make(chan struct{}, 8), make(chan southbound.Answer, 1)
	deadline := time.After(southbound.SilentAfter + patience)
	for told := false; !told; {
		leader := e.leader()
		_, term := leader.Leadership()
		record, _ := e.view().Node(node.ID())
		session, _ := record.CommandSession()
		leader.router.Call(southbound.Call{
			NodeID: node.ID(), Session: session.Name, Term: term, ListRoutes: true,
			Silent: func() { silent <- struct{}{} },
		}, func(answer southbound.Answer) { answers <- answer })
		select {
		case <-silent:
			told = true
		case answer := <-answers: // the session is not reached yet, or is another one
			if answer.Err == nil {
				t.Fatal("answered by a node that stands still")
			}
			<-time.After(poll)
		case <-deadline:
			t.Fatal("the leader is not told")
		}
	}
	node.Stall(false)
	if answer := await(t, answers); answer.Err != nil {
		t.Error(answer.Err)
	}
}
