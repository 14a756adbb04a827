package reconciler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// missing makes a node answer that it has none of the connections over which it is
// told to set routes. before runs while an answer is under way.
func missing(w *world.World, nodeID string, before func()) {
	w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
		routes := call.Command.GetRoutesToSet()
		if call.NodeID != nodeID || len(routes) == 0 {
			return nil
		}
		call.Command = &controllerpb.ConfigurationCommand{}
		return func(answer *southbound.Answer) {
			before()
			answer.Ack = &controllerpb.ConfigurationCommandAck{}
			for _, route := range routes {
				answer.Ack.RoutesStatus = append(answer.Ack.RoutesStatus, &controllerpb.RouteAck{
					Route: route, ErrorMsg: fmt.Sprintf("Connection with link_id %s not found", route.GetLinkId()),
				})
			}
		}
	})
}

// oneLink joins two groups and returns the source of their link and the other end.
func oneLink(w *world.World) (source, other *dataplane.Node) {
	a, b := w.Join("a", "n"), w.Join("b", "n")
	w.Settle()
	if w.Link("a", "b").SourceNode == b.ID() {
		return b, a
	}
	return a, b
}

// The refusals of one answer are one statement about the link, also if its source
// registered again between the command and the answer, as all nodes of a replica
// that is killed do.
func TestRefusalsOfOneAnswerCountOnce(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		source, other := oneLink(w)
		id := w.Link("a", "b").ID
		refused := 0
		missing(w, other.ID(), func() {
			refused++
			w.Taps.Set(nil)
			source.CloseStream()
			pass(100 * time.Millisecond) // the source registers again
		})
		for i := range 5 {
			source.Announce(world.Name(fmt.Sprint("x", i)))
		}
		w.Settle()
		if refused != 1 {
			t.Errorf("%d answers were refusals", refused)
		}
		if now := w.Link("a", "b").ID; now != id {
			t.Errorf("link %s became %s", id, now)
		}
	})
}

// What a node says of a connection that its source has lost since proves nothing of
// the one that the source has now.
func TestRefusalsOfAnEarlierConnectionDoNotAddUp(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		source, other := oneLink(w)
		id := w.Link("a", "b").ID
		for i := range 5 {
			done := false
			missing(w, other.ID(), func() {
				done = true
				w.Taps.Set(nil)
				source.CloseStream()
				pass(100 * time.Millisecond)
			})
			source.Announce(world.Name(fmt.Sprint("x", i)))
			pass(200 * time.Millisecond)
			if !done {
				t.Fatal("no route was refused")
			}
			pass(time.Minute)
		}
		w.Settle()
		if now := w.Link("a", "b").ID; now != id {
			t.Errorf("link %s became %s", id, now)
		}
	})
}
