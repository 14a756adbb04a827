//go:build chaos

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/authority"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

const (
	size     = 5
	diskSize = "256m"
	poll     = 100 * time.Millisecond
)

// member is one replica with the places that belong to it.
type member struct {
	*process.Replica
	name    string
	disk    string // where its data is; a file system of its own, if there can be one
	mounted bool
	conn    *grpc.ClientConn
	cluster slimcppb.ClusterServiceClient
	down    bool // ended or stopped by a fault
}

// chaos is a cluster that faults happen to.
type chaos struct {
	t        *testing.T
	binaries process.Binaries
	random   *rand.Rand
	network  *network
	members  []*member
	fleet    *process.Process
	socket   string
	ca       *authority.Authority
	newest   int // number in the newest name
}

// form starts the replicas and makes them one cluster.
func form(t *testing.T, binaries process.Binaries, random *rand.Rand) *chaos {
	t.Helper()
	c := &chaos{t: t, binaries: binaries, random: random, network: newNetwork(), ca: authority.New(t)}
	for range size {
		c.members = append(c.members, c.newMember(process.Member{Advertise: process.Loopback(process.FreePort(t))}))
		c.network.expose(t, c.members[len(c.members)-1].Member.Advertise, c.members[len(c.members)-1].backend())
	}
	c.members[0].MustOperate(t, "cluster", "init")
	for _, m := range c.members[1:] {
		m.MustOperate(t, "cluster", "join", c.members[0].Member.Advertise)
	}
	c.settle(settleTime)
	return c
}

// newMember starts a replica with an empty data directory at these endpoints.
func (c *chaos) newMember(at process.Member) *member {
	c.t.Helper()
	c.newest++
	m := &member{name: fmt.Sprintf("cp-%d", c.newest), disk: c.t.TempDir()}
	if err := syscall.Mount("tmpfs", m.disk, "tmpfs", 0, "size="+diskSize); err == nil {
		m.mounted = true
		c.t.Cleanup(func() { _ = syscall.Unmount(m.disk, syscall.MNT_DETACH) })
	}
	m.Replica = process.NewMember(c.t, c.binaries, process.Member{
		Name: m.name, DataDir: filepath.Join(m.disk, "data"),
		Northbound: at.Northbound, Southbound: at.Southbound, Cluster: at.Cluster, Advertise: at.Advertise,
		SouthboundTLS: fmt.Sprintf("{source: %s}", c.ca.Issue(c.t, m.name)),
		Section:       "insecure: true, autopilot: {stabilization_time: 300ms, dead_server_cleanup: false}",
	})
	m.LogLines = *lines
	m.Launch(c.t)
	m.conn = connect(c.t, m.Northbound)
	m.cluster = slimcppb.NewClusterServiceClient(m.conn)
	c.eventually(time.Minute, m.name+" answers", func() error {
		_, err := m.status()
		return err
	})
	return m
}

