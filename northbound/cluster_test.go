package northbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// member is a replica of a cluster in which cp-1-00000001 leads.
type member struct {
	id     string
	leads  bool
	leader *grpc.ClientConn // nil: no leader can be reached
	err    error            // of every change
	during func()           // in the middle of every change
	status []cluster.Status // what the first looks show; the last one stays

	mu      sync.Mutex
	changes []string
	callers []string
	content []byte
}

const leaderID = "cp-1-00000001"

func (m *member) ReplicaID() string          { return m.id }
func (m *member) ClusterID() string          { return "cluster" }
func (m *member) Leadership() (bool, uint64) { return m.leads, term }

func (m *member) LeaderConn(bool) (*grpc.ClientConn, string, error) {
	if m.leader == nil {
		return nil, "", cluster.ErrNoLeader
	}
	return m.leader, leaderID, nil
}

func (m *member) Members() []cluster.Member {
	return []cluster.Member{{ReplicaID: leaderID, Voter: true}, {ReplicaID: "cp-2-00000002", Voter: true}}
}

func (m *member) Status(context.Context) cluster.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.status[0]
	if len(m.status) > 1 {
		m.status = m.status[1:]
	}
	return now
}

// change notes a change and on whose behalf it was made.
func (m *member) change(ctx context.Context, format string, args ...any) error {
	m.mu.Lock()
	m.changes = append(m.changes, fmt.Sprintf(format, args...))
	caller := callerOf(ctx)
	m.callers = append(m.callers, caller.GetIdentity()+"@"+caller.GetAddress())
	m.mu.Unlock()
	if m.during != nil {
		m.during()
	}
	return m.err
}

func (m *member) Init(ctx context.Context) error              { return m.change(ctx, "init") }
func (m *member) Join(ctx context.Context, a string) error    { return m.change(ctx, "join %s", a) }
func (m *member) Leave(ctx context.Context) error             { return m.change(ctx, "leave") }
func (m *member) Remove(ctx context.Context, r string) error  { return m.change(ctx, "remove %s", r) }
func (m *member) Promote(ctx context.Context, r string) error { return m.change(ctx, "promote %s", r) }
func (m *member) Demote(ctx context.Context, r string) error  { return m.change(ctx, "demote %s", r) }
func (m *member) FinalizeUpgrade(ctx context.Context) (uint32, error) {
	return 7, m.change(ctx, "finalize")
}

func (m *member) TransferLeadership(ctx context.Context, to string) (string, error) {
	return "cp-2-00000002", m.change(ctx, "transfer %s", to)
}

func (m *member) SaveSnapshot(_ context.Context, w io.Writer) (fsm.SnapshotInfo, error) {
	_, err := w.Write(m.content)
	return fsm.SnapshotInfo{ClusterID: "cluster", Index: 9}, errors.Join(err, m.err)
}

func (m *member) SaveStaleSnapshot(w io.Writer) (fsm.SnapshotInfo, error) {
	_, err := io.WriteString(w, "stale")
	return fsm.SnapshotInfo{ClusterID: "cluster", Index: 8}, err
}

func (m *member) RestoreSnapshot(ctx context.Context, r io.Reader, force bool) (fsm.SnapshotInfo, error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return fsm.SnapshotInfo{}, err
	}
	m.mu.Lock()
	m.content = content
	m.mu.Unlock()
	return fsm.SnapshotInfo{ClusterID: "cluster", Generation: 2}, m.change(ctx, "restore %d bytes, force %v", len(content), force)
}

// clusterPort makes connections look as those of the cluster port do.
type clusterPort struct{ net.Listener }

func (p clusterPort) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return replicaConn{conn}, nil
}

type replicaConn struct{ net.Conn }

func (c replicaConn) RemoteAddr() net.Addr {
	return peer.Addr{Addr: c.Conn.RemoteAddr(), Hello: &slimcppb.Hello{ReplicaId: "cp-2-00000002"}}
}

// pair is a leader and a follower, which the operator asks.
type pair struct {
	*client
	leader, follower *member
	nodes            *table
	stopLeader       func()
	log, leaderLog   bytes.Buffer
}

