//go:build e2e

package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// A replica whose log is not read any more, or whose reader is gone, works as before
// and stops when it is told to.
func TestAReplicaNeedsNoReaderOfItsLog(t *testing.T) {
	for name, test := range map[string]struct {
		mode   int
		loseIt func(*testing.T, *os.File)
	}{
		"stands still": {mode: os.O_RDWR, loseIt: fill},
		"goes away": {mode: os.O_RDONLY, loseIt: func(t *testing.T, pipe *os.File) {
			if err := pipe.Close(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			pipe, err := os.OpenFile(path, test.mode|syscall.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = pipe.Close() }() // it may be closed
			r := startLoggingTo(t, path)
			test.loseIt(t, pipe)
			for i := range 20 {
				// Each is logged.
				succeed(t, "slim-cp", "segment", "add", fmt.Sprintf("segment-%d", i), "--server", r.Northbound)
			}
			if code := r.Terminate(t, process.ReplicaStop); code != 0 {
				t.Errorf("exit code %d after SIGTERM", code)
			}
		})
	}
}

// fill writes to a pipe until there is no room in it.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	connection, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	err = connection.Control(func(fd uintptr) {
		for full == nil {
			_, full = syscall.Write(int(fd), []byte{'\n'})
		}
	})
	if err != nil || !errors.Is(full, syscall.EAGAIN) {
		t.Fatal(err, full)
	}
}

// startLoggingTo starts a lone replica whose standard error is this file.
func startLoggingTo(t *testing.T, path string) *process.Replica {
	t.Helper()
	r := &process.Replica{Northbound: process.Loopback(process.FreePort(t)), Southbound: process.Loopback(process.FreePort(t))}
	yaml := process.Listeners{Northbound: []string{r.Northbound}, Southbound: []string{r.Southbound}}.YAML()
	r.Process = process.Start(t, process.Spec{
		Name: "slim-cp", Path: "/bin/sh",
		Args: []string{"-c", `exec "$0" serve -c "$1" 2>"$2"`, binaries.Path("slim-cp"), writeConfig(t, yaml), path},
	})
	r.WaitStdout(t, process.StartedLine, commandTime)
	return r
}
