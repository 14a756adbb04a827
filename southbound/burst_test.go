package southbound_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// bursts has the service tell of bursts.
func (r *rig) bursts() <-chan string {
	told := make(chan string, 100)
	r.service.SetHooks(&southbound.Hooks{Burst: func(nodeID string, session fsm.SessionName) {
		told <- fmt.Sprint(nodeID, " ", session.Counter)
	}})
	return told
}

func none(t *testing.T, told <-chan string) {
	t.Helper()
	synctest.Wait()
	select {
	case burst := <-told:
		t.Errorf("told of a burst: %s", burst)
	default:
	}
}

func TestBurstIsToldWhenItIsOver(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		told := r.bursts()
		n := r.join("a", "n")
		for _, text := range names("n", 0, 501) {
			n.announce(text)
			pass(10 * time.Millisecond)
		}
		pass(980 * time.Millisecond)
		none(t, told)
		n.withdraw("n000000") // it goes on
		pass(900 * time.Millisecond)
		none(t, told)
		pass(100 * time.Millisecond)
		synctest.Wait()
		select {
		case burst := <-told:
			if burst != "a/n 1" {
				t.Errorf("burst of %s", burst)
			}
		default:
			t.Error("not told")
		}
		n.announce("x") // on its own
		pass(time.Minute)
		none(t, told)
	})
}

func TestNoBurst(t *testing.T) {
	for what, speak := range map[string]func(r *rig, n *node){
		"few messages": func(_ *rig, n *node) {
			for _, text := range names("n", 0, 500) {
				n.announce(text)
			}
		},
		"many names in one message": func(_ *rig, n *node) { n.announce(names("n", 0, 2000)...) },
		"with pauses": func(_ *rig, n *node) {
			for i, text := range names("n", 0, 1200) {
				if n.announce(text); i%400 == 399 {
					pass(time.Second)
				}
			}
		},
		// Or the list that a burst leads to would be the next one.
		"a long list": func(r *rig, n *node) {
			answers := r.call(southbound.Call{NodeID: "a/n", Session: r.session("a/n"), Term: 1, ListConnections: true})
			id := n.next().GetMessageId()
			for range 1000 {
				n.send(connectionList(id, false))
			}
			n.send(connectionList(id, true))
			<-answers
		},
		"the stream ends": func(_ *rig, n *node) {
			for _, text := range names("n", 0, 1000) {
				n.announce(text)
			}
			n.hangUp()
		},
	} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				told := r.bursts()
				n := r.join("a", "n")
				speak(r, n)
				pass(time.Minute)
				none(t, told)
			})
		})
	}
}

// While a node's list is looked at, and until what is made of it is in the log,
// the state has to hear of every announcement: what is said of a name since the
// list was asked for keeps an audit from removing it.
func TestAnnouncementDuringAnAuditIsProposed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		said := func() int {
			synctest.Wait()
			before := len(accepted(r.replica, (*slimcppb.Command).GetAnnounce))
			n.announce("x")
			synctest.Wait()
			return len(accepted(r.replica, (*slimcppb.Command).GetAnnounce)) - before
		}
		expect := func(when string, want int) {
			t.Helper()
			if got := said(); got != want {
				t.Errorf("%s: %d commands, want %d", when, got, want)
			}
		}
		expect("first", 1)
		expect("repeated", 1)
		expect("known", 0)
		call := southbound.Call{NodeID: "a/n", Session: r.session("a/n"), Term: 1, ListRoutes: true, Timeout: time.Minute}
		answers := r.call(call)
		asked := n.next().GetMessageId()
		expect("list is asked for", 1)
		n.send(routeList(asked, false))
		expect("list is half there", 1)
		n.send(routeList(asked, true))
		<-answers
		expect("list is there", 1)
		pass(5*time.Second - time.Millisecond)
		expect("a moment ago", 1)
		pass(time.Millisecond)
		expect("long ago", 0)

		answers = r.call(call)
		n.next()
		pass(time.Minute)
		expect("list did not come", 1)
		<-answers
		pass(5 * time.Second)
		expect("list did not come long ago", 0)
	})
}

func routeList(to string, done bool) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_RouteListResponse{
		RouteListResponse: &controllerpb.RouteListResponse{OriginalMessageId: to, Done: done},
	}}
}