// connect opens a connection to a northbound endpoint, until the test ends. A replica
// that starts again is found at once.
func connect(tb testing.TB, endpoint string) *grpc.ClientConn {
	tb.Helper()
	retry := grpcbackoff.Config{BaseDelay: poll, Multiplier: 1, MaxDelay: poll}
	conn, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (m *member) backend() backend { return backend{name: m.name, address: m.Cluster} }

// status is what a replica says of the cluster.
func (m *member) status() (*slimcppb.ClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := m.cluster.ClusterStatus(ctx, &slimcppb.ClusterStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	return status, nil
}

// startFleet starts the nodes behind a balancer, and links their groups.
func (c *chaos) startFleet(groups, names int) {
	c.t.Helper()
	endpoint := process.Loopback(process.FreePort(c.t))
	var backends []string
	for _, m := range c.members {
		backends = append(backends, m.Southbound)
	}
	balance(c.t, endpoint, func() []string { return backends })
	c.socket = filepath.Join(c.t.TempDir(), "fleet.sock")
	c.fleet = process.Start(c.t, process.Spec{
		Name: "fleet", Path: c.binaries.Path("slim-node"),
		Args: []string{
			"fleet", "--server", endpoint, "--tls-ca", c.ca.CA(), "--control", c.socket,
			"--groups", fmt.Sprint(groups), "--nodes-per-group", "1", "--names", fmt.Sprint(names),
			// A replica that is killed while a node registers loses it by the node's own
			// rule: somebody starts it again.
			"--reconnect", "forever",
		},
		LogLines: *lines,
	})
	c.fleet.WaitStdout(c.t, "fleet started", time.Minute)
	for a := 1; a <= groups; a++ {
		for b := a + 1; b <= groups; b++ {
			c.members[0].MustOperate(c.t, "link", "add", fmt.Sprintf("group-%d", a), fmt.Sprintf("group-%d", b))
		}
	}
	if err := c.delivery(time.Minute); err != nil {
		c.t.Fatal("before any fault:", err)
	}
}

// delivery waits until every name is reached from every group exactly once.
func (c *chaos) delivery(within time.Duration) error {
	code, stdout, stderr := process.Run(c.t, process.Spec{
		Name: "slim-node ctl matrix", Path: c.binaries.Path("slim-node"),
		Args: []string{"ctl", "--control", c.socket, "matrix", "--wait", within.String()},
	}, within+time.Minute)
	if code != 0 {
		return fmt.Errorf("delivery matrix: exit code %d\n%s%s", code, stdout, stderr)
	}
	return nil
}

// linkIDs are the ids of the links by pair of groups.
func (c *chaos) linkIDs() map[string]string {
	c.t.Helper()
	ids := map[string]string{}
	c.eventually(time.Minute, "links are listed", func() error {
		clear(ids)
		links, err := observer.New(c.members[0].conn).Links(c.t.Context())
		for _, link := range links {
			groups := []string{observer.Group(link.GetSourceNodeId()), observer.Group(link.GetDestNodeId())}
			slices.Sort(groups)
			ids[strings.Join(groups, " ")] = link.GetLinkId()
		}
		return err
	})
	return ids
}

// settle waits until all replicas are up, vote, agree and are well.
func (c *chaos) settle(within time.Duration) {
	c.t.Helper()
	c.eventually(within, "all replicas are well", func() error {
		var leader string
		for _, m := range c.members {
			status, err := m.status()
			if err != nil {
				return err
			}
			if err := well(m, status); err != nil {
				return err
			}
			if leader != "" && leader != status.GetLeaderId() {
				return fmt.Errorf("two leaders: %s and %s", leader, status.GetLeaderId())
			}
			leader = status.GetLeaderId()
		}
		return nil
	})
}

// well reports what a replica finds wrong.
func well(m *member, status *slimcppb.ClusterStatusResponse) error {
	switch {
	case status.GetLeaderId() == "":
		return fmt.Errorf("%s knows no leader", m.name)
	case len(status.GetReplicas()) != size:
		return fmt.Errorf("%s knows %d replicas", m.name, len(status.GetReplicas()))
	case status.GetFailureTolerance() != size/2:
		return fmt.Errorf("%s says failure tolerance %d: %v", m.name, status.GetFailureTolerance(), status)
	}
	return nil
}

// eventually polls a condition. Only the test's own goroutine may call it.
func (c *chaos) eventually(within time.Duration, what string, condition func() error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			c.t.Fatalf("not within %v: %s: %v", within, what, err)
		}
	}
}

// fill makes a replica's disk full.
func (m *member) fill() error {
	const block = 1 << 20
	file, err := os.OpenFile(m.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	for chunk := block; chunk >= 512; {
		if _, err := file.Write(make([]byte, chunk)); errors.Is(err, syscall.ENOSPC) {
			chunk /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (m *member) ballast() string { return filepath.Join(m.disk, "ballast") }

func (m *member) free(tb testing.TB) {
	if err := os.Remove(m.ballast()); err != nil {
		tb.Errorf("free the disk of %s: %v", m.name, err)
	}
}
