package logging

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// bufferBytes bounds what waits for a reader that stands still. Lines beyond it are
// dropped.
const bufferBytes = 1 << 20

// lineOverhead is what a line costs beside its text.
const lineOverhead = 64

// Writer passes what is written to it on to another writer, from a goroutine of its
// own. Write never blocks and never fails: what finds no room in the buffer, or what
// the other writer refuses, is dropped. How many lines were is written as soon as
// something can be written again.
type Writer struct {
	out   io.Writer
	limit int

	mu      sync.Mutex
	lines   [][]byte
	bytes   int  // of lines
	dropped int  // since the last notice
	failing bool // the last write failed
	closed  bool

	wake  chan struct{}
	ended chan struct{}
}

// NewWriter starts a Writer to out. Close ends it.
func NewWriter(out io.Writer) *Writer { return newWriter(out, bufferBytes) }

func newWriter(out io.Writer, limit int) *Writer {
	w := &Writer{out: out, limit: limit, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write takes one line. It always succeeds.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	if w.closed || w.bytes+size(line) > w.limit {
		w.dropped++
	} else {
		w.lines = append(w.lines, append([]byte(nil), line...))
		w.bytes += size(line)
	}
	w.mu.Unlock()
	w.notify()
	return len(line), nil
}

// size is what a waiting line takes of the buffer.
func size(line []byte) int { return len(line) + lineOverhead }

// Close writes what is left, and returns when that is done or the context has ended.
// Later lines are dropped.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.notify()
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("log lines are left: %w", ctx.Err())
	}
}

func (w *Writer) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	for range w.wake {
		for {
			line, dropped, ok := w.next()
			if !ok {
				break
			}
			w.pass(line, dropped)
		}
		if w.isFinished() {
			return
		}
	}
}

// next takes the oldest line out, with the number of lines to be reported before it.
// Lines are dropped only behind those that wait, so that their number is reported
// when all of these are written.
func (w *Writer) next() (line []byte, dropped int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == 0 {
		if w.dropped == 0 || w.failing {
			return nil, 0, false
		}
		dropped, w.dropped = w.dropped, 0
		return nil, dropped, true
	}
	line, w.lines = w.lines[0], w.lines[1:]
	w.bytes -= size(line)
	return line, 0, true
}

// pass writes one line, or the notice of dropped ones.
func (w *Writer) pass(line []byte, dropped int) {
	lost := 1
	if line == nil {
		lost = dropped
		line = fmt.Appendf(nil, "%s [WARN]  log lines were dropped because they could not be written: lines=%d\n",
			time.Now().Format(time.RFC3339Nano), dropped)
	}
	_, err := w.out.Write(line)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = err != nil
	if w.failing {
		w.dropped += lost
	}
}

func (w *Writer) isFinished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && len(w.lines) == 0
}
