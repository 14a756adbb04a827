//go:build e2e

package e2e_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/process"
)

const (
	// matrixWait is what "slim-node ctl matrix" may wait for delivery to be
	// complete; commandTime is longer, and bounds each command.
	matrixWait  = 20 * time.Second
	commandTime = 30 * time.Second
)

// fleet is a process of simulated nodes.
type fleet struct {
	*process.Process
	socket string
}

func startFleet(t *testing.T, r *process.Replica, groups, nodesPerGroup, names int) *fleet {
	t.Helper()
	f := &fleet{socket: filepath.Join(t.TempDir(), "fleet.sock")}
	f.Process = process.Start(t, process.Spec{
		Name: "fleet",
		Path: binaries.Path("slim-node"),
		Args: []string{
			"fleet", "--server", r.Southbound, "--control", f.socket,
			"--groups", strconv.Itoa(groups), "--nodes-per-group", strconv.Itoa(nodesPerGroup), "--names", strconv.Itoa(names),
		},
	})
	f.WaitStdout(t, "fleet started", commandTime)
	return f
}

// control runs a command against the fleet.
func (f *fleet) control(t *testing.T, args ...string) {
	t.Helper()
	succeed(t, "slim-node", append([]string{"ctl", "--control", f.socket}, args...)...)
}

// wantDelivery waits until a message to every name arrives exactly once from
// every group, by what the nodes themselves hold.
func (f *fleet) wantDelivery(t *testing.T) {
	t.Helper()
	f.control(t, "matrix", "--wait", matrixWait.String())
}

// succeed runs one of the binaries to its end, which must be a success.
func succeed(t *testing.T, binary string, args ...string) string {
	t.Helper()
	code, stdout, stderr := run(t, binary, args...)
	if code != 0 {
		t.Fatalf("%s %v: exit code %d\n%s%s", binary, args, code, stdout, stderr)
	}
	return stdout
}

func run(t *testing.T, binary string, args ...string) (exitCode int, stdout, stderr string) {
	t.Helper()
	return process.Run(t, process.Spec{Name: fmt.Sprintf("%s %v", binary, args), Path: binaries.Path(binary), Args: args, Dir: t.TempDir()}, commandTime)
}
