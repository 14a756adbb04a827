package process_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

const soon = 10 * time.Second

func shell(script string) process.Spec {
	return process.Spec{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}}
}

func TestRunReturnsBothStreamsAndTheCode(t *testing.T) {
	code, stdout, stderr := process.Run(t, shell("echo out; echo err >&2; printf end; exit 3"), soon)
	if code != 3 || stdout != "out\nend\n" || stderr != "err\n" {
		t.Errorf("got code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestWaitForFindsEarlierAndLaterLines(t *testing.T) {
	p := process.Start(t, shell("echo first; read line; echo got $line; read line"))
	p.WaitStdout(t, "first", soon)
	p.WriteLine(t, "a word")
	p.WaitStdout(t, "got a word", soon)
	p.WaitStdout(t, "first", soon)
	if p.Exited() {
		t.Error("the program waits for input, and is said to have ended")
	}
}

func TestTerminateReturnsTheProgramsCode(t *testing.T) {
	p := process.Start(t, shell("trap 'exit 7' TERM; echo ready; while :; do read line; done"))
	p.WaitStdout(t, "ready", soon)
	if code := p.Terminate(t, soon); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

func TestFreePortsAreDistinctAndNotEphemeral(t *testing.T) {
	var ports []int
	for range 100 {
		port := process.FreePort(t)
		if port >= 32768 || slices.Contains(ports, port) {
			t.Errorf("port %d, after %v", port, ports)
		}
		ports = append(ports, port)
	}
}

func TestRootHoldsTheModule(t *testing.T) {
	root, err := process.Root()
	if err != nil {
		t.Fatal(err)
	}
	code, module, _ := process.Run(t, process.Spec{Name: "go", Path: "go", Args: []string{"list", "-m"}, Dir: root}, time.Minute)
	if code != 0 || !strings.HasSuffix(strings.TrimSpace(module), "/slim-cp") {
		t.Errorf("go list -m in %s says %q", root, module)
	}
}
