package southbound_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A node that announces and withdraws the same names without end has little of it
// proposed; its last word counts, and nobody else waits.
func TestFlappingNodeIsSlowed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n, other := r.join("a", "n"), r.join("a", "other")
		flapping := names(strings.Repeat("x", 1000), 0, 200)
		bytes := func() (sum int) {
			for _, command := range accepted(r.replica, (*slimcppb.Command).GetAnnounce) {
				sum += proto.Size(command)
			}
			return sum
		}
		began := time.Now()
		for range 60 { // 25 MB
			n.announce(flapping...)
			pass(50 * time.Millisecond)
			n.withdraw(flapping...)
			pass(50 * time.Millisecond)
		}
		other.announce("y")
		pass(100 * time.Millisecond)
		if r.announced("a/other") != "y" {
			t.Error("another node has to wait")
		}
		// An announcement is charged by the withdrawal that goes before it.
		allowed := 2 * (4<<20 + 1<<20 + int(time.Since(began).Seconds())*(128<<10))
		if sum := bytes(); sum > allowed {
			t.Errorf("%d bytes were proposed in %s, of at most %d", sum, time.Since(began), allowed)
		}
		if r.service.Stats().Slowed == 0 {
			t.Error("nobody is counted as slowed")
		}
		n.announce(flapping...)
		eventually(t, "the last word counts", func() bool {
			return strings.Count(r.announced("a/n"), " ") == len(flapping)-1
		})
	})
}

// What a slowed node said last counts also if its stream ends before its time.
func TestLastWordsOfAFlappingNodeCount(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n, flapping := r.join("a", "n"), names(strings.Repeat("x", 1000), 0, 200)
		for i := 0; r.service.Stats().Slowed == 0; i++ {
			if i == 100 {
				t.Fatal("nobody is slowed")
			}
			n.announce(flapping...)
			pass(50 * time.Millisecond)
			n.withdraw(flapping...)
			pass(50 * time.Millisecond)
		}
		n.announce("last")
		synctest.Wait()
		if r.announced("a/n") == "last" {
			t.Fatal("the node is not slowed any more")
		}
		n.hangUp()
		pass(100 * time.Millisecond)
		if got := r.announced("a/n"); got != "last" {
			t.Errorf("the state has %d bytes of names", len(got))
		}
	})
}

// Many names, and their end, are no flapping.
func TestNodeWithManyNamesIsNotSlowed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		n, long := r.join("a", "n"), strings.Repeat("n", 700)
		for from := 0; from < 5000; from += 1000 { // 3.5 MB
			n.announce(names(long, from, from+1000)...)
		}
		synctest.Wait()
		for from := 0; from < 5000; from += 1000 {
			n.withdraw(names(long, from, from+1000)...)
		}
		pass(time.Second)
		if left := r.announced("a/n"); left != "" || r.service.Stats().Slowed != 0 {
			t.Errorf("%d bytes of names are left, slowed %d times", len(left), r.service.Stats().Slowed)
		}
	})
}
