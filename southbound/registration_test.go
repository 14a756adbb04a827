package southbound_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

func TestHeadersAndAckComeFirst(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.open(false)
		if _, err := n.stream.Header(); err != nil {
			t.Fatal(err)
		}
		go n.read()
		n.ack()
		n.silent()
	})
}

func TestAnswerIsEmptyAndFirstCommandFollows(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		_, first := r.register(request("b", "node-b", external("b.example:1")))
		if first.GetConnectionListRequest() == nil {
			t.Fatalf("first message to a node without links is %v", first)
		}
		_, first = r.register(request("a", "node-a"))
		created := first.GetConfigCommand().GetConnectionsToCreate()
		link, _ := r.replica.store.View().LinkBetween("a", "b")
		if len(created) != 1 || created[0].GetLinkId() != link.ID || first.GetConfigCommand().GetReconcile() {
			t.Fatalf("first command %v, link %v", first, link)
		}
		var config struct {
			Endpoint       string `json:"endpoint"`
			LinkID         string `json:"link_id"`
			ConnectionType string `json:"connection_type"`
		}
		if err := json.Unmarshal([]byte(created[0].GetConfigData()), &config); err != nil {
			t.Fatal(err)
		}
		if config.Endpoint != "http://b.example:1" || config.LinkID != link.ID || config.ConnectionType != "remote" {
			t.Errorf("config %+v", config)
		}
		known, ok := r.service.FirstCommand(r.session("a/node-a"))
		if !ok || known.MessageID != first.GetMessageId() || known.Links[0].SourceRevision != link.SourceRevision {
			t.Errorf("first command is known as %+v", known)
		}
	})
}

func TestFirstCommandsAnswerIsDelivered(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("b", "node-b", external("b.example:1"))
		n, message := r.register(request("a", "node-a"))
		first, _ := r.service.FirstCommand(r.session("a/node-a"))
		answers := make(chan southbound.Answer, 2)
		first.OnAnswer(func(answer southbound.Answer) { answers <- answer }, nil, nil)
		n.answer(message)
		if answer := <-answers; answer.Err != nil || !answer.Ack.GetConnectionsStatus()[0].GetSuccess() {
			t.Errorf("answer %+v", answer)
		}
		first.OnAnswer(func(answer southbound.Answer) { answers <- answer }, nil, nil)
		if answer := <-answers; answer.Err != nil || answer.MessageID != first.MessageID {
			t.Errorf("answer again %+v", answer)
		}
	})
}

// A node that nobody can dial is let in, and the log says why it gets no links.
func TestNodeWithAMalformedExternalEndpointIsLetIn(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "node-a")
		r.join("b", "node-b", external("b example:1"))
		if link, linked := r.replica.store.View().LinkBetween("a", "b"); linked {
			t.Errorf("link %+v", link)
		}
		node, _ := r.replica.store.View().Node("b/node-b")
		if len(node.Details) != 1 || node.Details[0].ExternalEndpoint != "b example:1" {
			t.Errorf("details %+v", node.Details)
		}
		if lines := r.logs.lines("[WARN]", "no other node will dial this one"); len(lines) != 1 ||
			!strings.Contains(lines[0], "b/node-b") || !strings.Contains(lines[0], "b example:1") {
			t.Errorf("log lines %q", lines)
		}
		r.join("b", "node-c", external("b.example:1"))
		if _, linked := r.replica.store.View().LinkBetween("a", "b"); !linked {
			t.Error("no link to a node of the same group that can be dialled")
		}
	})
}