func newPair(t *testing.T) *pair {
	t.Helper()
	f, _ := twoGroups(t)
	p := &pair{leader: &member{id: leaderID, leads: true}, follower: &member{id: "cp-2-00000002"}, nodes: &table{}}

	options := f.options()
	options.Cluster, options.Nodes = p.leader, p.nodes
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &p.leaderLog})
	server := grpc.NewServer()
	NewService(options).RegisterPeerServices(server)
	listener := bufconn.Listen(1 << 16)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(clusterPort{listener}) })
	p.stopLeader = server.Stop
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	})
	p.follower.leader = conn

	options = f.options()
	options.Cluster, options.Nodes = p.follower, &table{err: errors.New("a follower asks no node")}
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &p.log})
	p.client = dial(t, options)
	return p
}

// forged says what only a replica may say.
func forged(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, callerIdentityKey, "root", callerAddressKey, "10.0.0.1:1")
}

// What only the leader can do is done there, on behalf of who asked, and leaves one
// line in the log of the replica that was asked.
func TestFollowerPassesChangesOn(t *testing.T) {
	for want, change := range map[string]func(context.Context, *client) error{
		"remove x": func(ctx context.Context, c *client) error {
			_, err := c.RemoveReplica(ctx, &slimcppb.RemoveReplicaRequest{Replica: "x"})
			return err
		},
		"promote x": func(ctx context.Context, c *client) error {
			_, err := c.PromoteReplica(ctx, &slimcppb.PromoteReplicaRequest{Replica: "x"})
			return err
		},
		"demote x": func(ctx context.Context, c *client) error {
			_, err := c.DemoteReplica(ctx, &slimcppb.DemoteReplicaRequest{Replica: "x"})
			return err
		},
		"transfer x": func(ctx context.Context, c *client) error {
			answer, err := c.TransferLeadership(ctx, &slimcppb.TransferLeadershipRequest{To: "x"})
			if err == nil && answer.GetLeaderId() != "cp-2-00000002" {
				return fmt.Errorf("answer %v", answer)
			}
			return err
		},
		"finalize": func(ctx context.Context, c *client) error {
			answer, err := c.FinalizeUpgrade(ctx, &slimcppb.FinalizeUpgradeRequest{})
			if err == nil && answer.GetSchema() != 7 {
				return fmt.Errorf("answer %v", answer)
			}
			return err
		},
		"restore 300000 bytes, force true": func(ctx context.Context, c *client) error {
			_, err := restore(ctx, c, 300_000, true)
			return err
		},
	} {
		t.Run(want, func(t *testing.T) {
			p := newPair(t)
			if err := change(forged(t.Context()), p.client); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(p.leader.changes, []string{want}) || len(p.follower.changes) != 0 {
				t.Errorf("the leader did %q, the follower %q", p.leader.changes, p.follower.changes)
			}
			if !slices.Equal(p.leader.callers, []string{"@bufconn"}) {
				t.Errorf("on behalf of %q", p.leader.callers)
			}
			if lines := strings.Count(p.log.String(), "operator's change"); lines != 1 || p.leaderLog.Len() != 0 {
				t.Errorf("log of the one that was asked:\n%s\nof the leader:\n%s", &p.log, &p.leaderLog)
			}
			p.leader.err = fmt.Errorf("%w: not now", cluster.ErrMembership)
			wantStatus(t, change(t.Context(), p.client), codes.FailedPrecondition, "membership: not now")
			if !strings.Contains(p.log.String(), "outcome=refused") {
				t.Errorf("log:\n%s", &p.log)
			}
		})
	}
}

// restore sends so many bytes as a snapshot.
func restore(ctx context.Context, c *client, size int, force bool) (*slimcppb.RestoreSnapshotResponse, error) {
	stream, err := c.RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	parts := []*slimcppb.RestoreSnapshotRequest{
		{Part: &slimcppb.RestoreSnapshotRequest_Options{Options: &slimcppb.RestoreOptions{Force: force}}},
		{Part: &slimcppb.RestoreSnapshotRequest_Data{Data: make([]byte, size/2)}},
		{Part: &slimcppb.RestoreSnapshotRequest_Data{Data: make([]byte, size-size/2)}},
	}
	for _, part := range parts {
		if err := stream.Send(part); err != nil {
			break
		}
	}
	return stream.CloseAndRecv()
}

