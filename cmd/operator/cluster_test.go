package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func (s *stub) ClusterStatus(ctx context.Context, request *slimcppb.ClusterStatusRequest) (*slimcppb.ClusterStatusResponse, error) {
	err := s.note(ctx, "ClusterStatus", request)
	switch {
	case s.empty:
		return &slimcppb.ClusterStatusResponse{ReplicaId: "cp-1-0a1b2c3d"}, err
	case s.alone:
		return aloneStatus(), err
	}
	return &slimcppb.ClusterStatusResponse{
		ClusterId: "858d1e69-71c3-4c11-80a9-cba698d5647f", ReplicaId: "cp-2-00000002", LeaderId: "cp-1-0a1b2c3d",
		Term: 3, Generation: 2, Index: 120, Schema: 1, FailureTolerance: 1, LeaderWorks: true,
		Notes: []string{"the active fleet configuration is not that of this replica's file: topology"},
		Replicas: []*slimcppb.ReplicaStatus{
			{
				ReplicaId: "cp-1-0a1b2c3d", Name: "cp-1", Address: "cp-1.example:50053", Role: slimcppb.ReplicaRole_REPLICA_ROLE_LEADER,
				Healthy: true, AppliedIndex: 120, Version: "v1", Schema: 1, Sessions: 12,
			},
			{
				ReplicaId: "cp-2-00000002", Name: "cp-2", Address: "cp-2.example:50053", Role: slimcppb.ReplicaRole_REPLICA_ROLE_VOTER,
				Healthy: true, AppliedIndex: 119, Lag: 1, LastContactMs: proto.Int64(40), Version: "v1", Schema: 1,
			},
			{
				ReplicaId: "cp-3-00000003", Name: "cp-3", Address: "cp-3.example:50053", Role: slimcppb.ReplicaRole_REPLICA_ROLE_VOTER,
				Problem: "cannot be reached: no connection to cp-3.example:50053",
			},
			{
				ReplicaId: "cp-4-00000004", Name: "cp-4", Address: "cp-4.example:50053", Role: slimcppb.ReplicaRole_REPLICA_ROLE_HELD_BACK,
				Healthy: true, AppliedIndex: 120, LastContactMs: proto.Int64(1500), Version: "v2", Schema: 2,
			},
		},
	}, err
}

func (s *stub) Init(ctx context.Context, request *slimcppb.InitRequest) (*slimcppb.InitResponse, error) {
	return &slimcppb.InitResponse{ClusterId: "c1", ReplicaId: "cp-1-0a1b2c3d"}, s.note(ctx, "Init", request)
}

func (s *stub) Join(request *slimcppb.JoinClusterRequest, stream grpc.ServerStreamingServer[slimcppb.JoinProgress]) error {
	if err := s.note(stream.Context(), "Join", request); err != nil {
		return err
	}
	for _, progress := range []*slimcppb.JoinProgress{
		{Line: "taken in, waiting for the log"},
		{Line: "votes", Role: slimcppb.ReplicaRole_REPLICA_ROLE_VOTER, Done: true},
	} {
		progress.ReplicaId, progress.ClusterId = "cp-2-00000002", "c1"
		if err := stream.Send(progress); err != nil {
			return err
		}
		if s.novote {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
	}
	return nil
}

func (s *stub) Leave(ctx context.Context, request *slimcppb.LeaveRequest) (*slimcppb.LeaveResponse, error) {
	return &slimcppb.LeaveResponse{ReplicaId: "cp-1-0a1b2c3d"}, s.note(ctx, "Leave", request)
}

func (s *stub) RemoveReplica(ctx context.Context, request *slimcppb.RemoveReplicaRequest) (*slimcppb.RemoveReplicaResponse, error) {
	return &slimcppb.RemoveReplicaResponse{}, s.note(ctx, "RemoveReplica", request)
}

func (s *stub) PromoteReplica(ctx context.Context, request *slimcppb.PromoteReplicaRequest) (*slimcppb.PromoteReplicaResponse, error) {
	return &slimcppb.PromoteReplicaResponse{}, s.note(ctx, "PromoteReplica", request)
}

func (s *stub) DemoteReplica(ctx context.Context, request *slimcppb.DemoteReplicaRequest) (*slimcppb.DemoteReplicaResponse, error) {
	return &slimcppb.DemoteReplicaResponse{}, s.note(ctx, "DemoteReplica", request)
}

func (s *stub) TransferLeadership(ctx context.Context, request *slimcppb.TransferLeadershipRequest) (*slimcppb.TransferLeadershipResponse, error) {
	return &slimcppb.TransferLeadershipResponse{LeaderId: "cp-2-00000002"}, s.note(ctx, "TransferLeadership", request)
}

func (s *stub) FinalizeUpgrade(ctx context.Context, request *slimcppb.FinalizeUpgradeRequest) (*slimcppb.FinalizeUpgradeResponse, error) {
	return &slimcppb.FinalizeUpgradeResponse{Schema: 2}, s.note(ctx, "FinalizeUpgrade", request)
}

// savedState is a snapshot of an empty state.
func savedState(t *testing.T) []byte {
	t.Helper()
	store := fsm.New()
	command := &slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "c1"}}}
	store.Apply(5, 2, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})
	var content strings.Builder
	if err := store.Capture().Write(&content); err != nil {
		t.Fatal(err)
	}
	return []byte(content.String())
}

