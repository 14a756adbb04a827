package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func segmentCommand(name string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: name}}}
}

func removeSegmentCommand(name string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: name}}}
}

// requested gives a copy of a command a request id.
func requested(command *slimcppb.Command, id string) *slimcppb.Command {
	command = proto.Clone(command).(*slimcppb.Command)
	command.RequestId = id
	return command
}

// sameResult compares what a caller sees.
func sameResult(t tester, what string, got, want Result) {
	t.Helper()
	if got.Index != want.Index || got.NodeID != want.NodeID || got.LinkID != want.LinkID || got.Epoch != want.Epoch ||
		ErrorName(got.Err) != ErrorName(want.Err) || errorText(got.Err) != errorText(want.Err) {
		t.Fatalf("%s: result %+v, the first one was %+v", what, got, want)
	}
}

func TestARequestHasOneEffect(t *testing.T) {
	h := newHistory(t)
	add := requested(segmentCommand("s"), "add")
	first := h.must(add)
	h.must(removeSegmentCommand("s"))
	h.reopen() // results are in the snapshot
	sameResult(t, "delivered again", h.apply(requested(add, "add"))[0], first)
	equal(t, "segment came back", h.view().HasSegment("s"), false)

	// Refusals are results too, even if the command would succeed now.
	remove := requested(removeSegmentCommand("s"), "remove")
	refused := h.apply(remove)[0]
	h.must(segmentCommand("s"))
	again := h.apply(requested(remove, "remove"))[0]
	sameResult(t, "refused before", again, refused)
	h.refuse(requested(remove, "remove"), ErrUnknownSegment)
	equal(t, "segment went", h.view().HasSegment("s"), true)

	// Another request is another one, and so is a command without an id.
	h.must(requested(removeSegmentCommand("s"), "remove again"))
	h.refuse(removeSegmentCommand("s"), ErrUnknownSegment)

	results := h.apply(requested(segmentCommand("t"), "twice"), requested(segmentCommand("t"), "twice"))
	sameResult(t, "in one entry", results[1], results[0])
	equal(t, "repeated", [2]bool{results[0].Repeated, results[1].Repeated}, [2]bool{false, true})
	register := requested(registerCommand(h.sessionName(), "a", "n1", "a.test:1"), "register") // answered with several values
	first = h.must(register)
	sameResult(t, "all it answered", h.apply(requested(register, "register"))[0], first)
}

// An id that was used says nothing about another change: to be answered with the
// first one's success would be a lie.
func TestARequestIDIsForOneChange(t *testing.T) {
	h := newHistory(t)
	first := h.must(requested(segmentCommand("s"), "id"))
	h.refuse(requested(segmentCommand("other"), "id"), ErrInvalid)
	equal(t, "segment of the second", h.view().HasSegment("other"), false)
	h.refuse(requested(removeSegmentCommand("s"), "id"), ErrInvalid) // encoded alike but for the kind
	equal(t, "segment of the first", h.view().HasSegment("s"), true)
	h.reopen()
	h.refuse(requested(segmentCommand("other"), "id"), ErrInvalid)

	// Who sent it, and when, makes no other change of it.
	again := requested(segmentCommand("s"), "id")
	again.Caller, again.Seed = &slimcppb.Caller{Identity: "operator", Address: "127.0.0.1:9"}, 99
	sameResult(t, "by another caller", h.must(again), first)

	// The record of a version that kept no hash is good for any payload.
	known, _ := h.store.state.requests.get((&request{id: "id"}).byID())
	known.payload = 0
	h.reopen()
	sameResult(t, "of an older version", h.must(requested(segmentCommand("other"), "id")), first)
}

// The caller sends the same request again after a result that says "not now".
func TestARequestThatWasNotDecidedIsNotRemembered(t *testing.T) {
	h := newHistory(t)
	stale, otherTerm := requested(segmentCommand("s"), "stale"), requested(segmentCommand("t"), "term")
	stale.Generation, otherTerm.Term = 9, testTerm+1
	h.refuse(stale, ErrStaleGeneration)
	h.refuse(otherTerm, ErrStaleTerm)
	stale.Generation, otherTerm.Term = 1, 0
	h.must(stale)
	h.must(otherTerm)
	equal(t, "segments", h.view().HasSegment("s") && h.view().HasSegment("t"), true)

	empty := &history{t: t, store: New(), spoken: map[SessionName]uint64{}}
	early := requested(segmentCommand("s"), "early")
	empty.refuse(early, ErrNotInitialised)
	empty.must(requested(initCommand("c"), "init"))
	empty.refuse(requested(initCommand("d"), "other init"), ErrInitialised)
	early.Generation = 1
	empty.must(early)
	empty.must(requested(initCommand("c"), "init")) // is the first one

	h.ofSchema(2)
	newer := requested(segmentCommand("u"), "newer")
	newer.Schema, newer.Generation = 2, 1
	apply := func() Result {
		return h.store.Apply(h.view().Index()+1, testTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{newer}})[0]
	}
	equal(t, "before the upgrade", ErrorName(apply().Err), "inactive_schema")
	newer.Schema = 1
	equal(t, "after it", apply().Err, nil)
}

