//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// Whatever one peer sends, no other node is disturbed, and a line of the log
// says who it was and what was wrong.
func TestBadInputDisturbsNobodyElse(t *testing.T) {
	r := process.StartReplica(t, binaries, settings(t))
	o := observer.Dial(t, r.Northbound)
	f := startFleet(t, r, 3, 1, 2)
	f.wantDelivery(t)
	before := linkIDs(t, o)

	for name, c := range map[string]struct {
		first *controllerpb.ControlMessage
		then  []*controllerpb.ControlMessage
		log   []string // words of one line
	}{
		"wrong first message": {first: listRequest(), log: []string{"first message"}},
		"empty node id":       {first: registration("bad", ""), log: []string{"node id", "empty"}},
		"any node":            {first: registration("bad", "*"), log: []string{`*`, "node"}},
		"bad group":           {first: registration("b/ad", "n"), log: []string{"b/ad"}},
		"malformed name": {
			first: registration("bad", "nameless"),
			then:  []*controllerpb.ControlMessage{announcement(&dataplanepb.Name{})},
			log:   []string{"bad/nameless", "name"},
		},
		"huge message": {
			first: registration("bad", "huge"),
			then: []*controllerpb.ControlMessage{announcement(&dataplanepb.Name{
				StrName: &dataplanepb.StringName{StrComponent_0: strings.Repeat("x", 64<<20)},
			})},
			log: []string{"bad/huge", "larger than max"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := len(r.Lines())
			ctx, cancel := context.WithTimeout(t.Context(), commandTime)
			defer cancel()
			speak(ctx, t, r.Southbound, append([]*controllerpb.ControlMessage{c.first}, c.then...))
			read := 0
			r.WaitFor(t, "log line with "+strings.Join(c.log, ", "), commandTime, func(line process.Line) bool {
				read++
				return read > seen && containsAll(line.Text, c.log) && !strings.Contains(line.Text, "registered")
			})
		})
	}

	for range 2 { // one id on two streams
		speak(t.Context(), t, r.Southbound, []*controllerpb.ControlMessage{registration("bad", "twice"), announcement(nil)})
	}

	f.wantDelivery(t)
	f.control(t, "nodes") // fails if one of them gave up
	after := linkIDs(t, o)
	for _, id := range before {
		if !slices.Contains(after, id) {
			t.Errorf("link %s is gone; there are %v", id, after)
		}
	}
	for _, line := range r.Lines() {
		if strings.Contains(line.Text, "ended") && strings.Contains(line.Text, "group-") {
			t.Errorf("a node of the fleet was disturbed: %s", line.Text)
		}
	}
}

// speak opens a stream, which lasts until the test ends, and sends the messages;
// what follows the first one waits for the answer to the registration.
func speak(ctx context.Context, t *testing.T, endpoint string, messages []*controllerpb.ControlMessage) {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := controllerpb.NewControllerServiceClient(connection).OpenControlChannel(context.WithoutCancel(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for i, message := range messages {
		if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if i == 0 && len(messages) > 1 {
			awaitRegistration(t, stream)
		}
	}
}

func awaitRegistration(t *testing.T, stream grpc.BidiStreamingClient[controllerpb.ControlMessage, controllerpb.ControlMessage]) {
	t.Helper()
	for {
		message, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if answer := message.GetRegisterNodeResponse(); answer != nil {
			if !answer.GetSuccess() {
				t.Fatal("the registration was refused")
			}
			return
		}
	}
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

func registration(group, node string) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{
		MessageId: "register",
		Payload: &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: &controllerpb.RegisterNodeRequest{
			NodeId: node, DomainName: &group,
		}},
	}
}

func announcement(name *dataplanepb.Name) *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{
		MessageId: "announce",
		Payload: &controllerpb.ControlMessage_ConfigCommand{ConfigCommand: &controllerpb.ConfigurationCommand{
			RoutesToSet: []*controllerpb.Route{{Name: name}},
		}},
	}
}

func listRequest() *controllerpb.ControlMessage {
	return &controllerpb.ControlMessage{
		MessageId: "list",
		Payload:   &controllerpb.ControlMessage_RouteListRequest{RouteListRequest: &controllerpb.RouteListRequest{}},
	}
}