func TestBadRegistrationIsRefusedAndDisturbsNobody(t *testing.T) {
	long := strings.Repeat("x", 254)
	cases := map[string]struct {
		message *controllerpb.ControlMessage
		log     []string
	}{
		"empty id":        {registerMessage(request("a", "")), []string{"node id is empty"}},
		"star":            {registerMessage(request("a", "*")), []string{"a/*", "reserved"}},
		"line break":      {registerMessage(request("a", "x\ny")), []string{`x\ny`}},
		"long":            {registerMessage(request("a", long)), []string{"254 bytes"}},
		"slash in group":  {registerMessage(request("a/b", "n")), []string{"a/b/n", "not accepted"}},
		"slash, no group": {registerMessage(request("", "x/y")), []string{"x/y"}},
		"control":         {registerMessage(request("a", "x\ty")), []string{"control character"}},
		"wrong message": {
			&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_Ack{Ack: &controllerpb.Ack{}}},
			[]string{"first message is ack"},
		},
		"no payload": {&controllerpb.ControlMessage{}, []string{"first message is empty"}},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				good := r.join("a", "good")
				bad := r.open(true)
				bad.ack()
				bad.send(c.message)
				response := bad.next().GetRegisterNodeResponse()
				if response == nil || response.GetSuccess() || response.GetOriginalMessageId() != c.message.GetMessageId() {
					t.Fatalf("answer %v", response)
				}
				if code := bad.end(); code != codes.InvalidArgument {
					t.Errorf("stream ended with %s", code)
				}
				if lines := r.logs.lines(append(c.log, "registration refused")...); len(lines) != 1 {
					t.Errorf("log lines %q", lines)
				}
				good.announce("still-here")
				eventually(t, "the other node is served", func() bool { return r.announced("a/good") == "still-here" })
			})
		})
	}
}

func TestHugeMessageEndsOnlyItsOwnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		playIn(t, southbound.Options{MaxReceiveBytes: 10_000}, func(t *testing.T, r *rig) {
			good, bad := r.join("a", "good"), r.join("a", "bad")
			bad.announce(names("n", 0, 1000)...)
			bad.end()
			good.announce("x")
			eventually(t, "the other node is served", func() bool { return r.announced("a/good") == "x" })
			if lines := r.logs.lines("a/bad", "malformed", "larger than max"); len(lines) != 1 {
				t.Errorf("log lines %q", lines)
			}
		})
	})
}

func TestNoFirstMessage(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		start := time.Now()
		n := r.open(true)
		if code := n.end(); code != codes.DeadlineExceeded {
			t.Errorf("stream ended with %s", code)
		}
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("waited %s", waited)
		}
	})
}

func TestTwoProcessesWithOneID(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		first := r.join("a", "n")
		old := r.session("a/n")
		second := r.join("a", "n")
		if r.session("a/n") == old {
			t.Error("the newest session is not the command session")
		}
		first.announce("one")
		second.announce("two")
		eventually(t, "both are heard", func() bool { return r.announced("a/n") == "one two" })
		first.silent()
		second.silent()
		second.hangUp()
		eventually(t, "the other takes over", func() bool { return r.session("a/n") == old })
	})
}

func TestRegistrationReport(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "node-a")
		r.join("b", "node-b", external("b.example:1"))
		link, _ := r.replica.store.View().LinkBetween("a", "b")
		foreign := "3f0f3c1e-1b1b-4d7c-9a6e-1f2f3f4f5f6f"
		again := request("b", "node-b", external("b.example:1"), external("a.example:1"))
		again.Connections = []*controllerpb.ConnectionEntry{
			{LinkId: &foreign, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING},
			{ConfigData: "{}", Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING},
			{LinkId: &link.ID, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING},
		}
		r.register(again)
		registrations := accepted(r.replica, (*slimcppb.Command).GetRegisterNode)
		last := registrations[len(registrations)-1]
		if len(last.GetLinks()) != 1 || last.GetLinks()[0].GetLinkId() != link.ID || !last.GetLinks()[0].GetIncoming() {
			t.Errorf("reported links %v", last.GetLinks())
		}
		if details := last.GetDetails(); len(details) != 2 || details[0].GetExternalEndpoint() != "a.example:1" {
			t.Errorf("details are not in order: %v", details)
		}
		if claimed, _ := r.replica.store.View().Link(link.ID); claimed.DestNode != "b/node-b" {
			t.Errorf("link is claimed by %q", claimed.DestNode)
		}
	})
}

