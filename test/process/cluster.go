package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// formTime bounds each command that forms a cluster.
const formTime = 60 * time.Second

// Member says how a replica of a cluster is started. What is empty gets a value of
// its own.
type Member struct {
	Name    string
	DataDir string
	// Northbound, Southbound and Cluster are host:port.
	Northbound, Southbound, Cluster string
	// Advertise is where the others find the cluster port: Cluster, if it is empty.
	Advertise string
	// Further listeners, in addition to the first two.
	Further Listeners
	// TLS of northbound and southbound, "{insecure: true}" if it is empty.
	TLS string
	// SouthboundTLS is that of southbound alone, if it has one of its own.
	SouthboundTLS string
	// Section holds the other keys of the cluster section, in YAML's flow form:
	// "insecure: true, autopilot: {stabilization_time: 300ms}" if it is empty.
	Section string
	// Files is the limit of open files; 0: the test's own.
	Files int
	// YAML is the rest of the file.
	YAML string
}

// plaintext is the cluster section of a test that does not care.
const plaintext = "insecure: true, autopilot: {stabilization_time: 300ms}"

// withDefaults fills in what is empty.
func (m Member) withDefaults(tb testing.TB) Member {
	for _, endpoint := range []*string{&m.Northbound, &m.Southbound, &m.Cluster} {
		if *endpoint == "" {
			*endpoint = Loopback(FreePort(tb))
		}
	}
	if m.DataDir == "" {
		m.DataDir = filepath.Join(tb.TempDir(), "data")
	}
	m.TLS = cmp.Or(m.TLS, plainTLS)
	m.SouthboundTLS = cmp.Or(m.SouthboundTLS, m.TLS)
	m.Section = cmp.Or(m.Section, plaintext)
	return m
}

// Config returns the configuration file's content.
func (m Member) Config() string {
	return fmt.Sprintf("northbound: %s\nsouthbound: %s\n"+
		"cluster: {name: %s, data_dir: %q, endpoint: %q, advertise: %q, %s}\n%s",
		listenerList(append([]string{m.Northbound}, m.Further.Northbound...), m.TLS),
		listenerList(append([]string{m.Southbound}, m.Further.Southbound...), m.SouthboundTLS),
		m.Name, m.DataDir, m.Cluster, cmp.Or(m.Advertise, m.Cluster), m.Section, m.YAML)
}

// StartMember runs a replica of a cluster, and returns when operators can call it:
// it need not be a member yet.
func StartMember(tb testing.TB, binaries Binaries, member Member) *Replica {
	tb.Helper()
	r := NewMember(tb, binaries, member)
	r.Start(tb)
	return r
}

// NewMember prepares a replica of a cluster that Start runs.
func NewMember(tb testing.TB, binaries Binaries, member Member) *Replica {
	tb.Helper()
	member = member.withDefaults(tb)
	r := &Replica{
		Northbound: member.Northbound, Southbound: member.Southbound, Cluster: member.Cluster,
		binary: binaries.Path("slim-cp"),
		config: filepath.Join(tb.TempDir(), "slim-cp.yaml"),
		Member: member,
	}
	r.Configure(tb, member)
	return r
}

// Configure replaces the file of a replica, for its next start.
func (r *Replica) Configure(tb testing.TB, member Member) {
	tb.Helper()
	r.Member = member
	if err := os.WriteFile(r.config, []byte(member.Config()), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Config returns the path of the configuration file.
func (r *Replica) Config() string { return r.config }

// FormCluster runs replicas cp-1, cp-2, … and makes them one cluster in which all
// vote. yaml is the same in each file.
func FormCluster(tb testing.TB, binaries Binaries, size int, yaml string) []*Replica {
	tb.Helper()
	members := make([]Member, size)
	for i := range members {
		members[i] = Member{Name: fmt.Sprintf("cp-%d", i+1), YAML: yaml}
	}
	return Form(tb, binaries, members...)
}

// Form runs replicas and makes them one cluster, the first one's, in which all vote.
func Form(tb testing.TB, binaries Binaries, members ...Member) []*Replica {
	tb.Helper()
	replicas := make([]*Replica, len(members))
	for i, member := range members {
		replicas[i] = NewMember(tb, binaries, member)
		replicas[i].Launch(tb)
	}
	for _, r := range replicas {
		r.WaitRunning(tb)
	}
	replicas[0].MustOperate(tb, "cluster", "init")
	for _, r := range replicas[1:] {
		r.MustOperate(tb, "cluster", "join", replicas[0].Cluster)
	}
	return replicas
}

// Status returns what a replica says of its cluster.
func (r *Replica) Status(tb testing.TB) *slimcppb.ClusterStatusResponse {
	tb.Helper()
	status := &slimcppb.ClusterStatusResponse{}
	if err := protojson.Unmarshal([]byte(r.MustOperate(tb, "cluster", "status", "-o", "json")), status); err != nil {
		tb.Fatal(err)
	}
	return status
}

// Operate runs a command of slim-cp against the replica.
func (r *Replica) Operate(tb testing.TB, args ...string) (exitCode int, stdout, stderr string) {
	tb.Helper()
	args = append(args, "--server", r.Northbound)
	return Run(tb, Spec{Name: fmt.Sprintf("slim-cp %v", args), Path: r.binary, Args: args, Dir: tb.TempDir()}, formTime)
}

// MustOperate is Operate for a command that must succeed.
func (r *Replica) MustOperate(tb testing.TB, args ...string) (stdout string) {
	tb.Helper()
	code, stdout, stderr := r.Operate(tb, args...)
	if code != 0 {
		tb.Fatalf("slim-cp %v on %s: exit code %d\n%s%s", args, r.Member.Name, code, stdout, stderr)
	}
	return stdout
}
