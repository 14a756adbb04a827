package logging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reader stands for whoever reads the log: it may stand still or be gone.
type reader struct {
	mu    sync.Mutex
	text  bytes.Buffer
	gone  bool
	still chan struct{} // writes wait until it is closed
}

func (r *reader) Write(line []byte) (int, error) {
	r.mu.Lock()
	still, gone := r.still, r.gone
	r.mu.Unlock()
	if still != nil {
		<-still
	}
	if gone {
		return 0, errors.New("broken pipe")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(line)
}

func (r *reader) set(gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = gone
}

func (r *reader) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSuffix(r.text.String(), "\n"), "\n")
}

func write(t *testing.T, w *Writer, line string) {
	t.Helper()
	if n, err := fmt.Fprintln(w, line); err != nil || n != len(line)+1 {
		t.Fatalf("Write: %d, %v", n, err)
	}
}

// Lines that find no room are dropped, the writer goes on, and their number is
// written when there is room again.
func TestAReaderThatStandsStillHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{still: make(chan struct{})}
		w := newWriter(r, 10*(len("line 00\n")+lineOverhead))
		write(t, w, "first")
		synctest.Wait() // it is being written
		for i := range 13 {
			write(t, w, fmt.Sprintf("line %02d", i))
		}
		close(r.still)
		synctest.Wait()
		got := r.lines()
		if len(got) != 12 || got[0] != "first" || got[10] != "line 09" || !strings.Contains(got[11], "lines=3") {
			t.Errorf("lines are %q", got)
		}
		write(t, w, "later")
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got = r.lines(); got[len(got)-1] != "later" {
			t.Errorf("lines are %q", got)
		}
	})
}

// A reader that is gone is no failure of who writes; one that comes is told what it
// has missed.
func TestAReaderThatIsGoneIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{gone: true}
		w := NewWriter(r)
		for range 4 {
			write(t, w, "lost")
		}
		synctest.Wait()
		r.set(false)
		write(t, w, "seen")
		synctest.Wait()
		if got := r.lines(); len(got) != 2 || got[0] != "seen" || !strings.Contains(got[1], "lines=4") {
			t.Errorf("lines are %q", got)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseWaitsForNoReaderThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{still: make(chan struct{})}
		w := NewWriter(r)
		write(t, w, "line")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		close(r.still)
	})
}
