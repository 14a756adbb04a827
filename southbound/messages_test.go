package southbound_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

func TestMalformedEntriesAreSkipped(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		whole := name("x").Wire()
		n.say(&controllerpb.ConfigurationCommand{
			RoutesToSet: []*controllerpb.Route{
				{}, {Name: &dataplanepb.Name{}},
				{Name: &dataplanepb.Name{Name: whole.Name}}, {Name: &dataplanepb.Name{StrName: whole.StrName}},
				{Name: fsm.Name{C0: strings.Repeat("x", 2000)}.Wire()},
				{Name: whole},
			},
			RoutesToDelete:      []*controllerpb.Route{{}},
			ConnectionsReceived: []*controllerpb.ConnectionEntry{{}},
		})
		eventually(t, "the good entry counts", func() bool { return r.announced("a/n") == "x" })
		if lines := r.logs.lines("malformed", "a/n", "absent"); len(lines) != 1 {
			t.Errorf("log lines %q", lines)
		}
		if stats := r.service.Stats(); stats.Malformed["name"] != 6 {
			t.Errorf("counted %v", stats.Malformed)
		}
	})
}

func TestOddMessagesAreIgnored(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		session := r.session("a/n")
		n.send(&controllerpb.ControlMessage{})
		n.send(registerMessage(request("b", "other")))
		n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_Ack{Ack: &controllerpb.Ack{OriginalMessageId: "x"}}})
		n.send(connectionList("unknown", true))
		n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_ConfigCommandAck{}})
		link := "link"
		routed := routes("routed")
		routed[0].LinkId = &link
		n.say(&controllerpb.ConfigurationCommand{RoutesToSet: append(routed, routes("x")...)})
		eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
		n.silent()
		if r.session("a/n") != session {
			t.Error("the session changed")
		}
	})
}

// Whatever a node says, the state ends up with its last words, in few commands.
func TestLastWordCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		said := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
			word := rapid.SampledFrom([]string{"+", "-"}).Draw(rt, "word")
			return word + rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(rt, "name")
		}), 0, 40).Draw(rt, "said")
		pause := rapid.IntRange(0, 40).Draw(rt, "stall at")
		run(t, func(t *testing.T, r *rig) {
			n := r.join("a", "n")
			synctest.Wait()
			want := map[string]bool{}
			resume := func() {}
			for i, word := range said {
				if i == pause {
					synctest.Wait()
					resume = r.replica.stall()
				}
				if want[word[1:]] = word[0] == '+'; want[word[1:]] {
					n.announce(word[1:])
				} else {
					n.withdraw(word[1:])
				}
			}
			synctest.Wait()
			resume()
			var expected []string
			for _, name := range []string{"p", "q", "r", "s"} {
				if want[name] {
					expected = append(expected, name)
				}
			}
			eventually(t, "the last words are in the state", func() bool {
				return r.announced("a/n") == strings.Join(expected, " ")
			})
		})
	})
}

func TestAnnouncementsAreBatched(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		synctest.Wait()
		resume := r.replica.stall()
		n.announce("first") // occupies the one proposal in flight
		synctest.Wait()
		for _, text := range names("n", 0, 2500) {
			n.announce(text)
		}
		long := strings.Repeat("x", 1000)
		for i := range 1000 {
			n.say(&controllerpb.ConfigurationCommand{RoutesToSet: []*controllerpb.Route{{
				Name: fsm.Name{C0: long, C1: long, C2: fmt.Sprint(i)}.Wire(),
			}}})
		}
		synctest.Wait()
		resume()
		eventually(t, "all is announced", func() bool {
			count := 0
			for range r.replica.store.View().NamesOf("a/n") {
				count++
			}
			return count == 3501
		})
		commands := accepted(r.replica, (*slimcppb.Command).GetAnnounce)
		for i, command := range commands {
			if len(command.GetChanges()) > 1000 || proto.Size(command) > 256<<10+100 {
				t.Errorf("command of %d names and %d bytes", len(command.GetChanges()), proto.Size(command))
			}
			if command.GetSequence() != uint64(i+1) {
				t.Errorf("command %d has sequence %d", i, command.GetSequence())
			}
		}
		if len(commands) > 13 {
			t.Errorf("%d commands", len(commands))
		}
	})
}

