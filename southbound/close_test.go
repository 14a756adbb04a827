package southbound_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// Everything that is tried until it succeeds ends with the service, also when no
// leader ever comes back. What goes on keeps the bubble from ending.
func TestNothingIsTriedAfterTheService(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.require(map[string]string{"a": secretOfA})
		fresh := func(node string) string { return token(t, secretOfA, "a", node, 0) }
		gone, _ := r.ask(proven("a", "gone", fresh("gone")))
		gone.answer(gone.next())
		speaking, _ := r.ask(proven("a", "speaking", fresh("speaking")))
		speaking.answer(speaking.next())
		synctest.Wait()
		r.replica.setLeader(false)
		gone.hangUp()          // its loss waits to be committed
		speaking.announce("x") // and so does what this one says
		r.ask(proven("a", "provisional", fresh("provisional")))
		r.ask(proven("a", "quarantined", "no token"))
		pass(time.Minute)
	})
}
