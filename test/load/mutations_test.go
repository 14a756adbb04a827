package load_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// valueBytes is the size of what one mutation writes.
const valueBytes = 200

// BenchmarkMutations measures, in one run, durable mutations through three members
// with the callers spread over all of them: commands as the streams of nodes propose
// them, operators' calls over gRPC, puts of the same size of a three-member etcd
// (Debian's etcd-server, skipped without it), and the bare Raft library.
func BenchmarkMutations(b *testing.B) {
	for _, callers := range []int{64, 256} {
		for _, system := range []struct {
			name  string
			start func(*testing.B) []mutator
		}{
			{"library", startLibrary}, {"commands", startCommands}, {"operators", startOperators}, {"etcd", startEtcd},
		} {
			b.Run(fmt.Sprintf("%s/callers=%d", system.name, callers), func(b *testing.B) {
				members := system.start(b)
				mutateFor(b, members, callers, time.Second) // warm
				rate := mutateFor(b, members, callers, 5*time.Second)
				for b.Loop() { //nolint:revive // the rate is measured once, over a time of its own
				}
				b.ReportMetric(rate, "mutations/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// mutator writes through one member: the caller's own key, again and again.
type mutator func(ctx context.Context, caller int, value []byte) error

// mutateFor returns how many mutations a second the callers get done.
func mutateFor(b *testing.B, members []mutator, callers int, period time.Duration) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), period+30*time.Second)
	defer cancel()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var running sync.WaitGroup
	began := time.Now()
	for caller := range callers {
		running.Go(func() {
			value := make([]byte, valueBytes)
			for i := range value {
				value[i] = 'a' + byte(caller+i)%26
			}
			for time.Since(began) < period {
				value[0]++
				value[0] = 'a' + value[0]%26
				if err := members[caller%len(members)](ctx, caller, value); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(1)
			}
		})
	}
	running.Wait()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	return float64(done.Load()) / time.Since(began).Seconds()
}

// sharedSecret lets operators set groups' secrets.
const sharedSecret = "topology: {registration_auth: {type: shared_secret}}\n"

// startOperators runs three slim-cp processes; a mutation sets a group's secret.
func startOperators(b *testing.B) []mutator {
	b.Helper()
	return secretSetters(formCluster(b, defaultTimings, sharedSecret))
}

func secretSetters(members []*member) []mutator {
	var mutators []mutator
	for _, m := range members {
		client := controlplanepb.NewControlPlaneServiceClient(m.conn)
		mutators = append(mutators, func(ctx context.Context, caller int, value []byte) error {
			_, err := client.AddDomain(ctx, &controlplanepb.AddDomainRequest{
				DomainName: fmt.Sprintf("group-%d", caller), Secret: string(value),
			})
			return err
		})
	}
	return mutators
}

func dial(b *testing.B, address string) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// startCommands runs three replicas in this process; a mutation is a command of the
// same size.
func startCommands(b *testing.B) []mutator {
	b.Helper()
	var replicas []*cluster.Replica
	var addresses []string
	for i := range 3 {
		address := process.Loopback(process.FreePort(b))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		replica, err := cluster.Open(b.Context(), cluster.Options{
			Name: fmt.Sprintf("cp-%d", i+1), DataDir: filepath.Join(b.TempDir(), "data"),
			Peers: &cluster.Peers{
				Listener: listener, Advertise: address,
				Autopilot: cluster.Autopilot{StabilizationTime: 300 * time.Millisecond},
			},
		}, fsm.New(), hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		replica.ServePeers()
		b.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			_ = replica.Shutdown(ctx)
		})
		replicas, addresses = append(replicas, replica), append(addresses, address)
	}
	if err := replicas[0].Init(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, replica := range replicas[1:] {
		if err := replica.Join(b.Context(), addresses[0]); err != nil {
			b.Fatal(err)
		}
	}
	poll(b, "three voters", func(ctx context.Context) bool { return replicas[2].Status(ctx).FailureTolerance == 1 })
	fleet := &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{RegistrationAuth: fsm.SharedSecret},
	}}}
	if result, err := replicas[0].Propose(b.Context(), fleet); err != nil || result.Err != nil {
		b.Fatal(err, result.Err)
	}
	var mutators []mutator
	for _, replica := range replicas {
		mutators = append(mutators, func(ctx context.Context, caller int, value []byte) error {
			result, err := replica.Propose(ctx, &slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
				Secret: &slimcppb.GroupSecret{Group: fmt.Sprintf("group-%d", caller), Secret: value},
			}}})
			if err == nil {
				err = result.Err
			}
			return err
		})
	}
	return mutators
}