func TestWhatChangesNothingIsNotProposed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		proposed := func(want int) {
			t.Helper()
			synctest.Wait()
			if said := accepted(r.replica, (*slimcppb.Command).GetAnnounce); len(said) != want {
				t.Errorf("announced %v, expected %d commands", said, want)
			}
		}
		n := r.join("a", "n")
		n.announce("x")
		proposed(1)
		n.announce("x") // by another application, it may be: a withdrawal is not sure then
		proposed(2)
		n.announce("x")
		n.announce("x")
		proposed(2)
		n.withdraw("never-announced") // a hint for the state to judge
		proposed(3)
		n.withdraw("x")
		proposed(4)
		n.announce("x") // takes the doubt away
		proposed(5)
		r.join("a", "n").announce("x") // a newer session has to take it over
		proposed(6)
	})
}

// A node that withdraws a name forgets its routes of it, so the state hears of a name
// that has come back before its withdrawal was proposed, even if it has the name.
func TestNameThatCameBackIsTold(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		for range 2 { // so that saying them again tells nothing
			n.announce("once", "twice")
			synctest.Wait()
		}
		before := len(accepted(r.replica, (*slimcppb.Command).GetAnnounce))
		resume := r.replica.stall()
		n.announce("in-flight")
		synctest.Wait()
		n.withdraw("once", "twice")
		n.announce("once", "twice")
		n.announce("twice")
		synctest.Wait()
		resume()
		synctest.Wait()
		var told []string
		for _, command := range accepted(r.replica, (*slimcppb.Command).GetAnnounce)[before:] {
			for _, change := range command.GetChanges() {
				told = append(told, change.GetName().GetComponent2())
			}
		}
		if got := strings.Join(told, " "); got != "in-flight once twice" {
			t.Errorf("told of %q", got)
		}
	})
}

func TestReplayAndRepetitionAreTold(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		replay := func(text string) bool {
			for _, command := range accepted(r.replica, (*slimcppb.Command).GetAnnounce) {
				for _, change := range command.GetChanges() {
					if change.GetName().GetComponent2() == text {
						return change.GetReplay()
					}
				}
			}
			t.Errorf("%s was not announced", text)
			return false
		}
		n, first := r.register(request("a", "n"))
		n.announce("replayed")
		n.answer(first)
		synctest.Wait()
		resume := r.replica.stall()
		n.announce("in-flight")
		synctest.Wait()
		n.announce("once")
		n.announce("twice")
		n.announce("twice")
		n.announce("again")
		n.withdraw("again")
		n.announce("again")
		synctest.Wait()
		resume()
		synctest.Wait()
		for text, want := range map[string]bool{"replayed": true, "once": false, "twice": true, "again": false} {
			if got := replay(text); got != want {
				t.Errorf("%s: replay is %v", text, got)
			}
		}
	})
}

func TestAnnouncementWithUnknownOutcomeIsMadeOnce(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		synctest.Wait()
		r.replica.mu.Lock()
		r.replica.forgetful = 3
		r.replica.mu.Unlock()
		n.announce("x")
		synctest.Wait() // applied, and nobody knows
		n.withdraw("x")
		eventually(t, "the withdrawal is in the state", func() bool { return r.announced("a/n") == "" })
		var sequences []uint64
		for _, command := range accepted(r.replica, (*slimcppb.Command).GetAnnounce) {
			if command.GetSession().GetCounter() == 1 {
				sequences = append(sequences, command.GetSequence())
			}
		}
		if !slices.Equal(sequences, []uint64{1, 2}) {
			t.Errorf("took effect: %v", sequences)
		}
		r.replica.mu.Lock()
		defer r.replica.mu.Unlock()
		if !slices.ContainsFunc(r.replica.results, func(result fsm.Result) bool { return errors.Is(result.Err, fsm.ErrStaleSequence) }) {
			t.Error("nothing was proposed again")
		}
	})
}

