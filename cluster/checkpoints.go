package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// checkpointPeriod is how often replicas compare their states (protocol X4).
	checkpointPeriod = time.Minute
	// checkpointSettle is how long after a checkpoint the leader asks for the
	// hashes.
	checkpointSettle = 2 * time.Second
	// stepAsidePause is the wait before a replica that must not lead tries again to
	// hand over.
	stepAsidePause = time.Second
	// stepAsideTries are all it makes; then it stops, and the others elect.
	stepAsideTries = 5
	// keptCheckpoints are remembered.
	keptCheckpoints = 4
)

// checkpoints hash the state at places in the log that all replicas share. State
// machines that differ go unnoticed for years otherwise (hashicorp/consul#8377).
type checkpoints struct {
	mu      sync.Mutex
	hashing bool
	kept    []*slimcppb.StateHash // oldest first
	// distrusted says why this replica's state is not to be used; "" if it is.
	distrusted string
	alarm      string // for the leader's status: states differ, and no majority says which is right
}

// take hashes a state beside Apply; a state that comes while one is being hashed
// is skipped. It is called by the goroutine that applies.
func (c *checkpoints) take(snapshot *fsm.Snapshot, calls *calls) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hashing {
		return
	}
	c.hashing = calls.run(func() {
		hash, info := snapshot.Hash(), snapshot.Info()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hashing = false
		if len(c.kept) == keptCheckpoints {
			c.kept = c.kept[1:]
		}
		c.kept = append(c.kept, &slimcppb.StateHash{
			Generation: info.Generation, Index: info.Index, Version: fsm.HashVersion, Hash: hash[:],
		})
	})
}

func (c *checkpoints) hashes() []*slimcppb.StateHash {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.kept)
}

// Distrusted says why this replica's state must not be served, "" if it may: a
// majority of the voters agree on another one (protocol X4).
func (r *Replica) Distrusted() string {
	r.checkpoints.mu.Lock()
	defer r.checkpoints.mu.Unlock()
	return r.checkpoints.distrusted
}

// distrustedFile keeps the verdict in the data directory: a restart does not make a
// state right.
const distrustedFile = "distrusted"

// distrust takes this replica out of service, for as long as it has this data
// directory.
func (r *Replica) distrust(reason string) {
	r.checkpoints.mu.Lock()
	first := r.checkpoints.distrusted == ""
	r.checkpoints.distrusted = reason
	r.checkpoints.mu.Unlock()
	if !first {
		return
	}
	r.logger.Error("this replica is out of service: remove it, set its data directory aside and let it join anew", "reason", reason)
	if err := writeDurably(filepath.Join(r.options.DataDir, distrustedFile), []byte(reason+"\n")); err != nil {
		r.logger.Error("the verdict on this replica's state could not be kept", "error", err)
	}
	r.readiness.poke()
}