func (s *stub) SaveSnapshot(request *slimcppb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]) error {
	if err := s.note(stream.Context(), "SaveSnapshot", request); err != nil {
		return err
	}
	for part := s.snapshot; len(part) > 0; {
		n := min(len(part), 64)
		if err := stream.Send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Data{Data: part[:n]}}); err != nil {
			return err
		}
		part = part[n:]
	}
	if s.cutOff {
		return nil
	}
	return stream.Send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Info{Info: &slimcppb.SnapshotInfo{ClusterId: "c1"}}})
}

func (s *stub) RestoreSnapshot(stream grpc.ClientStreamingServer[slimcppb.RestoreSnapshotRequest, slimcppb.RestoreSnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.note(stream.Context(), "RestoreSnapshot", first); err != nil {
		return err
	}
	var content []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content = append(content, part.GetData()...)
	}
	s.mu.Lock()
	s.snapshot = content
	s.mu.Unlock()
	return stream.SendAndClose(&slimcppb.RestoreSnapshotResponse{Info: &slimcppb.SnapshotInfo{ClusterId: "c1", Generation: 2, Index: 5}})
}

func TestClusterStatusOfAStranger(t *testing.T) {
	isolate(t)
	got := run(t, Options{}, "cluster", "status", "--server", serve(t, &stub{empty: true}))
	if got.code != ExitDone || !strings.HasPrefix(got.stdout, "Replica cp-1-0a1b2c3d is not a member of a cluster: ") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// aloneStatus is the answer of the last of three voters.
func aloneStatus() *slimcppb.ClusterStatusResponse {
	return &slimcppb.ClusterStatusResponse{
		ClusterId: "c1", ReplicaId: "cp-2-00000002", LeaderId: "cp-1-0a1b2c3d", Term: 3, Index: 119, Schema: 1,
		Notes: []string{"another note"},
		Replicas: []*slimcppb.ReplicaStatus{
			{ReplicaId: "cp-1-0a1b2c3d", Name: "cp-1", Role: slimcppb.ReplicaRole_REPLICA_ROLE_LEADER, Problem: "cannot be reached"},
			{
				ReplicaId: "cp-2-00000002", Name: "cp-2", Role: slimcppb.ReplicaRole_REPLICA_ROLE_VOTER, AppliedIndex: 119,
				Problem: "it last heard from a leader 5s ago", LastContactMs: proto.Int64(5000), Version: "v1", Schema: 1,
			},
			{ReplicaId: "cp-3-00000003", Name: "cp-3", Role: slimcppb.ReplicaRole_REPLICA_ROLE_VOTER, Problem: "cannot be reached"},
		},
	}
}

// TestQuorumLost: it is said, and nobody who does not answer leads or has figures.
func TestQuorumLost(t *testing.T) {
	isolate(t)
	address := serve(t, &stub{alone: true})
	got := run(t, Options{}, "cluster", "status", "--server", address)
	if got.code != ExitDone || got.stderr != "" {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	compareGolden(t, filepath.Join("testdata", "slim-cp", "cluster-status-alone.txt"), got.stdout)
	got = run(t, Options{}, "cluster", "status", "-o", "json", "--server", address)
	if !strings.Contains(got.stdout, "quorum lost") || strings.Contains(got.stdout, "REPLICA_ROLE_LEADER") {
		t.Errorf("the document is\n%s", got.stdout)
	}
}

// TestUnfinishedJoin: a replica that was taken in is not a failure, nor done.
func TestUnfinishedJoin(t *testing.T) {
	for name, c := range map[string]struct {
		server *stub
		code   int
		want   string
	}{
		"taken in":  {&stub{novote: true}, ExitUnknownOutcome, "cp-2-00000002 joined, does not vote yet; repeat the command to wait for it"},
		"no answer": {&stub{hang: true}, ExitUnknownOutcome, "no answer within 1s (the change may or may not have been made"},
		"refused":   {&stub{fail: status.Error(codes.FailedPrecondition, "no")}, ExitFailed, "FAILED_PRECONDITION: no\n"},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			got := run(t, Options{}, "cluster", "join", "cp-1.example:50053", "--timeout", "1s", "--server", serve(t, c.server))
			if got.code != c.code {
				t.Errorf("exit code %d, want %d", got.code, c.code)
			}
			checkErrorLine(t, got.stderr, c.want)
		})
	}
}

