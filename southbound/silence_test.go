package southbound_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// A node is silent when it has said nothing about a request for long; each part of a
// long list is a sign of life.
func TestSilenceCountsFromTheLastSignOfLife(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		said := make(chan struct{}, 8)
		list := call("a/n", r.session("a/n"), nil)
		list.ListConnections, list.Silent = true, func() { said <- struct{}{} }
		answers := r.call(list)
		request := n.next()
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		pass(southbound.SilentAfter - time.Second)
		n.send(connectionList(request.GetMessageId(), false))
		pass(southbound.SilentAfter - 2*time.Second)
		if len(said) > 0 {
			t.Error("silent although it sent a part of its list")
		}
		pass(3 * time.Second)
		if len(said) != 1 {
			t.Errorf("told %d times after %s without a word", len(said), southbound.SilentAfter)
		}
		n.send(connectionList(request.GetMessageId(), true))
		<-answers
		pass(time.Minute)
		if len(said) != 1 {
			t.Error("silent although it answered")
		}
	})
}

// While what a node said before is being handled, its answer may wait behind that.
func TestBusyReaderIsNoSilence(t *testing.T) {
	runWith(t, southbound.Options{MaxPending: 10}, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		said := make(chan struct{}, 8)
		list := call("a/n", r.session("a/n"), nil)
		list.ListConnections, list.Silent = true, func() { said <- struct{}{} }
		answers := r.call(list)
		request := n.next()
		synctest.Wait()
		resume := r.replica.stall()
		n.announce(names("n", 0, 2000)...) // there is no room for them while the log stands still
		n.send(connectionList(request.GetMessageId(), true))
		<-time.After(3 * southbound.SilentAfter)
		synctest.Wait()
		if len(said) > 0 {
			t.Error("a node is silent whose answer has not been read")
		}
		resume()
		if answer := <-answers; answer.Err != nil {
			t.Error(answer.Err)
		}
	})
}

func TestBriefListsLeaveOutPeers(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		entry := func(kind controllerpb.ConnectionType) *controllerpb.ConnectionEntry {
			return &controllerpb.ConnectionEntry{ConnectionType: kind, ConfigData: "{}"}
		}
		peer, remote, edge := entry(controllerpb.ConnectionType_CONNECTION_TYPE_PEER), entry(controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE), entry(controllerpb.ConnectionType_CONNECTION_TYPE_EDGE)
		for _, brief := range []bool{false, true} {
			list := call("a/n", r.session("a/n"), nil)
			list.ListRoutes, list.Brief = true, brief
			answers := r.call(list)
			request := n.next()
			n.send(&controllerpb.ControlMessage{
				MessageId: uuid.NewString(),
				Payload: &controllerpb.ControlMessage_RouteListResponse{RouteListResponse: &controllerpb.RouteListResponse{
					OriginalMessageId: request.GetMessageId(), Done: true, Entries: []*controllerpb.RouteEntry{
						{Name: name("x").Wire(), Connections: []*controllerpb.ConnectionEntry{peer}},
						{Name: name("y").Wire(), Connections: []*controllerpb.ConnectionEntry{remote, peer, edge}},
					},
				}},
			})
			answer := <-answers
			var connections int
			for _, entry := range answer.Routes {
				connections += len(entry.GetConnections())
			}
			if want := map[bool][2]int{false: {2, 4}, true: {1, 2}}[brief]; len(answer.Routes) != want[0] || connections != want[1] {
				t.Errorf("brief %v: %d names over %d connections, want %v", brief, len(answer.Routes), connections, want)
			}
			list.ListRoutes, list.ListConnections = false, true
			answers = r.call(list)
			n.send(connectionList(n.next().GetMessageId(), true, remote, peer, edge))
			answer = <-answers
			configurations := 0
			for _, entry := range answer.Connections {
				configurations += len(entry.GetConfigData())
			}
			if want := map[bool][2]int{false: {3, 6}, true: {2, 0}}[brief]; len(answer.Connections) != want[0] || configurations != want[1] {
				t.Errorf("brief %v: %d connections, %d bytes of configurations, want %v", brief, len(answer.Connections), configurations, want)
			}
		}
	})
}
