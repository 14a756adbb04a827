package southbound_test

import (
	"testing"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// isEmptyCommand reports whether a message is a command that changes nothing.
func isEmptyCommand(message *controllerpb.ControlMessage) bool {
	command := message.GetConfigCommand()
	return command != nil && !command.GetReconcile() && len(command.GetConnectionsToCreate())+
		len(command.GetConnectionsToDelete())+len(command.GetRoutesToSet())+len(command.GetRoutesToDelete()) == 0
}

// Proxies that look at HTTP requests often end one after a minute without data in one
// of its directions, and a node that loses its stream drops its links.
func TestIdleStreamIsKeptOpen(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		const most = 45 * time.Second
		sent, received := time.Now(), time.Now()
		empty := 0
		for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
			message := n.next()
			if gap := time.Since(sent); gap > 26*time.Second {
				t.Fatalf("nothing was sent to the node for %v", gap)
			}
			sent = time.Now()
			switch {
			case message.GetPayload() == nil:
				empty++
			case isEmptyCommand(message):
				if gap := time.Since(received); gap > most {
					t.Fatalf("the node said nothing for %v", gap)
				}
				received = time.Now()
				n.answer(message)
			default:
				t.Fatalf("the node got %v", message)
			}
		}
		if empty == 0 || time.Since(received) > most {
			t.Errorf("%d empty messages, the node spoke %v ago", empty, time.Since(received))
		}
	})
}

// A node that does not answer is not sent one command after the other: it would have
// to work them all off.
func TestIdleNodeOwesOneAnswer(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		var asked []*controllerpb.ControlMessage
		empty := 0
		watch := func(how time.Duration) {
			for begin := time.Now(); time.Since(begin) < how; {
				if message := n.next(); message.GetPayload() == nil {
					empty++
				} else {
					asked = append(asked, message)
				}
			}
		}
		watch(10 * time.Minute)
		if len(asked) != 1 || !isEmptyCommand(asked[0]) {
			t.Fatalf("a node that does not answer got %v", asked)
		}
		if empty < 20 {
			t.Errorf("it got %d empty messages in 10 minutes", empty)
		}
		n.answer(asked[0])
		watch(time.Minute)
		if len(asked) != 2 {
			t.Errorf("a minute after its answer it got %d more commands", len(asked)-1)
		}
	})
}

// Before the node has answered its first command nothing else is behind it, and a
// node to which much is said needs nothing more.
func TestBusyStreamCarriesNothingMore(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n, first := r.register(request("a", "n"))
		for range 4 {
			if message := n.next(); message.GetPayload() != nil {
				t.Fatalf("before its first answer the node got %v", message)
			}
		}
		n.answer(first)
		session := r.session("a/n")
		for range 20 {
			pass(20 * time.Second)
			answers := r.call(call("a/n", session, &controllerpb.ConfigurationCommand{}))
			message := n.next()
			if message.GetPayload() == nil {
				t.Fatal("an empty message behind a command of 20 s before")
			}
			n.answer(message)
			if answer := <-answers; answer.Err != nil || answer.MessageID != message.GetMessageId() {
				t.Fatalf("between the calls the node got %v (%v)", message, answer.Err)
			}
		}
	})
}