// loadVerdict reads what distrust kept.
func (c *checkpoints) loadVerdict(dataDir string) error {
	if dataDir == "" {
		return nil
	}
	reason, err := os.ReadFile(filepath.Join(dataDir, distrustedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	c.distrusted = cmp.Or(strings.TrimSpace(string(reason)), "its verdict is empty")
	return nil
}

// stepAside has a leader whose state is not to be used hand over, as often as it is
// elected.
func (r *Replica) stepAside(ctx context.Context) {
	for range stepAsideTries {
		err := r.calls.await(ctx, func() error { return r.raft.LeadershipTransfer().Error() })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.logger.Warn("a leader with a wrong state could not hand over", "error", err)
		}
		select {
		case <-time.After(stepAsidePause):
		case <-ctx.Done():
			return
		}
	}
	r.fail(fmt.Errorf("%w: it must not lead", ErrTransferStuck))
}

// Distrust is told to a replica whose state differs from that of the majority, or which
// has lost entries. The latter it sees itself.
func (s service) Distrust(_ context.Context, request *slimcppb.DistrustRequest) (*slimcppb.DistrustResponse, error) {
	if confirmed := request.GetConfirmedIndex(); confirmed != 0 {
		if s.lastIndex() < confirmed {
			s.fenceOff(request.GetReason())
		}
		return &slimcppb.DistrustResponse{}, nil
	}
	s.distrust(request.GetReason())
	return &slimcppb.DistrustResponse{}, nil
}

// runCheckpoints compares the replicas' states while this one leads.
func (r *Replica) runCheckpoints(ctx context.Context, term uint64) {
	ticker := time.NewTicker(r.options.checkpointPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		err := accepted(r.ProposeAsLeader(ctx, term, &slimcppb.Command{
			Payload: &slimcppb.Command_Checkpoint{Checkpoint: &slimcppb.Checkpoint{}},
		}))
		if err != nil {
			r.logger.Warn("no checkpoint", "error", err)
			continue
		}
		select {
		case <-time.After(min(checkpointSettle, r.options.checkpointPeriod)):
		case <-ctx.Done():
			return
		}
		r.compareStates(ctx)
	}
}

// stateOf is what a member's state was at a checkpoint.
type stateOf struct {
	member MemberStatus
	hash   []byte
}

// compareStates looks at the newest checkpoint that most members report.
func (r *Replica) compareStates(ctx context.Context) {
	members := r.describeMembers(ctx)
	states := newestStates(members, r.checkpoints.hashes())
	odd, alarm := judgeStates(states, members)
	r.checkpoints.mu.Lock()
	r.checkpoints.alarm = alarm
	r.checkpoints.mu.Unlock()
	if alarm != "" {
		r.logger.Error("replicas have different states", "states", alarm)
	}
	for _, state := range odd {
		r.expose(ctx, state)
	}
}

// newestStates returns the states at the leader's newest checkpoint. Only hashes
// of one version are compared, and a member may have skipped one.
func newestStates(members []MemberStatus, own []*slimcppb.StateHash) []stateOf {
	for _, wanted := range slices.Backward(own) {
		var states []stateOf
		for _, member := range members {
			for _, hash := range member.Hashes {
				if hash.GetGeneration() == wanted.GetGeneration() && hash.GetIndex() == wanted.GetIndex() && hash.GetVersion() == wanted.GetVersion() {
					states = append(states, stateOf{member: member, hash: hash.GetHash()})
				}
			}
		}
		if len(states) > 1 {
			return states
		}
	}
	return nil
}

// judgeStates returns the members against whose state a majority of the voters
// agree, and, when states differ, a line that says which.
func judgeStates(states []stateOf, members []MemberStatus) (odd []stateOf, alarm string) {
	voters := 0
	for _, member := range members {
		if member.Voter {
			voters++
		}
	}
	var right []byte
	differ := false
	for _, state := range states {
		agreeing := 0
		for _, other := range states {
			if bytes.Equal(state.hash, other.hash) {
				if other.member.Voter {
					agreeing++
				}
			} else {
				differ = true
			}
		}
		if agreeing > voters/2 {
			right = state.hash
		}
	}
	if !differ {
		return nil, ""
	}
	for _, state := range states {
		alarm += fmt.Sprintf("%s %x; ", state.member.ReplicaID, state.hash[:4])
		if right != nil && !bytes.Equal(state.hash, right) {
			odd = append(odd, state)
		}
	}
	return odd, alarm[:len(alarm)-2]
}

// expose takes a member with a wrong state out of service. A leader that is the
// odd one hands over.
func (r *Replica) expose(ctx context.Context, state stateOf) {
	reason := fmt.Sprintf("the state of %s differs from that of a majority", state.member.ReplicaID)
	if state.member.ReplicaID == r.ReplicaID() {
		r.distrust(reason)
		if _, term := r.Leadership(); term != 0 {
			r.leadership.suspend(term)
			r.leadership.resume() // openLeadership steps aside
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	conn, err := r.connTo(state.member.ReplicaID, false)
	if err == nil {
		_, err = slimcppb.NewReplicaServiceClient(conn).Distrust(ctx, &slimcppb.DistrustRequest{Reason: reason})
	}
	if err != nil {
		r.logger.Warn("a replica with a wrong state could not be told", "replica", state.member.ReplicaID, "error", err)
	}
}