// What fails on this side is not said of the control plane.
func TestSnapshotFileTrouble(t *testing.T) {
	home := isolate(t)
	address := serve(t, &stub{snapshot: savedState(t)})
	file := filepath.Join(home, "none", "state")
	got := run(t, Options{}, "snapshot", "save", file, "--server", address)
	if got.code != ExitFailed || strings.Contains(got.stderr, address) {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	checkErrorLine(t, got.stderr, "Error: save snapshot: open "+file+": no such file or directory\n")
}

func TestSnapshotCommands(t *testing.T) {
	home := isolate(t)
	server := &stub{snapshot: savedState(t)}
	address, file := serve(t, server), filepath.Join(home, "state")
	want := "cluster: c1\n  generation: 1, index: 5, term: 2, schema: 1\n"
	for _, line := range []string{"save " + file + " --server " + address, "inspect " + file} {
		got := run(t, Options{}, append([]string{"snapshot"}, strings.Fields(line)...)...)
		if got.code != ExitDone || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: exit code %d:\n%s%s", line, got.code, got.stdout, got.stderr)
		}
	}
	saved := string(server.snapshot)
	for _, force := range []bool{false, true} {
		got := run(t, Options{}, "snapshot", "restore", file, "--server", address, fmt.Sprintf("--force=%v", force))
		if got.code != ExitDone || !strings.Contains(got.stdout, "generation: 2") || string(server.snapshot) != saved {
			t.Errorf("restore: exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
		}
		if first, ok := server.lastRequest().(*slimcppb.RestoreSnapshotRequest); !ok || first.GetOptions().GetForce() != force {
			t.Errorf("restore with force %v asked %v", force, server.lastRequest())
		}
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A pipe gets the state, and stays a pipe; "-" is standard output; a link that somebody
// else made is replaced, and what it leads to stays as it is.
func TestSnapshotGoesWhereItIsAskedTo(t *testing.T) {
	home := isolate(t)
	server := &stub{snapshot: savedState(t)}
	address := serve(t, server)
	got := run(t, Options{}, "snapshot", "save", "-", "--server", address)
	if got.code != ExitDone || got.stdout != string(server.snapshot) {
		t.Errorf("to standard output: exit code %d, %d bytes: %s", got.code, len(got.stdout), got.stderr)
	}

	pipe := filepath.Join(home, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		content, _ := os.ReadFile(pipe)
		read <- string(content)
	}()
	got = run(t, Options{}, "snapshot", "save", pipe, "--server", address)
	if content := <-read; got.code != ExitDone || content != string(server.snapshot) {
		t.Errorf("to a pipe: exit code %d, %d bytes: %s", got.code, len(content), got.stderr)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe became %v, %v", info.Mode(), err)
	}

	victim, link := filepath.Join(home, "victim"), filepath.Join(home, "link")
	if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o600), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	got = run(t, Options{}, "snapshot", "save", link, "--server", address)
	content, err := os.ReadFile(victim)
	if got.code != ExitDone || err != nil || string(content) != "mine" {
		t.Errorf("over a link: exit code %d, it leads to %q, %v: %s", got.code, content, err, got.stderr)
	}

	server.snapshot = server.snapshot[:len(server.snapshot)/2]
	if got := run(t, Options{}, "snapshot", "save", "-", "--server", address); got.code == ExitDone {
		t.Error("half a state went to standard output, and the exit code is 0")
	}
}

// A file is complete or what it was before.
func TestBadSnapshotIsNotKept(t *testing.T) {
	good := savedState(t)
	damaged := append([]byte(nil), good...)
	damaged[len(damaged)/2] ^= 1
	for name, server := range map[string]*stub{
		"damaged": {snapshot: damaged}, "half": {snapshot: good[:len(good)/2]},
		"cut off": {snapshot: good, cutOff: true}, "none": {fail: status.Error(codes.Unavailable, "no leader")},
	} {
		t.Run(name, func(t *testing.T) {
			home := isolate(t)
			file := filepath.Join(home, "state")
			if err := os.WriteFile(file, good, 0o600); err != nil {
				t.Fatal(err)
			}
			got := run(t, Options{}, "snapshot", "save", file, "--server", serve(t, server))
			if got.code != ExitFailed || strings.Count(got.stderr, "\n") != 1 || strings.Contains(got.stderr, "rpc error") {
				t.Errorf("exit code %d: %s", got.code, got.stderr)
			}
			content, err := os.ReadFile(file)
			entries, _ := os.ReadDir(home)
			if err != nil || string(content) != string(good) || len(entries) != 1 {
				t.Errorf("the file from before is gone, or something is left: %v, %v", err, entries)
			}
		})
	}
}

// A file that is whole and cannot be a state is told apart from a damaged one, with all
// that is wrong.
func TestInspectTellsWhatIsWrong(t *testing.T) {
	file := filepath.Join(isolate(t), "state")
	store := fsm.New()
	command := &slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "c1"}}}
	store.Apply(1<<63, 1<<63, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})
	var content strings.Builder
	if err := store.Capture().Write(&content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, Options{}, "snapshot", "inspect", file)
	if got.code != ExitFailed || !strings.Contains(got.stderr, "the index is 9223372036854775808") ||
		!strings.Contains(got.stderr, "the term is 9223372036854775808") || !strings.Contains(got.stderr, "2 problems") {
		t.Errorf("exit code %d: %s%s", got.code, got.stdout, got.stderr)
	}
}

