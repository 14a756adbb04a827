package fsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestWaitAppliedReturnsWithTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := meshed(t)
		wanted := h.view().Index() + 2
		if err := h.store.WaitApplied(t.Context(), wanted-2); err != nil {
			t.Fatal(err)
		}
		seen := make(chan uint64, 1)
		go func() {
			if err := h.store.WaitApplied(t.Context(), wanted); err != nil {
				t.Error(err)
			}
			seen <- h.view().Index()
		}()
		synctest.Wait()
		h.register("a", "n1")
		synctest.Wait()
		select {
		case index := <-seen:
			t.Fatalf("returned at %d, waiting for %d", index, wanted)
		default:
		}
		h.register("b", "n1")
		if index := <-seen; index < wanted {
			t.Errorf("returned at %d", index)
		}
	})
}

func TestWaitAppliedEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := meshed(t)
		done := make(chan error, 1)
		go func() { done <- h.store.WaitApplied(ctx, 1000) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

func TestAFeedWaitsForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := meshed(t)
		feed := h.store.Subscribe()
		defer feed.Close()
		if changes, view, err := feed.Next(t.Context()); err != nil || !changes.All || view.Index() != h.view().Index() {
			t.Fatalf("first batch %+v, %v", changes, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, _, err := feed.Next(ctx); done <- err }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("without a change: %v", err)
		}
	})
}

func TestAFeedMergesWhatABusyReaderMissed(t *testing.T) {
	h := meshed(t)
	changes := h.changesOf(func() {
		sessions := h.fleetOf("a", "b")
		h.announce(sessions["a"], appName("x", 1))
		h.announce(sessions["b"], appName("y", 1))
	})
	for _, id := range []string{"a/n1", "b/n1"} {
		if !slices.Contains(changes.Nodes, id) {
			t.Errorf("nodes %q lack %s", changes.Nodes, id)
		}
	}
	var names []string
	for _, change := range changes.Names {
		names = append(names, change.Name.C2)
	}
	if !slices.Equal(names, []string{"x", "y"}) || changes.All {
		t.Errorf("names %q, all %v", names, changes.All)
	}
	if len(changes.Links) < 2 || changes.Links[0].Before != nil || changes.Links[len(changes.Links)-1].Before == nil {
		t.Errorf("links %+v: one is made, then claimed", changes.Links)
	}
}

// A reader that falls far behind is told that anything may have changed. Hints
// are in no state that it could read instead: they are kept.
func TestAFeedThatFallsBehindKeepsTheHints(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	changes := h.changesOf(func() {
		h.withdraw(sessions["b"], appName("strange", 1))
		for feed := range h.store.feeds { // as much as hours of announcements
			feed.push(&Changes{Names: make([]NameChange, maxFeedChanges)}, h.view())
		}
		h.announce(sessions["a"], appName("x", 1))
	})
	if !changes.All || len(changes.Names) != 0 {
		t.Errorf("all %v, %d names", changes.All, len(changes.Names))
	}
	if !slices.Contains(changes.Suspects, "b/n1") {
		t.Error("the hint is lost")
	}
}

func TestAClosedFeedIsNotFed(t *testing.T) {
	h := meshed(t)
	feed := h.store.Subscribe()
	feed.Close()
	feed.Close()
	equal(t, "feeds", len(h.store.feeds), 0)
	h.register("a", "n1")
}

// A view is of its moment, whatever is applied while it is read.
func TestAViewDoesNotChange(t *testing.T) {
	h := star(t)
	sessions := h.fleetOf("hub", "s1", "s2")
	x := appName("x", 1)
	h.announce(sessions["s1"], x)
	view := h.view()
	want := fmt.Sprint(routeRows(view, RouteFilter{}), view.Index(), view.NodeCount(), view.Clock())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 50 {
				if got := fmt.Sprint(routeRows(view, RouteFilter{}), view.Index(), view.NodeCount(), view.Clock()); got != want {
					t.Errorf("an old view shows %s, not %s", got, want)
					return
				}
				_ = routeRows(h.store.View(), RouteFilter{})
			}
		})
	}
	for i := range 50 {
		session := h.register(fmt.Sprintf("s%d", i%4), "n2")
		h.announce(session, appName("x", 1), appName("y", byte(i)))
	}
	h.depart("s1/n1", sessions["s1"])
	readers.Wait()
}
