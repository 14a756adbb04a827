package cluster

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// B-02: a replica that was elected and is held up before it leads hears, beside its
// main loop, the heartbeats of the next term's leader, and then leads that term too.
func TestOneLeaderInATerm(t *testing.T) {
	t.Run("as it is", func(t *testing.T) {
		for range 2 {
			if heldUpElection(t, func(n *raft.NetworkTransport) peerTransport { return mainLoopTransport{n} }) {
				t.Fatal("two leaders in one term")
			}
		}
	})
	t.Run("with heartbeats beside the main loop", func(t *testing.T) {
		for range 20 {
			if heldUpElection(t, func(n *raft.NetworkTransport) peerTransport { return n }) {
				return
			}
		}
		t.Error("the library no longer has the fault: the remedy can go")
	})
}

// senders notes who sends entries or heartbeats as the leader of a term.
type senders struct {
	mu    sync.Mutex
	terms map[uint64][]raft.ServerID
}

func (s *senders) note(term uint64, id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.terms[term], id) {
		s.terms[term] = append(s.terms[term], id)
	}
}

func (s *senders) twice() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ids := range s.terms {
		if len(ids) > 1 {
			return true
		}
	}
	return false
}

// observedTransport can be cut off.
type observedTransport struct {
	peerTransport
	id      raft.ServerID
	senders *senders
	cut     *atomic.Pointer[raft.ServerID] // who is cut off, if anybody
}

var errCut = errors.New("cut off")

func (o observedTransport) isCut(to raft.ServerID) bool {
	off := o.cut.Load()
	return off != nil && (*off == o.id || *off == to)
}

func (o observedTransport) AppendEntries(id raft.ServerID, address raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse) error {
	if o.isCut(id) {
		return errCut
	}
	o.senders.note(request.Term, o.id)
	return o.peerTransport.AppendEntries(id, address, request, response)
}

func (o observedTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (o observedTransport) RequestVote(id raft.ServerID, address raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse) error {
	if o.isCut(id) {
		return errCut
	}
	return o.peerTransport.RequestVote(id, address, request, response)
}

func (o observedTransport) RequestPreVote(id raft.ServerID, address raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse) error {
	if o.isCut(id) {
		return errCut
	}
	return o.peerTransport.RequestPreVote(id, address, request, response)
}

// bareReplica is the library alone.
type bareReplica struct {
	*raft.Raft
	id        raft.ServerID
	address   raft.ServerAddress
	elections chan bool
	drain     sync.Once
}

func (b *bareReplica) startDraining(until <-chan struct{}) {
	b.drain.Do(func() {
		go func() {
			for {
				select {
				case <-b.elections:
				case <-until:
					return
				}
			}
		}()
	})
}

func (b *bareReplica) leads() bool { return b.State() == raft.Leader }

// heldUpElection elects a replica whose election nobody takes notice of, lets
// another one win the next term, and reports whether two have led one term.
func heldUpElection(t *testing.T, wrap func(*raft.NetworkTransport) peerTransport) bool {
	t.Helper()
	seen, cut := &senders{terms: map[uint64][]raft.ServerID{}}, &atomic.Pointer[raft.ServerID]{}
	until := make(chan struct{})
	replicas := bareCluster(t, func(n *raft.NetworkTransport, id raft.ServerID) raft.Transport {
		return observedTransport{peerTransport: wrap(n), id: id, senders: seen, cut: cut}
	})
	defer func() {
		close(until)
		for _, replica := range replicas {
			replica.startDraining(until)
			_ = replica.Shutdown().Error()
		}
	}()
	first := oneOf(t, replicas, (*bareReplica).leads)
	others := slices.DeleteFunc(slices.Clone(replicas), func(b *bareReplica) bool { return b == first })
	for _, other := range others {
		other.startDraining(until)
	}
	<-first.elections
	_ = first.Apply([]byte("a"), time.Second).Error()
	cut.Store(&first.id)
	oneOf(t, []*bareReplica{first}, func(b *bareReplica) bool { return !b.leads() }) // its channel is full now
	second := oneOf(t, others, (*bareReplica).leads)
	cut.Store(nil)
	_ = second.Apply([]byte("b"), time.Second).Error()
	oneOf(t, []*bareReplica{first}, func(b *bareReplica) bool { return b.AppliedIndex() >= second.AppliedIndex() })
	go func() { _ = second.LeadershipTransferToServer(first.id, first.address).Error() }()
	// It wins, and stands still where it would tell so.
	oneOf(t, []*bareReplica{first}, (*bareReplica).leads)
	held := first.CurrentTerm()
	third := oneOf(t, others, func(b *bareReplica) bool { return b.leads() && b.CurrentTerm() > held })
	deadline := time.Now().Add(500 * time.Millisecond)
	for first.CurrentTerm() < third.CurrentTerm() && time.Now().Before(deadline) {
		<-time.After(time.Millisecond)
	}
	first.startDraining(until)
	deadline = time.Now().Add(time.Second)
	for !seen.twice() && time.Now().Before(deadline) {
		<-time.After(5 * time.Millisecond)
	}
	return seen.twice()
}

func oneOf(t *testing.T, replicas []*bareReplica, condition func(*bareReplica) bool) *bareReplica {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		for _, replica := range replicas {
			if condition(replica) {
				return replica
			}
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("not in time")
	return nil
}

func bareCluster(t *testing.T, wrap func(*raft.NetworkTransport, raft.ServerID) raft.Transport) []*bareReplica {
	t.Helper()
	var replicas []*bareReplica
	var servers []raft.Server
	for i := range 3 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: bareStream{Listener: listener, t: t}, MaxPool: 3, Timeout: time.Second, Logger: hclog.NewNullLogger(),
		})
		b := &bareReplica{id: raft.ServerID(fmt.Sprintf("n%d", i)), address: transport.LocalAddr(), elections: make(chan bool, 1)}
		config := raft.DefaultConfig()
		config.LocalID, config.Logger, config.NotifyCh = b.id, hclog.NewNullLogger(), b.elections
		config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
		memory := raft.NewInmemStore()
		b.Raft, err = raft.NewRaft(config, &raft.MockFSM{}, memory, memory, raft.NewInmemSnapshotStore(), wrap(transport, b.id))
		if err != nil {
			t.Fatal(err)
		}
		replicas = append(replicas, b)
		servers = append(servers, raft.Server{ID: b.id, Address: b.address})
	}
	if err := replicas[0].BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil {
		t.Fatal(err)
	}
	return replicas
}

// bareStream closes, when the test ends, what the library leaves open.
type bareStream struct {
	net.Listener
	t *testing.T
}

func (s bareStream) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil {
		s.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

func (s bareStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", string(address), timeout)
	if err == nil {
		s.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}
