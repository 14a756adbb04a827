//go:build interop

package interop_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

const (
	// appStart covers the start of the library and the subscription.
	appStart = 15 * time.Second
	// appAnswer is longer than the application's own deadlines for opening a
	// session, publishing and waiting for an echo, 5 s each.
	appAnswer = 20 * time.Second
)

// app is a running real application.
type app struct {
	*process.Process
	name     string
	id       string // the random instance id, as the application prints it
	commands int    // given so far
}

// event is one line of JSON that an application prints.
type event struct {
	Event   string
	Name    string
	ID      string
	From    string
	Text    string
	To      string
	Command string
	Error   string
	At      int64 // of a message: when it arrived, in Unix milliseconds
	Sent    int   // in the answer to hush
}

// startApp runs an application on a node and returns when it has subscribed.
func startApp(t *testing.T, on *node, name string, options ...string) *app {
	t.Helper()
	path, args := nodeSpec{release: nextRelease()}.program("slim-app.mjs", "slim_app.py")
	a := &app{name: name, Process: process.Start(t, process.Spec{
		Name: "application " + name,
		Path: path,
		Args: slices.Concat(args, []string{"--endpoint", "http://" + on.endpoint(), "--name", name}, options),
	})}
	a.id = a.waitEvent(t, "ready event", appStart, func(e event) bool { return e.Event == "ready" }).ID
	return a
}

func (a *app) waitEvent(t *testing.T, what string, within time.Duration, match func(event) bool) event {
	t.Helper()
	var found event
	a.WaitFor(t, what, within, func(line process.Line) bool {
		e, ok := parseEvent(line)
		found = e
		return ok && match(e)
	})
	return found
}

func parseEvent(line process.Line) (event, bool) {
	var e event
	err := json.Unmarshal([]byte(line.Text), &e)
	return e, err == nil && line.Stream == process.Stdout
}

// do gives the application a command and waits until it is done.
func (a *app) do(t *testing.T, command string) {
	t.Helper()
	if err := a.try(t, command, appAnswer); err != nil {
		t.Fatal(err)
	}
}

// try gives the application a command, which may fail.
func (a *app) try(t *testing.T, command string, within time.Duration) error {
	t.Helper()
	_, err := a.ask(t, command, within)
	return err
}

// ask is try with the answer.
func (a *app) ask(t *testing.T, command string, within time.Duration) (event, error) {
	t.Helper()
	a.commands++
	id := strconv.Itoa(a.commands)
	a.WriteLine(t, id+" "+command)
	answer := a.waitEvent(t, "answer to "+command, within, func(e event) bool { return e.Command == id })
	if answer.Event != "done" {
		return answer, fmt.Errorf("application %s: %s: %s", a.name, command, answer.Error)
	}
	return answer, nil
}

// send opens a session to the name, and returns when the message was echoed.
func (a *app) send(t *testing.T, to, text string) {
	t.Helper()
	a.do(t, "send "+to+" "+text)
}

// received counts the messages with this text that came in.
func (a *app) received(text string) int {
	count := 0
	for _, line := range a.Lines() {
		if e, ok := parseEvent(line); ok && e.Event == "message" && e.Text == text {
			count++
		}
	}
	return count
}

// wantOnce waits for a message with this text, and checks that it came in once. An
// echo of it may be known before it.
func (a *app) wantOnce(t *testing.T, text string) {
	t.Helper()
	a.waitEvent(t, "message "+text, appAnswer, func(e event) bool { return e.Event == "message" && e.Text == text })
	if got := a.received(text); got != 1 {
		t.Errorf("%s %s received %q %d times, want once", a.name, a.id, text, got)
	}
}

// leave ends the application as its user would.
func (a *app) leave(t *testing.T) {
	t.Helper()
	a.Terminate(t, appStart)
}