func TestLastWordsKeepTheirNumber(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		synctest.Wait()
		r.replica.mu.Lock()
		r.replica.forgetful = 1
		r.replica.mu.Unlock()
		n.announce("x")
		synctest.Wait() // applied, and nobody knows
		n.hangUp()
		eventually(t, "the session ends", func() bool {
			return len(accepted(r.replica, (*slimcppb.Command).GetSessionLost)) == 1
		})
		if said := accepted(r.replica, (*slimcppb.Command).GetAnnounce); len(said) != 1 {
			t.Errorf("took effect: %v", said)
		}
	})
}

func TestEarlyWithdrawalsDoNotCount(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n").announce("x")
		synctest.Wait()
		again, first := r.register(request("a", "n"))
		again.withdraw("x") // its queue, from before it came back
		again.announce("y")
		eventually(t, "an early announcement counts", func() bool { return strings.Contains(r.announced("a/n"), "y") })
		if r.announced("a/n") != "x y" {
			t.Errorf("announced %q", r.announced("a/n"))
		}
		again.answer(first)
		again.announce("x")
		again.withdraw("x")
		eventually(t, "a later withdrawal counts", func() bool { return r.announced("a/n") == "y" })
	})
}

func TestClaims(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		b := r.join("b", "node-b", external("b.example:1"))
		a := r.join("a", "node-a")
		link, _ := r.replica.store.View().LinkBetween("a", "b")
		owner := func() string {
			current, _ := r.replica.store.View().Link(link.ID)
			return current.DestNode
		}
		a.claim(link.ID) // the source's own notice
		b.claim("not-ours")
		b.claim("3f0f3c1e-1b1b-4d7c-9a6e-1f2f3f4f5f6f")
		synctest.Wait()
		if claims := accepted(r.replica, (*slimcppb.Command).GetClaimLink); len(claims) != 0 || owner() != "" {
			t.Errorf("claims %v", claims)
		}
		b.claim(link.ID)
		eventually(t, "the link is claimed", func() bool { return owner() == "b/node-b" })
	})
}

func TestEarlyClaimCountsOnlyIfListed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("b", "node-b", external("b.example:1"))
		r.join("a", "node-a")
		link, _ := r.replica.store.View().LinkBetween("a", "b")
		claims := func() int { return len(accepted(r.replica, (*slimcppb.Command).GetClaimLink)) }

		unlisted, _ := r.register(request("b", "node-b2"))
		unlisted.claim(link.ID)
		synctest.Wait()
		if claims() != 0 {
			t.Error("an early claim of an unlisted link counted")
		}
		report := request("b", "node-b", external("b.example:1"))
		report.Connections = []*controllerpb.ConnectionEntry{{
			LinkId: &link.ID, Direction: controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING,
		}}
		listed, _ := r.register(report)
		listed.claim(link.ID)
		eventually(t, "an early claim of a listed link counts", func() bool { return claims() == 1 })
	})
}

func TestReaderWaitsWhileTooMuchIsPending(t *testing.T) {
	const most = 3000
	runWith(t, southbound.Options{MaxPending: most}, func(t *testing.T, r *rig) {
		n, other := r.join("a", "n"), r.join("a", "other")
		synctest.Wait()
		r.replica.setLeader(false)
		go func() { // blocks while the stream is not read
			for from := 0; from < 4*most; from += 1000 {
				n.announce(names("n", from, from+1000)...)
			}
		}()
		pass(time.Second)
		if stats := r.service.Stats(); stats.Backpressure == 0 {
			t.Error("the reader did not wait")
		}
		r.replica.setLeader(true)
		other.announce("x")
		eventually(t, "the other node is served", func() bool { return r.announced("a/other") == "x" })
		eventually(t, "nothing is lost", func() bool {
			count := 0
			for range r.replica.store.View().NamesOf("a/n") {
				count++
			}
			return count == 4*most
		})
	})
}

