package reconciler_test

import (
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// A link that fails for good is tried at a bounded rate, and the log does not grow
// with what changes nothing (kubernetes/kubernetes#27634).
func TestALinkThatAlwaysFailsMakesNoStorm(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n", world.NoExternal), w.AddNode("b", "n")
		b.RefuseConnections(true)
		w.Converge()
		w.Start(b)
		w.Taps.Record()
		began := w.View().Index()
		const minutes = 60
		pass(minutes * time.Minute)
		tries := 0
		for _, push := range w.Taps.Pushes(a.ID()) {
			if push.Command != nil {
				tries++
			}
		}
		if tries < 2 || tries > 10*minutes {
			t.Errorf("%d commands in %d minutes", tries, minutes)
		}
		if grown := w.View().Index() - began; grown > 10*minutes {
			t.Errorf("the log grew by %d entries in %d minutes in which nothing changed", grown, minutes)
		}
		b.RefuseConnections(false)
		w.Settle()
	})
}

// Success makes up for all failures before it: the next failure is tried again as
// soon as a first one (kubernetes-sigs/controller-runtime#392).
func TestSuccessResetsTheBackOff(t *testing.T) {
	world.Run(t, noSweep(world.Options{}), func(t *testing.T, w *world.World) {
		a, b := w.Join("a", "n"), w.Join("b", "n")
		w.Settle()
		for _, name := range []string{"first", "second"} {
			w.Taps.Set(func(call *southbound.Call) func(*southbound.Answer) {
				if call.NodeID != b.ID() {
					return nil
				}
				return func(answer *southbound.Answer) { *answer = southbound.Answer{Err: southbound.ErrQueueFull} }
			})
			w.Taps.Record()
			a.Announce(world.Name(name))
			pass(90 * time.Second)
			var tries []time.Time
			for _, push := range w.Taps.Pushes(b.ID()) {
				if push.Connections || push.Command != nil {
					tries = append(tries, push.At)
				}
			}
			if len(tries) < 10 {
				t.Fatalf("the %s name was tried %d times", name, len(tries))
			}
			if wait := tries[1].Sub(tries[0]); wait > time.Second {
				t.Errorf("the %s name was tried again after %v", name, wait)
			}
			if wait := tries[len(tries)-1].Sub(tries[len(tries)-2]); wait < 10*time.Second {
				t.Errorf("after ten failures the %s name was tried again after %v", name, wait)
			}
			w.Taps.Set(nil)
			w.Settle()
		}
	})
}
