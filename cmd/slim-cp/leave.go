package main

import (
	"context"
	"fmt"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
)

// releaseTimeout bounds the wait for the leader to let this replica go.
const releaseTimeout = 10 * time.Second

// memberWithNodes is the replica as operators' calls see it: its nodes go before it
// does.
type memberWithNodes struct {
	*cluster.Replica
	process *process
}

// Leave removes this replica from its cluster, for good. Its nodes are sent
// elsewhere first, as when it stops: the removal ends their sessions, and nodes
// whose streams live on would be given up while they are connected. What can be
// known to be refused is refused before that. From then on it goes on without the
// caller.
func (m memberWithNodes) Leave(ctx context.Context) error {
	p := m.process
	if p.settings.Cluster == nil || m.Err() != nil || !p.isMember() {
		return m.Replica.Leave(ctx)
	}
	if leading, _ := m.Leadership(); leading {
		if _, err := m.TransferLeadership(ctx, ""); err != nil {
			return err
		}
	}
	if err := m.MayLeave(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout+releaseTimeout)
	defer cancel()
	if err := p.drainNodes(ctx); err != nil {
		p.logger.Warn("leaving although nodes are still connected", "error", err)
	}
	if err := m.Replica.Leave(ctx); err != nil {
		return fmt.Errorf("%w (its nodes were sent elsewhere: repeat the command, or restart the replica to keep it)", err)
	}
	return nil
}
