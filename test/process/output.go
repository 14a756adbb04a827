package process

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// logTail is the number of lines that a failed test shows of each program.
const logTail = 60

// Stream tells standard output from standard error.
type Stream int

// The streams of a program.
const (
	Stdout Stream = iota + 1
	Stderr
)

// Line is one line that a program wrote.
type Line struct {
	Stream Stream
	Text   string
}

// output keeps every line that a program wrote, and tells who waits for more.
type output struct {
	mu    sync.Mutex // guards the following fields
	lines []Line
	more  chan struct{} // closed and replaced when a line is added
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) add(line Line) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, line)
	close(o.more)
	o.more = make(chan struct{})
}

// from returns the lines from number n on, and a channel that is closed when
// there are more.
func (o *output) from(n int) ([]Line, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lines[n:len(o.lines):len(o.lines)], o.more
}

func (o *output) tail(n int) string {
	lines, _ := o.from(0)
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString("    " + line.Text + "\n")
	}
	return text.String()
}

// stream returns a writer that cuts what it gets into lines.
func (o *output) stream(stream Stream) *lineWriter {
	return &lineWriter{stream: stream, output: o}
}

type lineWriter struct {
	stream  Stream
	output  *output
	partial []byte
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.partial = append(w.partial, data...)
	for {
		end := bytes.IndexByte(w.partial, '\n')
		if end < 0 {
			return len(data), nil
		}
		w.output.add(Line{Stream: w.stream, Text: string(w.partial[:end])})
		w.partial = w.partial[end+1:]
	}
}

// flush adds a last line that has no end. Nothing may be written any more.
func (w *lineWriter) flush() {
	if len(w.partial) > 0 {
		w.output.add(Line{Stream: w.stream, Text: string(w.partial)})
	}
}

// Lines returns what the program has written so far.
func (p *Process) Lines() []Line {
	lines, _ := p.output.from(0)
	return lines
}

// Text returns what the program has written so far to one stream.
func (p *Process) Text(stream Stream) string {
	var text strings.Builder
	for _, line := range p.Lines() {
		if line.Stream == stream {
			text.WriteString(line.Text + "\n")
		}
	}
	return text.String()
}

// WaitFor returns the first line that match accepts, also one that was written
// before the call. It fails the test if there is none in time, or if the
// program ends without one; what names the thing waited for in that failure.
func (p *Process) WaitFor(tb testing.TB, what string, within time.Duration, match func(Line) bool) Line {
	tb.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	seen := 0
	for {
		ended := p.Exited() // before the look at the lines, which are complete then
		lines, more := p.output.from(seen)
		for _, line := range lines {
			if match(line) {
				return line
			}
		}
		seen += len(lines)
		if ended {
			tb.Fatalf("%s ended with exit code %d before %s", p.name, p.exitCode(), what)
		}
		select {
		case <-more:
		case <-p.exited:
		case <-timer.C:
			tb.Fatalf("%s: no %s within %v", p.name, what, within)
		}
	}
}

// WaitStdout waits for a line of standard output that contains the text.
func (p *Process) WaitStdout(tb testing.TB, text string, within time.Duration) Line {
	tb.Helper()
	return p.WaitFor(tb, "line with "+text, within, func(line Line) bool {
		return line.Stream == Stdout && strings.Contains(line.Text, text)
	})
}