// Under schema 1 results are bounded by number and by their distance in the log.
func TestOldRequestsAreForgotten(t *testing.T) {
	h := newHistory(t)
	index := h.view().Index()
	refusal := func(id string) Result { // costs little, and its result is kept
		index++
		command := requested(removeSegmentCommand("none"), id)
		command.Schema, command.Generation = 1, 1
		return h.store.Apply(index, testTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
	}
	first := refusal("0")
	for n := 1; n < maxRequests1; n++ {
		refusal(fmt.Sprint(n))
	}
	equal(t, "results", h.store.state.requests.len(), maxRequests1)
	sameResult(t, "the oldest", refusal("0"), first)
	second := refusal(fmt.Sprint(maxRequests1)) // drives the oldest out
	equal(t, "results", h.store.state.requests.len(), maxRequests1)
	if again := refusal("0"); again.Index == first.Index { // and "1" in turn
		t.Error("a result is kept beyond the bound")
	}
	if again := refusal("2"); again.Index == index {
		t.Error("more than the oldest was forgotten")
	}

	index = second.Index + maxRequestAge1 - 1
	sameResult(t, "at the greatest age", refusal(fmt.Sprint(maxRequests1)), second)
	equal(t, "younger results", h.store.state.requests.len(), 2)
	if again := refusal(fmt.Sprint(maxRequests1)); again.Index != index {
		t.Error("a result is kept beyond its age")
	}
	equal(t, "indexes agree", h.store.state.requests.len(), h.store.state.requestOrder.len())
}

// ofSchema2 returns a history of a cluster that uses schema 2.
func ofSchema2(t tester) *history {
	h := newHistory(t)
	h.must(recordCommand("cp-1", 2))
	h.must(finalizeCommand(2))
	return h
}

func forgetCommand(until uint64) *slimcppb.Command {
	return &slimcppb.Command{Term: testTerm, Payload: &slimcppb.Command_Probe{Probe: &slimcppb.Probe{ForgetRequests: until}}}
}

// fillRequests applies requests under ids of their own, many in an entry, and returns
// the last result.
func (h *history) fillRequests(prefix string, count int) Result {
	h.t.Helper()
	var last Result
	for from := 0; from < count; from += 1000 {
		var commands []*slimcppb.Command
		for i := from; i < min(count, from+1000); i++ {
			commands = append(commands, requested(removeSegmentCommand("none"), fmt.Sprint(prefix, i)))
		}
		results := h.apply(commands...)
		last = results[len(results)-1]
	}
	return last
}

// However many requests others make, a request that is delivered again is known until
// the leader has it forgotten, and where there is no room for it one is refused.
func TestNoRequestIsForgottenEarly(t *testing.T) {
	h := ofSchema2(t)
	add := requested(segmentCommand("s"), "mine")
	h.must(add)
	h.must(removeSegmentCommand("s"))
	h.fillRequests("other ", MaxRequests-1)
	h.reopen()
	equal(t, "it is repeated", h.must(requested(add, "mine")).Repeated, true)
	equal(t, "the segment came back", h.view().HasSegment("s"), false)

	late := requested(segmentCommand("late"), "late")
	h.refuse(late, ErrManyRequests)
	equal(t, "what was refused had an effect", h.view().HasSegment("late"), false)
	h.must(segmentCommand("without an id"))
	first, _ := h.view().OldestRequest()
	h.refuse(&slimcppb.Command{Payload: forgetCommand(first).GetPayload()}, ErrStaleTerm) // the leader's alone
	h.must(forgetCommand(first))
	equal(t, "now there is room", h.must(requested(late, "late")).Repeated, false)
	equal(t, "the forgotten one is made again", h.must(segmentCommand("again")).Repeated, false)
}

// What the leader has forgotten is bounded for each command, and ends where it says.
func TestRequestsAreForgottenInPieces(t *testing.T) {
	h := ofSchema2(t)
	last := h.fillRequests("old ", maxForgotten+2000)
	h.must(requested(segmentCommand("young"), "young"))
	h.must(forgetCommand(last.Index))
	equal(t, "left after one command", h.store.state.requests.len(), 2001)
	h.must(forgetCommand(last.Index))
	h.must(forgetCommand(last.Index))
	equal(t, "left after all", h.store.state.requests.len(), 1)
	equal(t, "the young one", h.must(requested(segmentCommand("young"), "young")).Repeated, true)
	equal(t, "indexes agree", h.store.state.requestOrder.len(), 1)
}

// Results from before the upgrade are kept like others.
func TestRequestsOutliveAnUpgrade(t *testing.T) {
	h := newHistory(t)
	h.must(requested(segmentCommand("s"), "before"))
	h.must(recordCommand("cp-1", 2))
	h.must(finalizeCommand(2))
	h.fillRequests("other ", maxRequests1+10)
	equal(t, "it is repeated", h.must(requested(segmentCommand("s"), "before")).Repeated, true)
}

func TestAResultIsBounded(t *testing.T) {
	h := newHistory(t)
	long := requested(segmentCommand("s"), strings.Repeat("i", MaxRequestIDBytes+1))
	h.refuse(long, ErrInvalid)
	equal(t, "kept", h.store.state.requests.len(), 0)
	h.must(requested(segmentCommand("s"), strings.Repeat("i", MaxRequestIDBytes)))

	group := strings.Repeat("é", 100_000)
	edge := requested(&slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{
		Segment: DefaultSegment, GroupA: group, GroupB: "b",
	}}}, "edge")
	h.refuse(edge, ErrInvalid)
	again := h.apply(requested(edge, "edge"))[0]
	if n := len(again.Err.Error()); n > maxRequestError || n < maxRequestError/2 {
		t.Errorf("a text of %d bytes is kept", n)
	}
	equal(t, "error", ErrorName(again.Err), "invalid")
	h.reopen()
}

