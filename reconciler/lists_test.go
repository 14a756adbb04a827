package reconciler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// listed reports whether both lists of a node were asked for since Record.
func listed(w *world.World, nodeID string) error {
	var connections, routes bool
	for _, push := range w.Taps.Pushes(nodeID) {
		if push.Command == nil {
			connections, routes = connections || push.Connections, routes || !push.Connections
		}
	}
	if !connections || !routes {
		return fmt.Errorf("lists of %s: connections %v, routes %v", nodeID, connections, routes)
	}
	return nil
}

func TestANewLeaderReadsAllLists(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		w.Join("a", "n1").Announce(world.Name("x"))
		w.Join("a", "n2")
		w.Join("b", "n").Announce(world.Name("y"))
		w.Settle()
		w.Resign()
		w.Taps.Record()
		w.Lead()
		w.Eventually("the lists are read", time.Minute, func() error {
			return errors.Join(listed(w, "a/n1"), listed(w, "a/n2"), listed(w, "b/n"))
		})
		w.Settle()
	})
}

// A node drops some of what it has to say when that is much at once (protocol N8).
func TestListsAreReadBehindABurst(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		const names = 510 // a burst has more than 500 messages
		a := w.Join("a", "n")
		w.Settle() // what was announced before would be doubted when it is withdrawn
		for i := range names {
			a.Announce(world.Name(fmt.Sprint(i)))
			pass(time.Millisecond) // so that the node drops nothing
		}
		w.Settle()
		w.Taps.Record()
		for i := range names {
			a.Withdraw(world.Name(fmt.Sprint(i)))
			pass(time.Millisecond)
		}
		w.Eventually("the lists are read", time.Minute, func() error { return listed(w, a.ID()) })
		w.Settle()
	})
}

// The accepting end of a link that is dialled again may be too busy to say that it lost
// the former connection. Its routes are set over the new one all the same.
func TestRoutesAreSetOverALinkThatWasMadeAgain(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n", world.NoExternal), w.Join("b", "n")
		x := world.Name("x")
		a.Announce(x)
		w.Settle()
		session, _ := w.Record(b.ID()).CommandSession()
		dropped := false
		w.Replica().Refuse(func(command *slimcppb.Command) error {
			announce := command.GetAnnounce()
			if announce == nil || announce.GetSession().GetCounter() != session.Name.Counter {
				return nil
			}
			dropped = true
			return cluster.ErrInvalidCommand
		})
		a.CloseStream()
		w.Settle()
		if !dropped {
			t.Error("node b did not say that it lost the connection")
		}
		if at := arrivals(t, w, b.ID(), x, a.ID()); at != 1 {
			t.Errorf("%d arrivals over the new connection", at)
		}
	})
}

// While a node lists two connections of one link no routes are set over it, and the
// lists are read again when the older one has had time to end.
func TestListsAreReadAgainAfterTwoConnectionsOfOneLink(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		x, y := world.Name("x"), world.Name("y")
		a.Announce(x)
		b.Announce(x)
		w.Settle()
		link := w.Link("a", "b").ID
		w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
			if call.NodeID != b.ID() || !call.ListConnections {
				return nil
			}
			return func(answer *southbound.Answer) {
				for _, entry := range answer.Connections {
					if entry.GetLinkId() == link {
						older := proto.CloneOf(entry)
						older.Id += 1000
						answer.Connections = append(answer.Connections, older)
						return
					}
				}
			}
		})
		w.Taps.Record()
		b.Withdraw(x) // another node serves it too, so the lists are read
		pass(100 * time.Millisecond)
		if err := listed(w, b.ID()); err != nil {
			t.Fatal(err)
		}
		a.Announce(y)
		pass(500 * time.Millisecond)
		for _, command := range w.Taps.Commands(b.ID()) {
			t.Errorf("sent while there were two connections: %v", command)
		}
		w.Taps.Set(nil)
		pass(5 * time.Second)
		if at := arrivals(t, w, b.ID(), y, a.ID()); at != 1 {
			t.Errorf("%d arrivals after the older connection ended", at)
		}
		w.Settle()
	})
}

func TestTombstonesAreListedForTheirRetention(t *testing.T) {
	graces := world.DefaultGraces()
	graces.TombstoneMs = 60_000
	world.Run(t, world.Options{Graces: graces}, func(t *testing.T, w *world.World) {
		a := w.Join("a", "n")
		w.Join("b", "n")
		a.Announce(world.Name("x"))
		w.Settle()
		a.Withdraw(world.Name("x"))
		count := func() (n int) {
			for range w.View().Tombstones() {
				n++
			}
			return n
		}
		pass(55 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d tombstones before the retention is over", n)
		}
		w.Settle()
		if n := count(); n != 0 {
			t.Errorf("%d tombstones for good", n)
		}
	})
}
