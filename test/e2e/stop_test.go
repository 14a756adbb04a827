//go:build e2e

package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/slim-cp/slim-cp/test/process"
)

// Those who watch the health of a replica never end their calls. It stops all the
// same, without an error, long before it would be killed, and has what it was told.
func TestAReplicaThatIsWatchedStops(t *testing.T) {
	const soon = 12 * time.Second // it was told to take one, and calls under way get three
	r := process.StartReplica(t, binaries, fmt.Sprintf("database: {type: raft, path: %q}\n", t.TempDir()))
	r.MustOperate(t, "segment", "add", "kept")
	for _, endpoint := range []string{r.Northbound, r.Southbound} {
		watchHealth(t, endpoint)
	}
	if code := r.Terminate(t, soon); code != 0 {
		t.Errorf("exit code %d after SIGTERM: %s", code, lastLine(r.Process))
	}
	r.Start(t)
	if list := r.MustOperate(t, "segment", "list"); !strings.Contains(list, "kept") {
		t.Errorf("segments after the restart:\n%s", list)
	}
}

// watchHealth watches the health on a port until the test ends.
func watchHealth(t *testing.T, endpoint string) {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	watch, err := grpc_health_v1.NewHealthClient(connection).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal("watch of the health:", err)
	}
}
