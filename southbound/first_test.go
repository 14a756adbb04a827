package southbound_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// linkTo returns the id of the link between group a and another group.
func (r *rig) linkTo(group string) string {
	r.t.Helper()
	synctest.Wait()
	link, ok := r.replica.store.View().LinkBetween("a", group)
	if !ok {
		r.t.Fatalf("no link a~%s", group)
	}
	return link.ID
}

func dialled(message *controllerpb.ControlMessage) []string {
	var ids []string
	for _, connection := range message.GetConfigCommand().GetConnectionsToCreate() {
		ids = append(ids, connection.GetLinkId())
	}
	return ids
}

func TestFirstCommandDialsProvenLinksFirst(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n")
		proven := map[string]bool{}
		for _, group := range []string{"p1", "p2", "p3"} {
			node := r.join(group, "n", external(group+":1"))
			node.claim(r.linkTo(group))
			proven[r.linkTo(group)] = true
		}
		r.join("u1", "n", external("u1:1"))
		r.join("u2", "n", external("u2:1"))
		secure := external("tls:1")
		secure.TlsRequired = true
		r.join("tls", "n", secure)
		gone := r.join("gone", "n", external("gone:1"))
		gone.claim(r.linkTo("gone"))
		gone.hangUp()
		synctest.Wait()

		_, first := r.register(request("a", "n"))
		ids := dialled(first)
		if len(ids) != 4 {
			t.Fatalf("dialled %d links, expected 3 proven ones and 1 other", len(ids))
		}
		for _, id := range ids[:3] {
			if !proven[id] {
				t.Errorf("link %s comes before a proven one", id)
			}
		}
		if last := ids[3]; last != r.linkTo("u1") && last != r.linkTo("u2") {
			t.Errorf("the last link is %s", last)
		}

		pass(2 * time.Hour)
		r.join("late", "n", external("late:1")).claim(r.linkTo("late"))
		synctest.Wait()
		_, first = r.register(request("a", "n"))
		if ids := dialled(first); len(ids) != 2 || ids[0] != r.linkTo("late") {
			t.Errorf("two hours later dialled %v, proven is %s", ids, r.linkTo("late"))
		}
	})
}

func TestFirstCommandRoutes(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n", external("a:1"))
		b := r.join("b", "n", external("b:1")) // b dials a
		b.announce("over-incoming")
		a, _ := r.replica.store.View().LinkBetween("a", "b")
		r.join("a", "n", external("a:1")).claim(a.ID)
		// A node without an external endpoint dials.
		r.join("c", "n").announce("elsewhere")
		d := r.join("d", "n", external("d:1"))
		d.claim(r.linkTo("d"))
		synctest.Wait()

		_, first := r.register(request("b", "n", external("b:1")))
		command := first.GetConfigCommand()
		var set []string
		for _, route := range command.GetRoutesToSet() {
			if !slices.Contains(dialled(first), route.GetLinkId()) {
				t.Errorf("route over link %s, which the command does not dial", route.GetLinkId())
			}
			set = append(set, route.GetName().GetStrName().GetStrComponent_2())
		}
		known, ok := r.service.FirstCommand(r.session("b/n"))
		if !ok || !proto.Equal(known.Command, command) {
			t.Errorf("known command %v", known.Command)
		}
		if slices.Contains(set, "over-incoming") {
			t.Errorf("the node's own name is routed: %v", set)
		}
	})
}

func TestFirstCommandIsBounded(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.join("a", "n")
		b := r.join("b", "n", external("b:1"))
		b.claim(r.linkTo("b"))
		b.announce(names("n", 0, 1500)...)
		eventually(t, "all is announced", func() bool { return strings.Count(r.announced("b/n"), " ") == 1499 })
		_, first := r.register(request("a", "n"))
		if count := len(first.GetConfigCommand().GetRoutesToSet()); count != southbound.MaxCommandRoutes {
			t.Errorf("%d routes", count)
		}
		for _, route := range first.GetConfigCommand().GetRoutesToSet() {
			if route.GetName().GetName() == nil || route.GetName().GetStrName() == nil {
				t.Fatalf("route %v would kill the node", route)
			}
		}
		r.call(southbound.Call{NodeID: "a/n", Session: r.session("a/n"), Term: 1, ListRoutes: true})
	})
}
