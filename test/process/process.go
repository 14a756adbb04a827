package process

import (
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// killGrace bounds the wait for a process that was sent SIGKILL.
const killGrace = 10 * time.Second

// Spec says what to run.
type Spec struct {
	Name string // shown in failures
	Path string
	Args []string
	Dir  string
	Env  []string // in addition to the test's own environment
	// LogLines is how many of its last lines a failed test shows; 0: logTail.
	LogLines int
}

// Process is one running or finished program.
type Process struct {
	name   string
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *output
	exited chan struct{} // closed when the program ended and its output is complete
}

// Start runs a program until the test ends or somebody stops it. The program
// dies with the test process, whatever happens to that. When the test failed,
// the end of the program's output is logged.
func Start(tb testing.TB, spec Spec) *Process {
	tb.Helper()
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.SysProcAttr = dieWithParent()
	// A grandchild may keep the pipes open; without this Wait would not return.
	cmd.WaitDelay = 2 * time.Second
	p := &Process{name: spec.Name, cmd: cmd, output: newOutput(), exited: make(chan struct{})}
	stdout, stderr := p.output.stream(Stdout), p.output.stream(Stderr)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatalf("%s: %v", spec.Name, err)
	}
	p.input = input
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", spec.Name, err)
	}
	go func() {
		_ = cmd.Wait() // the exit code is read from ProcessState
		stdout.flush()
		stderr.flush()
		close(p.exited)
	}()
	tb.Cleanup(func() {
		p.Kill(tb)
		if tb.Failed() {
			tb.Logf("end of the output of %s (pid %d, exit code %d):\n%s", p.name, p.Pid(), p.exitCode(), p.output.tail(cmp.Or(spec.LogLines, logTail)))
		}
	})
	return p
}

// Run runs a program to its end, and fails the test if that does not come in
// time.
func Run(tb testing.TB, spec Spec, within time.Duration) (exitCode int, stdout, stderr string) {
	tb.Helper()
	p := Start(tb, spec)
	p.Wait(tb, within)
	return p.exitCode(), p.Text(Stdout), p.Text(Stderr)
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited reports whether the program has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// WriteLine writes one line to the program's standard input.
func (p *Process) WriteLine(tb testing.TB, line string) {
	tb.Helper()
	if _, err := io.WriteString(p.input, line+"\n"); err != nil {
		tb.Fatalf("write to %s: %v", p.name, err)
	}
}

// Signal sends a signal; a program that has ended is not an error.
func (p *Process) Signal(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		tb.Errorf("send %v to %s (pid %d): %v", signal, p.name, p.Pid(), err)
	}
}

// Wait returns the exit code (-1 after a signal), and fails the test if the
// program does not end in time.
func (p *Process) Wait(tb testing.TB, within time.Duration) int {
	tb.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		tb.Fatalf("%s (pid %d) did not end within %v", p.name, p.Pid(), within)
	}
	return p.exitCode()
}

// Terminate sends SIGTERM and returns the exit code.
func (p *Process) Terminate(tb testing.TB, within time.Duration) int {
	tb.Helper()
	p.Signal(tb, syscall.SIGTERM)
	return p.Wait(tb, within)
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill(tb testing.TB) {
	tb.Helper()
	p.Signal(tb, syscall.SIGKILL)
	p.Wait(tb, killGrace)
}

func (p *Process) exitCode() int {
	if !p.Exited() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}
