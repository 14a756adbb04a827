package operator

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// clusterServer is a control plane that answers cluster status as the test says.
type clusterServer struct {
	stub
	asked  atomic.Int32
	answer func(asked int32) (*slimcppb.ClusterStatusResponse, error)
}

func (s *clusterServer) ClusterStatus(context.Context, *slimcppb.ClusterStatusRequest) (*slimcppb.ClusterStatusResponse, error) {
	return s.answer(s.asked.Add(1))
}

// threeReplicas is a cluster that is as well as it can be, changed.
func threeReplicas(change func(*slimcppb.ClusterStatusResponse)) *slimcppb.ClusterStatusResponse {
	answer := &slimcppb.ClusterStatusResponse{ClusterId: "c", ReplicaId: "cp-1-1", LeaderId: "cp-1-1", LeaderWorks: true}
	for i, name := range []string{"cp-1", "cp-2", "cp-3"} {
		role, ready := slimcppb.ReplicaRole_REPLICA_ROLE_VOTER, true
		if i == 0 {
			role = slimcppb.ReplicaRole_REPLICA_ROLE_LEADER
		}
		answer.Replicas = append(answer.Replicas, &slimcppb.ReplicaStatus{
			ReplicaId: name + "-1", Name: name, Role: role, Healthy: true, Ready: &ready, Schema: 2,
		})
	}
	change(answer)
	return answer
}

// A script that restarts one replica after the other has to know when the next one's
// turn is.
func TestClusterStatusSaysWhenTheNextReplicaMayGo(t *testing.T) {
	isolate(t)
	no := false
	for name, c := range map[string]struct {
		change func(*slimcppb.ClusterStatusResponse)
		code   int
		says   string
	}{
		"all is well":      {func(*slimcppb.ClusterStatusResponse) {}, 0, ""},
		"one is not ready": {func(a *slimcppb.ClusterStatusResponse) { a.Replicas[2].Ready = &no }, ExitNotConverged, "cp-3-1 is not ready"},
		"one is not healthy": {func(a *slimcppb.ClusterStatusResponse) {
			a.Replicas[1].Healthy, a.Replicas[1].Problem = false, "its disk is full"
		}, ExitNotConverged, "its disk is full"},
		"nobody leads": {func(a *slimcppb.ClusterStatusResponse) { a.LeaderId = "" }, ExitNotConverged, "nobody leads"},
		"no quorum": {func(a *slimcppb.ClusterStatusResponse) {
			a.LeaderId, a.QuorumLost = "", true
		}, ExitNotConverged, "the quorum is lost"},
		"an older version does not say": {func(a *slimcppb.ClusterStatusResponse) { a.Replicas[2].Ready = nil }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := &clusterServer{answer: func(int32) (*slimcppb.ClusterStatusResponse, error) { return threeReplicas(c.change), nil }}
			address := serve(t, server)
			if got := run(t, Options{}, "cluster", "status", "--server", address); got.code != 0 {
				t.Errorf("without --exit-code: %d %s", got.code, got.stderr)
			}
			got := run(t, Options{}, "cluster", "status", "--exit-code", "--server", address)
			if got.code != c.code || !strings.Contains(got.stderr, c.says) || !strings.Contains(got.stdout, "READY") {
				t.Errorf("exit code %d, %s%s", got.code, got.stdout, got.stderr)
			}
		})
	}
}

func TestClusterStatusWaits(t *testing.T) {
	isolate(t)
	no := false
	server := &clusterServer{answer: func(asked int32) (*slimcppb.ClusterStatusResponse, error) {
		switch asked {
		case 1:
			return nil, status.Error(codes.Unavailable, "it is just starting")
		case 2:
			return threeReplicas(func(a *slimcppb.ClusterStatusResponse) { a.Replicas[0].Ready = &no }), nil
		}
		return threeReplicas(func(*slimcppb.ClusterStatusResponse) {}), nil
	}}
	got := run(t, Options{}, "cluster", "status", "--wait", "--server", serve(t, server))
	if got.code != 0 || server.asked.Load() != 3 {
		t.Errorf("exit code %d after %d looks: %s", got.code, server.asked.Load(), got.stderr)
	}
	never := &clusterServer{answer: func(int32) (*slimcppb.ClusterStatusResponse, error) {
		return threeReplicas(func(a *slimcppb.ClusterStatusResponse) { a.Replicas[0].Ready = &no }), nil
	}}
	got = run(t, Options{}, "cluster", "status", "--wait", "--timeout", "1s", "--server", serve(t, never))
	if got.code != ExitNotConverged || never.asked.Load() < 2 || !strings.Contains(got.stderr, "cp-1-1 is not ready") {
		t.Errorf("exit code %d after %d looks: %s", got.code, never.asked.Load(), got.stderr)
	}
}