func TestFollowerPassesListsOn(t *testing.T) {
	p := newPair(t)
	p.nodes.connections = []*controllerpb.ConnectionEntry{{Id: 4}}
	answer, err := p.ListConnections(t.Context(), &controlplanepb.Node{Id: "a/1"})
	if err != nil || len(answer.GetEntries()) != 1 {
		t.Errorf("%v, %v", answer, err)
	}
	p.nodes.err = errors.New("node a/1 is busy: command sent 3 s ago")
	_, err = p.ListNodeRoutes(t.Context(), &controlplanepb.Node{Id: "a/1"})
	wantStatus(t, err, codes.Unavailable, "node a/1 is busy: command sent 3 s ago")
}

// A call travels one hop: a replica that was taken for the leader answers for
// itself.
func TestCallsTravelOneHop(t *testing.T) {
	p := newPair(t)
	p.leader.leads, p.leader.leader = false, p.follower.leader
	p.leader.err = cluster.ErrNotLeader
	_, err := p.PromoteReplica(t.Context(), &slimcppb.PromoteReplicaRequest{Replica: "x"})
	wantStatus(t, err, codes.Unavailable, "this replica does not lead")
	if len(p.leader.changes) != 1 {
		t.Errorf("it was asked %q", p.leader.changes)
	}
}

// What broke between the replicas may have been done.
func TestBrokenForwardIsAnUnknownOutcome(t *testing.T) {
	for name, change := range map[string]func(context.Context, *client) error{
		"promote": func(ctx context.Context, c *client) error {
			_, err := c.PromoteReplica(ctx, &slimcppb.PromoteReplicaRequest{Replica: "x"})
			return err
		},
		"restore": func(ctx context.Context, c *client) error {
			_, err := restore(ctx, c, 10, false)
			return err
		},
	} {
		p := newPair(t)
		broken := make(chan struct{})
		p.leader.during = func() {
			go p.stopLeader()
			<-broken
		}
		err := change(t.Context(), p.client)
		close(broken)
		if code := status.Code(err); code != codes.Aborted {
			t.Errorf("%s: %v, want %v", name, err, codes.Aborted)
		}
		if !strings.Contains(p.log.String(), "outcome=unknown") {
			t.Errorf("%s: log:\n%s", name, &p.log)
		}
	}
}

func TestWithoutALeader(t *testing.T) {
	p := newPair(t)
	p.follower.leader = nil
	_, err := p.DemoteReplica(t.Context(), &slimcppb.DemoteReplicaRequest{Replica: "x"})
	wantStatus(t, err, codes.Unavailable, "no leader")
}

// A leader that is to go hands over first.
func TestRemovalOfTheLeader(t *testing.T) {
	for _, name := range []string{"cp-1", leaderID} {
		p := newPair(t)
		if _, err := p.RemoveReplica(t.Context(), &slimcppb.RemoveReplicaRequest{Replica: name}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"transfer ", "remove " + name}; !slices.Equal(p.leader.changes, want) {
			t.Errorf("done %q, want %q", p.leader.changes, want)
		}
	}
}

// What a replica does for itself it does itself.
func TestOwnChanges(t *testing.T) {
	p := newPair(t)
	if answer, err := p.Init(t.Context(), &slimcppb.InitRequest{}); err != nil || answer.GetReplicaId() != p.follower.id {
		t.Errorf("%v, %v", answer, err)
	}
	if answer, err := p.Leave(t.Context(), &slimcppb.LeaveRequest{}); err != nil || answer.GetReplicaId() != p.follower.id {
		t.Errorf("%v, %v", answer, err)
	}
	if want := []string{"init", "leave"}; !slices.Equal(p.follower.changes, want) || len(p.leader.changes) != 0 {
		t.Errorf("done %q, want %q", p.follower.changes, want)
	}
	if lines := strings.Count(p.log.String(), "outcome=done"); lines != 2 {
		t.Errorf("log:\n%s", &p.log)
	}
}