// A damaged file is refused before anybody is asked.
func TestDamagedSnapshotIsNotSent(t *testing.T) {
	home := isolate(t)
	file := filepath.Join(home, "state")
	if err := os.WriteFile(file, []byte("no snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := &stub{}
	got := run(t, Options{}, "snapshot", "restore", file, "--server", serve(t, server))
	if got.code != ExitFailed || server.calls() != 0 || !strings.Contains(got.stderr, file) {
		t.Errorf("exit code %d after %d calls: %s", got.code, server.calls(), got.stderr)
	}
}

// TestChangeIsSentAgain: under the same id, once, and only when the replica was not
// available.
func TestChangeIsSentAgain(t *testing.T) {
	unavailable, refused := status.Error(codes.Unavailable, "no leader"), status.Error(codes.NotFound, "no such thing")
	for name, c := range map[string]struct {
		fails []error
		calls int
		code  int
	}{
		"at once":         {nil, 1, ExitDone},
		"refused":         {[]error{refused}, 1, ExitFailed},
		"at the second":   {[]error{unavailable, nil}, 2, ExitDone},
		"not at all":      {[]error{unavailable, unavailable, nil}, 2, ExitFailed},
		"refused in time": {[]error{unavailable, refused}, 2, ExitFailed},
		"unknown then":    {[]error{unavailable, status.Error(codes.Aborted, "outcome unknown")}, 2, ExitUnknownOutcome},
		"unknown at once": {[]error{status.Error(codes.Aborted, "outcome unknown")}, 1, ExitUnknownOutcome},
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			var ids []string
			server := &stub{}
			note := func(_ context.Context, _ string, incoming metadata.MD) error {
				ids = append(ids, strings.Join(incoming.Get("slimcp-request-id"), ","))
				if len(ids) > len(c.fails) {
					return nil
				}
				return c.fails[len(ids)-1]
			}
			address := serve(t, server, grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				incoming, _ := metadata.FromIncomingContext(ctx)
				if err := note(ctx, info.FullMethod, incoming); err != nil {
					return nil, err
				}
				return handler(ctx, request)
			}))
			got := run(t, Options{}, "segment", "add", "x", "--server", address)
			if got.code != c.code || len(ids) != c.calls {
				t.Errorf("exit code %d after %d calls, want %d after %d: %s", got.code, len(ids), c.code, c.calls, got.stderr)
			}
			for _, id := range ids {
				if id == "" || id != ids[0] {
					t.Errorf("request ids %q", ids)
				}
			}
		})
	}
}

// TestStaleList: the age of the answer does not mix with it.
func TestStaleList(t *testing.T) {
	isolate(t)
	address := serve(t, &stub{}, grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if incoming, _ := metadata.FromIncomingContext(stream.Context()); strings.Join(incoming.Get("slimcp-consistency"), ",") == "stale" {
			if err := stream.SetHeader(metadata.Pairs("slimcp-index", "42", "slimcp-age-ms", "1500")); err != nil {
				return err
			}
		}
		return handler(service, stream)
	}))
	fresh := run(t, Options{}, "node", "list", "--server", address)
	old := run(t, Options{}, "node", "list", "--stale", "--server", address)
	if fresh.stderr != "" || old.stderr != "As of index 42, at most 1.5s old\n" || old.stdout != fresh.stdout {
		t.Errorf("stderr %q and %q, stdout\n%s\n%s", fresh.stderr, old.stderr, fresh.stdout, old.stdout)
	}
}
