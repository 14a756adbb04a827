package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Callers come, wait, give up and go in any order: the bounds hold, nobody who
// is patient is forgotten, and nothing stays taken. It needs no bubble, and the
// race detector of Go 1.26 sometimes crashes over a hundred of them.
func TestAdmissionHoldsItsBounds(t *testing.T) {
	type caller struct {
		size                     int
		arrives, patience, holds time.Duration
	}
	rapid.Check(t, func(rt *rapid.T) {
		milliseconds := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, name)) * time.Millisecond
		}
		callers := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) caller {
			return caller{
				size:    rapid.IntRange(MaxProposalBytes/8, MaxProposalBytes).Draw(rt, "size"),
				arrives: milliseconds("arrives", 4), patience: milliseconds("patience", 8), holds: milliseconds("holds", 3),
			}
		}), 5, 30).Draw(rt, "callers")
		var a admission
		var running sync.WaitGroup
		for _, c := range callers {
			running.Go(func() {
				<-time.After(c.arrives)
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				if err := a.acquire(ctx, c.size, true); err != nil {
					if !errors.Is(err, ErrOverloaded) || ctx.Err() == nil {
						t.Errorf("acquire: %v", err)
					}
					return
				}
				a.mu.Lock()
				if a.bytes > maxProposalBytes {
					t.Errorf("%d bytes in flight", a.bytes)
				}
				a.mu.Unlock()
				<-time.After(c.holds)
				a.release(c.size)
			})
		}
		running.Wait()
		if a.proposals != 0 || a.bytes != 0 || a.waiting.Len() != 0 {
			rt.Fatalf("%d proposals, %d bytes and %d callers are left", a.proposals, a.bytes, a.waiting.Len())
		}
	})
}

func TestClosedAdmissionSendsEverybodyAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a admission
		if err := a.acquire(t.Context(), maxProposalBytes, false); err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				if err := a.acquire(t.Context(), 1, true); !errors.Is(err, ErrShutdown) {
					t.Errorf("waiting: %v", err)
				}
			})
		}
		synctest.Wait()
		a.close(ErrShutdown)
		waiting.Wait()
		if err := a.acquire(t.Context(), 1, true); !errors.Is(err, ErrShutdown) {
			t.Errorf("late: %v", err)
		}
		a.release(maxProposalBytes)
	})
}
