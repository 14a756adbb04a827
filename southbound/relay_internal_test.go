package southbound

import (
	"errors"
	"strings"
	"testing"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Every error of a call, and only one, has a code on the wire.
func TestCallErrorsAreOneToOne(t *testing.T) {
	codes := map[slimcppb.CallError]bool{}
	for _, row := range callErrors {
		code := callErrorToProto(row.err)
		if codes[code] || code == slimcppb.CallError_CALL_ERROR_NONE {
			t.Errorf("%v has the code %v, which is not its own", row.err, code)
		}
		codes[code] = true
		if back := callErrorFromProto(code); !errors.Is(back, row.err) {
			t.Errorf("%v comes back as %v", row.err, back)
		}
	}
	if len(codes) != len(slimcppb.CallError_name)-1 {
		t.Errorf("%d codes are used, the schema has %d", len(codes), len(slimcppb.CallError_name)-1)
	}
	if err := callErrorFromProto(slimcppb.CallError_CALL_ERROR_NONE); err != nil {
		t.Errorf("no error comes back as %v", err)
	}
}

// Of the events of one session only the newest state is sent.
func TestEventQueueKeepsTheNewestState(t *testing.T) {
	event := func(node string) *slimcppb.RelayEvent {
		return &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Ready{Ready: &slimcppb.SessionReady{NodeId: node}}}
	}
	ended := &slimcppb.RelayEvent{Event: &slimcppb.RelayEvent_Ended{Ended: &slimcppb.SessionEnded{}}}
	q := newEventQueue()
	for _, put := range []struct {
		key   eventKey
		event *slimcppb.RelayEvent
	}{
		{eventKey{1, eventReady}, event("old")},
		{eventKey{2, eventReady}, event("gone")},
		{eventKey{1, eventReady}, event("new")},
		{eventKey{2, eventBurst}, event("gone")},
		{eventKey{2, eventEnded}, ended},
		{eventKey{2, eventReady}, event("told too late")},
	} {
		if err := q.put(put.key, put.event); err != nil {
			t.Fatal(err)
		}
	}
	if got := q.take().GetReady().GetNodeId(); got != "new" {
		t.Errorf("first came %q, want the newest of session 1", got)
	}
	if got := q.take(); got != ended {
		t.Errorf("then came %v, want the end of session 2 alone", got)
	}
	if got := q.take(); got != nil {
		t.Errorf("behind them came %v", got)
	}
}

func TestMessageQueueIsBounded(t *testing.T) {
	q := newMessageQueue[*slimcppb.RelayAnswer](1000)
	large := &slimcppb.RelayAnswer{MessageId: strings.Repeat("x", 490)}
	if !q.put(large) {
		t.Fatal("there is no room for the first message")
	}
	if !q.put(large) || q.put(large) {
		t.Error("the bound is not that of two messages")
	}
	for {
		if _, ok := q.take(); !ok {
			break
		}
	}
	if !q.put(large) {
		t.Error("there is no room again when all was taken")
	}
}
