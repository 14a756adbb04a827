package cluster

import (
	"context"
	"time"

	"google.golang.org/grpc/connectivity"
)

// missesLeaderAfter is for how long a follower hears a leader that it cannot call,
// until it says so.
const missesLeaderAfter = probePeriod

// problemMissesLeader is what the status says of such a follower.
const problemMissesLeader = "it hears the leader, and cannot call it"

// watchCalls notices that this replica cannot call the leader that it hears: Raft needs
// only the leader's calls, and goes on. Proposals, reads and all that nodes need go the
// other way. The leader's address may lead elsewhere.
func (r *Replica) watchCalls(ctx context.Context) {
	ticker := time.NewTicker(probeTick)
	defer ticker.Stop()
	known, since, last := "", time.Now(), time.Now()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now, leader := time.Now(), r.leaderID()
		stoodStill := now.Sub(last) > probeTick+maxLateTick
		hears := leader != "" && leader != r.ReplicaID() && now.Sub(r.raft.LastContact()) < maxHealthyContact
		if leader != known || stoodStill || !hears || r.connected(leader) {
			known, since = leader, now
		}
		last = now
		if now.Sub(since) < missesLeaderAfter {
			r.missed.Store(nil)
		} else {
			r.missed.Store(&leader)
		}
	}
}

// misses reports whether this replica hears a leader and cannot call it.
func (r *Replica) misses(leader string) bool {
	missed := r.missed.Load()
	return missed != nil && *missed == leader
}

// connected reports whether the connection for calls to a replica stands. If it does
// not, it is made.
func (r *Replica) connected(id string) bool {
	conn, err := r.connTo(id, false)
	if err != nil {
		return false
	}
	conn.Connect()
	return conn.GetState() == connectivity.Ready
}

// missed reports whether most voters hear a leader and cannot call it.
func missed(members []MemberStatus, leader string) bool {
	voters, missing := 0, 0
	for _, member := range members {
		if member.Voter {
			voters++
			if member.missesLeader && member.follows == leader {
				missing++
			}
		}
	}
	return missing > voters/2
}

// handOverIfMissed has somebody else lead whom the others can call. The target is one
// that this leader can call.
func (p *pilot) handOverIfMissed(members []MemberStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handingOver || !missed(members, p.ReplicaID()) {
		return
	}
	p.handingOver = p.calls.run(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.handingOver = false
		}()
		p.logger.Warn("most voters hear this leader and cannot call it, it hands over", "address", p.options.Peers.Advertise)
		if _, err := p.TransferLeadership(p.ctx, ""); err != nil && p.ctx.Err() == nil {
			p.logger.Warn("nobody took over", "error", err)
		}
	})
}
