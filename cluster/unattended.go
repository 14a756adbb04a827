package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/logging"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// pledgeTime is how long a replica waits for the one that it promised to let form
// the cluster.
const pledgeTime = 15 * time.Second

// pledge is a promise not to form a cluster, so that of several replicas that
// start together one does.
type pledge struct {
	replicaID string
	until     time.Time
}

// pledge grants the request of another replica to form the cluster, unless this
// one is in one or has promised that to somebody else.
func (r *Replica) pledge(ctx context.Context, request *slimcppb.PledgeRequest) (granted bool, reason string) {
	if err := r.members.lock(ctx); err != nil {
		return false, err.Error()
	}
	defer r.members.unlock()
	now := time.Now()
	switch held := r.members.pledged; {
	case r.identity.allegiance() != "" || len(r.Members()) > 0:
		return false, fmt.Sprintf("%s is a member of a cluster", r.ReplicaID())
	case int(request.GetBootstrapExpect()) != r.options.Peers.BootstrapExpect:
		return false, fmt.Sprintf("%s expects %d replicas", r.ReplicaID(), r.options.Peers.BootstrapExpect)
	case held.replicaID != "" && held.replicaID != request.GetReplicaId() && now.Before(held.until):
		return false, fmt.Sprintf("%s waits for %s", r.ReplicaID(), held.replicaID)
	}
	r.members.pledged = pledge{replicaID: request.GetReplicaId(), until: now.Add(pledgeTime)}
	return true, ""
}

// unattended forms or joins a cluster by what the configuration says. One
// goroutine uses it.
type unattended struct {
	*Replica
	waits hclog.Logger // limited: it tries every few seconds, for hours if need be
}

func newUnattended(r *Replica) *unattended {
	return &unattended{Replica: r, waits: logging.Limit(r.logger, hclog.Info)}
}

// try looks for a cluster to join, else, with bootstrap_expect, for enough
// replicas to form one. Names are resolved each time. It never forms a cluster
// where there is state, or where one of the others is a member: that would leave
// two (hashicorp/raft#122, seaweedfs/seaweedfs#10880).
func (u *unattended) try(ctx context.Context) {
	if len(u.options.Peers.Join) == 0 {
		return
	}
	others := map[string]string{} // addresses by replica id
	met := false                  // a member of a cluster
	for _, address := range u.options.Peers.Join {
		description, err := u.describeAddress(ctx, address)
		switch {
		case err != nil:
			u.waits.Info("waiting for a cluster: no answer", "address", address, "error", err)
		case description.GetReplicaId() == u.ReplicaID():
		case description.GetClusterId() != "":
			met = true
			if err := u.Join(ctx, address); err != nil {
				u.waits.Info("waiting for a cluster: cannot join", "address", address, "error", err)
				continue
			}
			return
		default:
			others[description.GetReplicaId()] = address
		}
	}
	expect := u.options.Peers.BootstrapExpect
	if met || u.identity.allegiance() != "" || expect == 0 || !u.first(others) {
		return
	}
	if len(others)+1 < expect {
		u.waits.Info("waiting for a cluster: too few replicas", "found", len(others)+1, "expected", expect)
		return
	}
	u.form(ctx, others)
}

// first reports whether this replica's id is the smallest: only that one forms
// the cluster, so that the others need not give way.
func (u *unattended) first(others map[string]string) bool {
	for id := range others {
		if id < u.ReplicaID() {
			return false
		}
	}
	return true
}

// form makes this replica the first member once all the others have promised to
// wait for it. They join it then.
func (u *unattended) form(ctx context.Context, others map[string]string) {
	request := &slimcppb.PledgeRequest{ReplicaId: u.ReplicaID(), BootstrapExpect: uint32(u.options.Peers.BootstrapExpect)}
	if granted, reason := u.pledge(ctx, request); !granted {
		u.waits.Info("waiting for a cluster: this replica does not form one", "reason", reason)
		return
	}
	for id, address := range others {
		ctx, cancel := context.WithTimeout(ctx, reachTimeout)
		conn, err := u.connAt(address)
		var response *slimcppb.PledgeResponse
		if err == nil {
			response, err = slimcppb.NewReplicaServiceClient(conn).Pledge(ctx, request)
		}
		cancel()
		if err != nil || !response.GetGranted() {
			u.waits.Info("waiting for a cluster: another replica forms one, or does not answer", "replica", id, "reason", response.GetReason(), "error", err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pledgeTime/2)
	defer cancel()
	if err := u.bootstrap(ctx); err != nil {
		u.waits.Info("waiting for a cluster: cannot form one", "error", err)
	}
}