func TestProvisionalAnswer(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("b", "node-b", external("b.example:1"))
		applied := r.replica.store.View().Index()
		resume := r.replica.stall()
		n := r.open(true)
		n.ack()
		start := time.Now()
		n.registered(n.send(registerMessage(request("a", "n"))))
		if waited := time.Since(start); waited != 2*time.Second {
			t.Errorf("answered after %s", waited)
		}
		n.answer(n.next())
		n.announce("gone", "one")
		n.withdraw("gone")
		n.announce("two")
		pass(12 * time.Second) // tries end with an unknown outcome
		n.silent()
		resume()
		eventually(t, "what was said meanwhile is announced", func() bool { return r.announced("a/n") == "one two" })
		registrations := accepted(r.replica, (*slimcppb.Command).GetRegisterNode)
		if len(registrations) != 2 || !registrations[1].GetResumed() || registrations[1].GetProvisionalEpoch() != applied {
			t.Errorf("registrations %v, applied index was %d", registrations, applied)
		}
		said := accepted(r.replica, (*slimcppb.Command).GetAnnounce)
		if len(said) != 1 || len(said[0].GetChanges()) != 3 {
			t.Errorf("announced %v, expected one command with the last word on three names", said)
		}
	})
}

func TestWithoutLeaderTheAnswerComesAtOnce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.replica.setLeader(false)
		start := time.Now()
		n := r.join("a", "n")
		if waited := time.Since(start); waited != 0 {
			t.Errorf("answered after %s", waited)
		}
		n.announce("x")
		synctest.Wait()
		r.replica.setLeader(true)
		eventually(t, "the name is announced", func() bool { return r.announced("a/n") == "x" })
	})
}

func TestProvisionalStreamThatEndsLeavesNoSession(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		resume := r.replica.stall()
		n, _ := r.register(request("a", "n"))
		n.hangUp()
		pass(time.Minute)
		resume()
		eventually(t, "the loss is committed", func() bool {
			return len(accepted(r.replica, (*slimcppb.Command).GetSessionLost)) == 1
		})
		lost := accepted(r.replica, (*slimcppb.Command).GetSessionLost)[0]
		r.replica.mu.Lock()
		defer r.replica.mu.Unlock()
		for node := range r.replica.store.View().Nodes() {
			if node.Connected() {
				t.Errorf("node %s has a session after %v", node.ID, lost)
			}
		}
	})
}

func TestUnproposedRegistrationNeedsNoLoss(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.replica.setLeader(false)
		n, _ := r.register(request("a", "n"))
		n.hangUp()
		synctest.Wait()
		r.replica.setLeader(true)
		pass(time.Minute)
		if lost := accepted(r.replica, (*slimcppb.Command).GetSessionLost); len(lost) != 0 {
			t.Errorf("lost %v", lost)
		}
	})
}

func TestQuarantine(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.replica.setLeader(false)
		bad := r.open(true)
		bad.ack()
		bad.registered(bad.send(registerMessage(request("a", "*"))))
		bad.announce("x")
		pass(time.Minute)
		bad.silent()
		r.replica.setLeader(true)
		if code := bad.end(); code != codes.InvalidArgument {
			t.Errorf("stream ended with %s", code)
		}
		if n := len(accepted(r.replica, (*slimcppb.Command).GetRegisterNode)); n != 0 {
			t.Errorf("%d registrations", n)
		}
	})
}

func TestFullQuarantineHoldsHeadersBack(t *testing.T) {
	run(t, func(_ *testing.T, r *rig) {
		r.replica.setLeader(false)
		for range 100 {
			bad := r.open(true)
			bad.ack()
			bad.registered(bad.send(registerMessage(request("a", "*"))))
		}
		good := r.open(true)
		pass(time.Minute)
		good.silent()
		r.replica.setLeader(true)
		good.ack()
		good.id = "good"
		good.registered(good.send(registerMessage(request("a", "good"))))
	})
}

func TestRegistrationWithUnknownOutcomeIsMadeOnce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.replica.mu.Lock()
		r.replica.forgetful = 1
		r.replica.mu.Unlock()
		r.join("a", "n")
		synctest.Wait()
		known, _ := r.replica.store.View().Node("a/n")
		if len(known.Sessions) != 1 {
			t.Errorf("sessions %v", known.Sessions)
		}
	})
}

func TestRegistrationIsBarredByAnEarlierLoss(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		barred := fsm.SessionName{ReplicaID: "cp-1", BootID: "boot-1", Counter: 1}
		r.replica.as(t, &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{
			SessionLost: &slimcppb.SessionLost{Session: barred.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_UNREACHABLE},
		}})
		n := r.join("a", "n")
		if session := r.session("a/n"); session == barred {
			t.Errorf("session %v", session)
		}
		n.announce("x")
		eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
	})
}