func TestJoinTellsItsProgress(t *testing.T) {
	p := newPair(t)
	seen := func(own *cluster.MemberStatus, leaderApplied uint64) cluster.Status {
		status := cluster.Status{ClusterID: "cluster", ReplicaID: p.follower.id, LeaderID: leaderID}
		status.Members = []cluster.MemberStatus{{Member: cluster.Member{ReplicaID: leaderID, Voter: true}, Applied: leaderApplied}}
		if own != nil {
			own.ReplicaID = p.follower.id
			status.Members = append(status.Members, *own)
		}
		return status
	}
	p.follower.status = []cluster.Status{
		seen(nil, 50), seen(&cluster.MemberStatus{Applied: 10}, 50), seen(&cluster.MemberStatus{Applied: 10}, 50),
		seen(&cluster.MemberStatus{Applied: 50}, 50), seen(&cluster.MemberStatus{Applied: 50, Member: cluster.Member{Voter: true}}, 50),
	}
	stream, err := p.Join(t.Context(), &slimcppb.JoinClusterRequest{Address: "cp-1:1"})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for {
		progress, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, progress.GetLine())
	}
	want := []string{
		"taken in, waiting for the log",
		"is a member without a vote, catching up: state at index 10 of 50",
		"is a member without a vote and up to date, gets one when it has been healthy for a while",
		"votes",
	}
	if !slices.Equal(lines, want) || !slices.Equal(p.follower.changes, []string{"join cp-1:1"}) {
		t.Errorf("told %q", lines)
	}

	stream, err = p.Join(t.Context(), &slimcppb.JoinClusterRequest{Address: "cp-1"})
	if err == nil {
		_, err = stream.Recv()
	}
	wantStatus(t, err, codes.InvalidArgument, `address "cp-1": accepted is HOST:PORT of a member's cluster port`)
}

func TestSnapshotIsSentInPieces(t *testing.T) {
	p := newPair(t)
	p.follower.content = bytes.Repeat([]byte("state"), 200_000)
	stream, err := p.SaveSnapshot(t.Context(), &slimcppb.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var content []byte
	var info *slimcppb.SnapshotInfo
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(part.GetData()) > snapshotPart || info != nil {
			t.Fatalf("a piece of %d bytes, after the end: %v", len(part.GetData()), info != nil)
		}
		content, info = append(content, part.GetData()...), part.GetInfo()
	}
	if !bytes.Equal(content, p.follower.content) || info.GetIndex() != 9 {
		t.Errorf("%d bytes, %v", len(content), info)
	}
}

// A replica that is left alone has nobody to ask, and its state can be saved.
func TestStaleSnapshotNeedsNoLeader(t *testing.T) {
	p := newPair(t)
	p.follower.err = cluster.ErrNoLeader
	stream, err := p.SaveSnapshot(t.Context(), &slimcppb.SaveSnapshotRequest{Stale: true})
	if err != nil {
		t.Fatal(err)
	}
	part, err := stream.Recv()
	if err != nil || string(part.GetData()) != "stale" {
		t.Errorf("%q, %v", part.GetData(), err)
	}
}

// A change is proposed under the id that the caller gave it.
func TestRequestIDOfTheCaller(t *testing.T) {
	f, _ := twoGroups(t)
	f.setTopology()
	proposer := &proposer{fleet: f}
	options := f.options()
	options.Proposer = proposer
	operator := dial(t, options)
	given := metadata.AppendToOutgoingContext(t.Context(), RequestIDKey, "my-id")
	for range 2 {
		if err := addSegment("x")(given, operator); err != nil {
			t.Fatal(err)
		}
	}
	if err := addSegment("y")(t.Context(), operator); err != nil {
		t.Fatal(err)
	}
	ids := []string{proposer.commands[0].GetRequestId(), proposer.commands[1].GetRequestId(), proposer.commands[2].GetRequestId()}
	if ids[0] != "my-id" || ids[1] != "my-id" || len(ids[2]) != 36 {
		t.Errorf("request ids %q", ids)
	}
	for _, bad := range []string{strings.Repeat("x", fsm.MaxRequestIDBytes+1), "two words"} {
		err := addSegment("z")(metadata.AppendToOutgoingContext(t.Context(), RequestIDKey, bad), operator)
		wantStatus(t, err, codes.InvalidArgument, "slimcp-request-id: accepted are 1 to 128 printable ASCII characters without spaces")
	}
}
