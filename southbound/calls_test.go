package southbound_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

func call(nodeID string, session fsm.SessionName, command *controllerpb.ConfigurationCommand) southbound.Call {
	return southbound.Call{NodeID: nodeID, Session: session, Term: 5, Command: command}
}

func TestCallIsAnswered(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		one := r.call(call("a/n", r.session("a/n"), &controllerpb.ConfigurationCommand{Reconcile: true}))
		two := r.call(call("a/n", r.session("a/n"), &controllerpb.ConfigurationCommand{}))
		first, second := n.next(), n.next()
		if !first.GetConfigCommand().GetReconcile() || second.GetConfigCommand().GetReconcile() {
			t.Error("calls were reordered")
		}
		n.answer(second)
		if answer := <-two; answer.Err != nil || answer.MessageID != second.GetMessageId() ||
			answer.Ack.GetOriginalMessageId() != second.GetMessageId() {
			t.Errorf("second answer %+v", answer)
		}
		n.answer(first)
		if answer := <-one; answer.Err != nil || answer.MessageID != first.GetMessageId() {
			t.Errorf("first answer %+v", answer)
		}
		n.answer(first) // once more: nobody waits
		synctest.Wait()
		if len(one)+len(two) > 0 {
			t.Error("a call was answered twice")
		}
	})
}

func TestListsAreGatheredUntilDone(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		connections := r.call(southbound.Call{NodeID: "a/n", Session: session, Term: 1, ListConnections: true})
		routed := r.call(southbound.Call{NodeID: "a/n", Session: session, Term: 1, ListRoutes: true})
		first, second := n.next(), n.next()
		if first.GetConnectionListRequest() == nil || second.GetRouteListRequest() == nil {
			t.Fatalf("requests %v, %v", first, second)
		}
		n.send(connectionList(first.GetMessageId(), false, &controllerpb.ConnectionEntry{Id: 1}, &controllerpb.ConnectionEntry{Id: 2}))
		n.send(connectionList(second.GetMessageId(), true)) // the wrong kind
		n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_RouteListResponse{
			RouteListResponse: &controllerpb.RouteListResponse{
				OriginalMessageId: second.GetMessageId(), Entries: []*controllerpb.RouteEntry{{}}, Done: true,
			},
		}})
		if answer := <-routed; answer.Err != nil || len(answer.Routes) != 1 {
			t.Errorf("routes %+v", answer)
		}
		if synctest.Wait(); len(connections) > 0 {
			t.Error("answered by half a list")
		}
		n.send(connectionList(first.GetMessageId(), true, &controllerpb.ConnectionEntry{Id: 3}))
		if answer := <-connections; answer.Err != nil || len(answer.Connections) != 3 {
			t.Errorf("connections %+v", answer)
		}
	})
}

func TestStreamsEndFailsCallsAtOnce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		answers := r.call(southbound.Call{NodeID: "a/n", Session: session, Term: 1, ListConnections: true})
		n.send(connectionList(n.next().GetMessageId(), false, &controllerpb.ConnectionEntry{Id: 1}))
		synctest.Wait()
		start := time.Now()
		n.hangUp()
		answer := <-answers
		if !errors.Is(answer.Err, southbound.ErrStreamEnded) || answer.Connections != nil || time.Since(start) > 0 {
			t.Errorf("answer %+v after %s", answer, time.Since(start))
		}
		if answer := <-r.call(call("a/n", session, nil)); !errors.Is(answer.Err, southbound.ErrNoSession) {
			t.Errorf("later: %v", answer.Err)
		}
	})
}

func TestCallTimesOutAndLateAnswerIsTold(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		late := make(chan struct{}, 2)
		start := time.Now()
		slow := call("a/n", r.session("a/n"), &controllerpb.ConfigurationCommand{})
		slow.Late = func() { late <- struct{}{} }
		answers := r.call(slow)
		message := n.next()
		if answer := <-answers; !errors.Is(answer.Err, southbound.ErrTimeout) || time.Since(start) != 90*time.Second {
			t.Errorf("answer %v after %s", answer.Err, time.Since(start))
		}
		if synctest.Wait(); len(late) > 0 {
			t.Error("late before the answer")
		}
		n.answer(message)
		n.answer(message)
		<-late
		if synctest.Wait(); len(late)+len(answers) > 0 {
			t.Error("told twice")
		}
	})
}

func TestCallsOfAnOlderLeaderAreRefused(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		newer := call("a/n", session, &controllerpb.ConfigurationCommand{})
		newer.Term = 7
		r.call(newer)
		n.next()
		older := newer
		older.Term = 6
		if answer := <-r.call(older); !errors.Is(answer.Err, southbound.ErrStaleTerm) {
			t.Errorf("answer %v", answer.Err)
		}
		ended := make(chan error, 1)
		r.service.End(6, session, true, func(err error) { ended <- err })
		if err := <-ended; !errors.Is(err, southbound.ErrStaleTerm) {
			t.Errorf("end: %v", err)
		}
		n.silent()
	})
}

func TestCallsThatCannotBeSent(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		huge := &controllerpb.ConfigurationCommand{ConnectionsToDelete: []string{string(make([]byte, 5<<20))}}
		cases := map[string]struct {
			call southbound.Call
			err  error
		}{
			"unknown session": {call("a/n", fsm.SessionName{Counter: 99}, nil), southbound.ErrNoSession},
			"another node":    {call("a/m", session, nil), southbound.ErrNoSession},
			"too large":       {call("a/n", session, huge), southbound.ErrTooLarge},
		}
		for what, c := range cases {
			if answer := <-r.call(c.call); !errors.Is(answer.Err, c.err) {
				t.Errorf("%s: %v", what, answer.Err)
			}
		}
		n.silent()
	})
}

func TestEndOfAnEvictedNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		ended := make(chan error, 1)
		r.service.End(1, session, true, func(err error) { ended <- err })
		message := n.next()
		command := message.GetConfigCommand()
		if !command.GetReconcile() || len(command.GetConnectionsToCreate())+len(command.GetRoutesToSet()) > 0 {
			t.Errorf("command %v", command)
		}
		n.silent()
		n.answer(message)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if code := n.end(); code != codes.Aborted {
			t.Errorf("stream ended with %s", code)
		}
		eventually(t, "the session ends", func() bool {
			_, ok := r.replica.store.View().SessionNode(session)
			return !ok
		})
		r.service.End(1, session, true, func(err error) { ended <- err })
		if err := <-ended; err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func TestEndDoesNotWaitForAWedgedNode(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n")
		ended := make(chan error, 1)
		start := time.Now()
		r.service.End(1, r.session("a/n"), true, func(err error) { ended <- err })
		if err := <-ended; err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("ended after %s", time.Since(start))
		}
	})
}

func TestSessionIsLostUntilCommitted(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		r.replica.setLeader(false)
		n.hangUp()
		pass(time.Hour)
		r.replica.setLeader(true)
		eventually(t, "the loss is committed", func() bool {
			_, ok := r.replica.store.View().SessionNode(session)
			return !ok
		})
		known, _ := r.replica.store.View().Node("a/n")
		if known.LastSession.Reason != slimcppb.LossReason_LOSS_REASON_ENDED {
			t.Errorf("reason %v", known.LastSession.Reason)
		}
	})
}

func lose(session fsm.SessionName) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{
		Session: session.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_UNREACHABLE,
	}}}
}

func TestLiveStreamGetsANewSession(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		ready := make(chan fsm.SessionName, 10)
		r.service.SetHooks(&southbound.Hooks{Ready: func(_ string, session fsm.SessionName) { ready <- session }})
		n := r.join("a", "n")
		old := r.session("a/n")
		r.replica.as(t, lose(old))
		eventually(t, "the stream is registered again", func() bool {
			known, _ := r.replica.store.View().Node("a/n")
			session, ok := known.CommandSession()
			return ok && session.Name != old && session.Resumed
		})
		session := r.session("a/n")
		if <-ready != old || <-ready != session {
			t.Error("the new session was not told")
		}
		if _, ok := r.service.FirstCommand(session); ok {
			t.Error("what was answered before is the new session's first command")
		}
		n.announce("x")
		eventually(t, "the node is heard", func() bool { return r.announced("a/n") == "x" })
		answers := r.call(call("a/n", session, &controllerpb.ConfigurationCommand{}))
		n.answer(n.next())
		if answer := <-answers; answer.Err != nil {
			t.Errorf("call: %v", answer.Err)
		}
		n.hangUp()
		eventually(t, "the new session ends", func() bool {
			_, ok := r.replica.store.View().SessionNode(session)
			return !ok
		})
	})
}

func TestWhatIsInFlightSurvivesTheLossOfTheSession(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		old := r.session("a/n")
		resume := r.replica.stall()
		n.announce("x")
		synctest.Wait()
		r.replica.as(t, lose(old))
		n.announce("y")
		synctest.Wait()
		resume()
		eventually(t, "all is announced", func() bool { return r.announced("a/n") == "x y" })
	})
}

func TestLeavingNodeGetsNoNewSession(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n")
		old := r.session("a/n")
		r.replica.as(t, &slimcppb.Command{Payload: &slimcppb.Command_DeregisterNode{
			DeregisterNode: &slimcppb.DeregisterNode{Session: old.Proto()},
		}})
		r.replica.as(t, lose(old))
		pass(time.Minute)
		if count := len(accepted(r.replica, (*slimcppb.Command).GetRegisterNode)); count != 1 {
			t.Errorf("%d registrations", count)
		}
	})
}

func TestDrain(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var nodes []*node
		for _, id := range names("n", 0, 20) {
			nodes = append(nodes, r.join("a", id))
		}
		resume := r.replica.stall()
		late := r.open(true)
		late.ack()
		id := late.send(registerMessage(request("a", "late")))
		synctest.Wait()
		ended := make(chan time.Duration, 30)
		start := time.Now()
		for _, n := range nodes {
			go func() {
				if err := <-n.ended; status.Code(err) == codes.Unavailable {
					ended <- time.Since(start)
				}
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := r.service.Drain(ctx); err != nil || time.Since(start) > time.Second {
			t.Errorf("drain: %v after %s", err, time.Since(start))
		}
		late.registered(id) // else the node would be lost
		resume()
		if synctest.Wait(); len(ended) != len(nodes) {
			t.Errorf("%d of %d streams ended", len(ended), len(nodes))
		}
		first, last := time.Hour, time.Duration(0)
		for range nodes {
			at := <-ended
			first, last = min(first, at), max(last, at)
		}
		if last-first < 100*time.Millisecond {
			t.Errorf("all streams ended between %s and %s", first, last)
		}
		if lost := accepted(r.replica, (*slimcppb.Command).GetSessionLost); len(lost) != 0 {
			t.Errorf("lost %v", lost)
		}
	})
}
