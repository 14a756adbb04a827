//go:build e2e

package e2e_test

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/process"
	"github.com/slim-cp/slim-cp/test/segments"
)

// Leaders are killed and stopped while operators call all replicas: no answer
// contradicts a single copy of the state.
func TestOperatorsSeeOneCopy(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	waitTolerance(t, replicas[0], 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers []*segments.Caller
	var calling sync.WaitGroup
	var phase atomic.Int64
	began := time.Now()
	for i := range 6 {
		conn, err := grpc.NewClient(replicas[i%3].Northbound, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		c := &segments.Caller{Client: controlplanepb.NewControlPlaneServiceClient(conn), ID: i}
		callers = append(callers, c)
		calling.Go(func() { c.Run(ctx, began, &phase) })
	}
	for round := range 4 {
		phase.Add(1)
		leader, others := leaderOf(t, replicas)
		if round%2 == 0 {
			leader.Kill(t)
			waitOtherLeader(t, others)
			leader.Start(t)
		} else {
			leader.Signal(t, syscall.SIGSTOP)
			waitOtherLeader(t, others)
			leader.Signal(t, syscall.SIGCONT)
		}
		waitTolerance(t, others[0], 1)
	}
	cancel()
	calling.Wait()
	var history []porcupine.Operation
	for _, c := range callers {
		history = append(history, c.History...)
	}
	unknown := segments.Unknown(history)
	t.Logf("%d calls, the outcome of %d is unknown", len(history), unknown)
	if result := porcupine.CheckOperationsTimeout(segments.Model(), history, time.Minute); result != porcupine.Ok {
		t.Errorf("the answers are %s", result)
	}
	if answered := len(history) - unknown; answered < 200 {
		t.Errorf("only %d answers", answered)
	}
}

// waitOtherLeader waits until one of these replicas leads.
func waitOtherLeader(t *testing.T, replicas []*process.Replica) {
	t.Helper()
	eventually(t, "another leader", func() bool {
		found := roles(replicas[0].Status(t))
		return found[replicas[0].Member.Name] == leads || found[replicas[1].Member.Name] == leads
	})
}