func TestDeregister(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		n.announce("x")
		session := r.session("a/n")
		id := n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{
			DeregisterNodeRequest: &controllerpb.DeregisterNodeRequest{Node: &controllerpb.Node{Id: "another"}},
		}})
		response := n.next().GetDeregisterNodeResponse()
		if !response.GetSuccess() || response.GetOriginalMessageId() != id {
			t.Errorf("answer %v", response)
		}
		if known, ok := r.replica.store.View().Node("a/n"); !ok || known.State != fsm.NodeLeaving {
			t.Errorf("node %+v", known)
		}
		if err := <-n.ended; err.Error() != "EOF" {
			t.Errorf("stream ended with %v", err)
		}
		eventually(t, "the session ends", func() bool {
			_, ok := r.replica.store.View().SessionNode(session)
			return !ok
		})
		if n := len(accepted(r.replica, (*slimcppb.Command).GetRegisterNode)); n != 1 {
			t.Errorf("%d registrations", n)
		}
	})
}

// The leader ends the streams of a node that has said goodbye, maybe before the
// replica that holds the stream knows that the state has it: the node gets its
// answer all the same.
func TestDeregisterIsAnsweredBeforeTheLeaderEndsTheStream(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		resume := r.replica.stall()
		id := n.send(&controllerpb.ControlMessage{Payload: &controllerpb.ControlMessage_DeregisterNodeRequest{
			DeregisterNodeRequest: &controllerpb.DeregisterNodeRequest{Node: &controllerpb.Node{Id: "n"}},
		}})
		synctest.Wait()
		ended := make(chan error, 1)
		r.service.End(1, r.session("a/n"), true, func(err error) { ended <- err })
		n.silent()
		resume()
		response := n.next().GetDeregisterNodeResponse()
		if !response.GetSuccess() || response.GetOriginalMessageId() != id {
			t.Errorf("answer %v", response)
		}
		if err := <-n.ended; err.Error() != "EOF" {
			t.Errorf("stream ended with %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestLastWordsBeforeTheEndCount(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		n.announce(names("n", 0, 100)...)
		n.withdraw(names("n", 0, 99)...)
		if err := n.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the session ends", func() bool {
			return len(accepted(r.replica, (*slimcppb.Command).GetSessionLost)) == 1
		})
		if r.announced("a/n") != "n000099" {
			t.Errorf("announced %q", r.announced("a/n"))
		}
	})
}

// What a node said last may wait for the log when its stream ends. It counts all the
// same, before the end of the session: a node that stops says that its names are gone.
func TestLastWordsThatWaitForTheLogCount(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n := r.join("a", "n")
		n.announce("x", "y")
		eventually(t, "the names are in the state", func() bool { return r.announced("a/n") == "x y" })
		resume := r.replica.stall()
		n.announce("z") // on its way to the log
		synctest.Wait()
		n.withdraw("x") // waits behind it
		synctest.Wait()
		n.hangUp()
		pass(500 * time.Millisecond)
		resume()
		eventually(t, "the session ends", func() bool {
			return len(accepted(r.replica, (*slimcppb.Command).GetSessionLost)) == 1
		})
		if r.announced("a/n") != "y z" {
			t.Errorf("announced %q, want what the node said last", r.announced("a/n"))
		}
	})
}

func TestSlowReaderDelaysNobody(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		slow := r.open(false)
		slow.send(registerMessage(request("a", "slow")))
		fast := r.join("a", "fast")
		session := r.session("a/slow")
		big := &controllerpb.ConfigurationCommand{}
		for _, text := range names("n", 0, 1000) {
			big.RoutesToSet = append(big.RoutesToSet, routes(text)...)
		}
		full := false
		for range 200 {
			answers := r.call(call("a/slow", session, big))
			synctest.Wait()
			select {
			case answer := <-answers:
				full = full || answer.Err != nil
			default:
			}
		}
		if !full {
			t.Error("no call to a node that does not read was refused")
		}
		answers := r.call(call("a/fast", r.session("a/fast"), big))
		fast.answer(fast.next())
		if answer := <-answers; answer.Err != nil {
			t.Errorf("the other node: %v", answer.Err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := r.service.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
}