// rawCodec passes encoded messages through, so that etcd's API needs no schema.
type rawCodec struct{}

func (rawCodec) Name() string                        { return "proto" }
func (rawCodec) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

var _ encoding.Codec = rawCodec{}

// startEtcd runs a three-member etcd with its defaults.
func startEtcd(b *testing.B) []mutator {
	b.Helper()
	binary, err := exec.LookPath("etcd")
	if err != nil {
		b.Skip("etcd-server is not installed")
	}
	var names, clients, peers, initial []string
	for i := range 3 {
		names = append(names, fmt.Sprintf("e%d", i))
		clients = append(clients, "http://"+process.Loopback(process.FreePort(b)))
		peers = append(peers, "http://"+process.Loopback(process.FreePort(b)))
		initial = append(initial, names[i]+"="+peers[i])
	}
	var mutators []mutator
	for i, name := range names {
		process.Start(b, process.Spec{Name: name, Path: binary, Args: []string{
			"--name", name, "--data-dir", filepath.Join(b.TempDir(), "etcd"), "--log-level", "error",
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
		}})
		conn := dial(b, strings.TrimPrefix(clients[i], "http://"))
		mutators = append(mutators, func(ctx context.Context, caller int, value []byte) error {
			const key, content protowire.Number = 1, 2
			put := protowire.AppendTag(nil, key, protowire.BytesType)
			put = protowire.AppendString(put, fmt.Sprintf("group-%d", caller))
			put = protowire.AppendTag(put, content, protowire.BytesType)
			put = protowire.AppendBytes(put, value)
			var answer []byte
			return conn.Invoke(ctx, "/etcdserverpb.KV/Put", &put, &answer, grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true))
		})
	}
	poll(b, "etcd answers", func(ctx context.Context) bool {
		for _, put := range mutators {
			if put(ctx, 0, []byte("x")) != nil {
				return false
			}
		}
		return true
	})
	return mutators
}

// startLibrary runs three replicas of the library alone, set up as it is here; only
// the leader takes writes.
func startLibrary(b *testing.B) []mutator {
	b.Helper()
	var replicas []*raft.Raft
	var servers []raft.Server
	for i := range 3 {
		address := process.Loopback(process.FreePort(b))
		transport, err := raft.NewTCPTransport(address, nil, 3, time.Second, nil)
		if err != nil {
			b.Fatal(err)
		}
		bolt, err := raftboltdb.New(raftboltdb.Options{
			Path:        filepath.Join(b.TempDir(), "raft.db"),
			BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		if err != nil {
			b.Fatal(err)
		}
		logs, err := raft.NewLogCache(256, bolt)
		if err != nil {
			b.Fatal(err)
		}
		config := raft.DefaultConfig()
		config.LocalID, config.Logger, config.BatchApplyCh = raft.ServerID(fmt.Sprintf("n%d", i)), hclog.NewNullLogger(), true
		config.MaxAppendEntries = 256
		replica, err := raft.NewRaft(config, &raft.MockFSM{}, logs, bolt, raft.NewInmemSnapshotStore(), transport)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = replica.Shutdown().Error()
			_ = bolt.Close()
		})
		replicas = append(replicas, replica)
		servers = append(servers, raft.Server{ID: config.LocalID, Address: transport.LocalAddr()})
	}
	if err := replicas[0].BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil {
		b.Fatal(err)
	}
	var leader *raft.Raft
	poll(b, "a leader", func(context.Context) bool {
		for _, replica := range replicas {
			if replica.State() == raft.Leader {
				leader = replica
			}
		}
		return leader != nil
	})
	return []mutator{func(_ context.Context, _ int, value []byte) error {
		return leader.Apply(append([]byte(nil), value...), 10*time.Second).Error()
	}}
}
