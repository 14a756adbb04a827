package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// addresses remembers where replicas answered. An address is a hint, never an
// identity: it may lead to another replica tomorrow.
type addresses struct {
	mu       sync.Mutex
	answered map[string]string // HOST:PORT by replica id
}

func (a *addresses) of(id string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answered[id]
}

// met notes who answered at an address. Whoever did before is not there any more.
func (a *addresses) met(id, address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answered == nil || len(a.answered) >= maxSeenPeers {
		a.answered = map[string]string{}
	}
	for other, at := range a.answered {
		if at == address && other != id {
			delete(a.answered, other)
		}
	}
	a.answered[id] = address
}

// met takes which replica answered at an address, be it the wanted one or not:
// replicas that exchanged their addresses find each other that way.
func (r *Replica) met(answer *slimcppb.HelloAnswer, address string) error {
	if own := r.identity.allegiance(); own == "" || answer.GetClusterId() != own || answer.GetReplicaId() == "" {
		return nil
	}
	if err := r.checkBoots(answer.GetReplicaId(), answer.GetBoots(), answer.GetBootId()); err != nil {
		return err
	}
	r.addresses.met(answer.GetReplicaId(), address)
	return nil
}

// addressesOf returns where a replica may be, the likeliest first: where it answered
// last, where it said that it is, what Raft's configuration and the state have, and
// the join list of the configuration file.
func (r *Replica) addressesOf(id string) []string {
	candidates := []string{r.addresses.of(id)}
	if known, ok := r.seenPeers.get(id); ok {
		candidates = append(candidates, known.advertise)
	}
	if r.gate.isStarted() {
		if server, ok := serverOf(r.raft.GetConfiguration().Configuration().Servers, id); ok {
			candidates = append(candidates, hostPort(server.Address))
		}
	}
	if record, ok := r.store.View().Replica(id); ok {
		candidates = append(candidates, record.Address)
	}
	candidates = append(candidates, r.options.Peers.Join...)
	var found []string
	seen := map[string]bool{"": true, r.network.advertise: id != r.ReplicaID()} // here is this replica
	for _, candidate := range candidates {
		if !seen[candidate] {
			seen[candidate] = true
			found = append(found, candidate)
		}
	}
	return found
}

// dial opens a connection to a replica, wherever it is.
func (r *Replica) dial(ctx context.Context, kind slimcppb.ConnectionKind, id string) (net.Conn, error) {
	must := r.gate.inState(id) // before it is asked
	conn, answer, err := r.network.port.DialReplica(ctx, kind, id, r.addressesOf(id))
	if err != nil {
		return nil, fmt.Errorf("%s cannot be reached: %w", id, err)
	}
	if kind == slimcppb.ConnectionKind_CONNECTION_KIND_RAFT && answer.LastIndex != nil && answer.GetLastIndex() < must {
		_ = conn.Close() // it would vote, and count as one who has the entries
		return nil, r.gate.wentBack(id, must, answer.GetLastIndex())
	}
	return conn, nil
}

// addressMark separates the id from the HOST:PORT in an address that Raft's
// configuration has twice otherwise: it takes no two members with one address, but a
// member may be down whose address another one has now.
const addressMark = "@"

// raftAddress is a replica's address as Raft's configuration may hold it.
func raftAddress(id, advertise string, servers []raft.Server) raft.ServerAddress {
	for _, server := range servers {
		if string(server.ID) != id && hostPort(server.Address) == advertise {
			return raft.ServerAddress(id + addressMark + advertise)
		}
	}
	return raft.ServerAddress(advertise)
}

// addressInRaft is raftAddress for the present configuration.
func (r *Replica) addressInRaft(id, advertise string) raft.ServerAddress {
	return raftAddress(id, advertise, r.raft.GetConfiguration().Configuration().Servers)
}

// hostPort returns the HOST:PORT in an address of Raft's configuration.
func hostPort(address raft.ServerAddress) string {
	if _, after, found := strings.Cut(string(address), addressMark); found {
		return after
	}
	return string(address)
}