// drawOperators draws a command that an operator gives.
func (f *fleet) drawOperators(t *rapid.T) *slimcppb.Command {
	group := rapid.SampledFrom(testGroups).Draw(t, "group")
	switch rapid.IntRange(0, 6).Draw(t, "operator's") {
	case 0:
		return f.drawMembership(t, group, "n1")
	case 1:
		return f.drawTopology(t)
	case 2:
		return topologyCommand() // through the API from now on
	case 3:
		return finalizeCommand(rapid.Uint32Range(0, 1).Draw(t, "schema"))
	case 4:
		return f.drawReplica(t)
	default:
		return f.drawManagedTopology(t, group)
	}
}

// TestRepeatedRequests delivers operators' commands again at any later time, as a
// caller does that got no answer: each delivery is answered like the first, and the
// state is as if there had been no other.
func TestRepeatedRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		type delivered struct {
			command *slimcppb.Command
			result  Result
		}
		var requests []delivered
		once := slices.Clone(f.log)
		again := func() *delivered {
			return &requests[rapid.IntRange(0, len(requests)-1).Draw(t, "request")]
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			commands := []*slimcppb.Command{f.draw(t)}
			var repeated *delivered
			asked := rapid.IntRange(0, 3).Draw(t, "step")
			switch {
			case asked == 0 && len(requests) > 0:
				commands, repeated = nil, again()
			case asked <= 2:
				commands = []*slimcppb.Command{requested(f.drawOperators(t), fmt.Sprint("request ", len(requests)))}
				if len(requests) > 0 && rapid.Bool().Draw(t, "with another") {
					repeated = again()
				}
			}
			sent := commands
			if repeated != nil {
				sent = append(sent[:len(sent):len(sent)], requested(repeated.command, repeated.command.GetRequestId()))
			}
			results := f.apply(sent...)
			logged := f.log[len(f.log)-1]
			once = append(once, Batch{Index: logged.Index, Term: logged.Term, Entry: &slimcppb.Entry{Commands: commands}})
			if repeated != nil {
				sameResult(t, "delivered again", results[len(results)-1], repeated.result)
			}
			if len(commands) > 0 && commands[0].GetRequestId() != "" {
				requests = append(requests, delivered{commands[0], results[0]})
			}
		}
		other := New()
		for _, logged := range once {
			other.ApplyBatch([]Batch{reencode(t, logged)})
		}
		if !bytes.Equal(snapshotBytes(t, other), snapshotBytes(t, f.store)) {
			t.Fatalf("a command that was delivered again had another effect")
		}
	})
}
