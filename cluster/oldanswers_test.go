package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster"
)

// B-13: an answer to a heartbeat confirms a read that began after it was sent: by a
// process that stood still meanwhile, while another one was elected.
func TestReadIsNotConfirmedByAnOldAnswer(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]bool{"as it is": false, "with VerifyLeader": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if stale := readsAfterAPause(t, without); stale != without {
					t.Errorf("what was answered elsewhere is missing in a read: %t", stale)
				}
			})
		})
	}
}

// readsAfterAPause makes a leader miss an election, as one that stands still, and
// reports whether it reads a state that lacks what the next leader answered.
func readsAfterAPause(t *testing.T, without bool) (stale bool) {
	t.Helper()
	e := newEnsemble(t)
	e.network.pipes = map[string]*pipeListener{}
	answers := &heldAnswers{}
	for _, name := range []string{"a", "b", "c"} {
		e.start(name, func(o *cluster.Options) {
			o.Timings = cluster.Timings{Heartbeat: time.Second, Election: time.Second, LeaderLease: time.Second}
			if without {
				*o = o.Without(cluster.WithoutReadConfirmation)
			}
			*o = o.WithTransport(func(t cluster.PeerTransport) cluster.PeerTransport {
				return pausedTransport{PeerTransport: t, answers: answers, paused: name == "a"}
			})
		})
	}
	e.unite("a", "b", "c")
	e.waitVoters("a", "b", "c")
	e.transfer("a")
	<-time.After(10 * time.Second) // until none of them has anything to say
	a, b := e.replicas["a"], e.replicas["b"]

	answers.hold()
	defer answers.deliver(true)
	if without { // so that both answer one more heartbeat
		a.Raft().VerifyLeader()
	}
	synctest.Wait()
	answers.elect()
	transfer := a.Raft().LeadershipTransferToServer(raft.ServerID(b.ReplicaID()), "b:1")
	eventually(t, "b leads", func() bool { leading, _ := b.Leadership(); return leading })
	propose(t, b, register(7))
	if leading, _ := a.Leadership(); !leading {
		t.Fatal("the former leader knows of it")
	}
	read := make(chan bool, 1)
	go func() {
		view, err := a.Read(t.Context())
		read <- err == nil && !hasNode(view, 7)
	}()
	synctest.Wait() // the read waits for a confirmation
	answers.deliver(false)
	synctest.Wait()
	answers.deliver(true)
	_ = transfer.Error()
	return <-read
}

// heldAnswers holds back what a leader is answered: what came before an election and
// what came after it.
type heldAnswers struct {
	mu            sync.Mutex
	before, after chan struct{} // closed: delivered; nil: not held
	elected       bool
}

func (h *heldAnswers) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before, h.after = make(chan struct{}), make(chan struct{})
}

func (h *heldAnswers) elect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elected = true
}

// deliver hands out what came before the election, or all.
func (h *heldAnswers) deliver(all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range []*chan struct{}{&h.before, &h.after} {
		if *held != nil {
			close(*held)
			*held = nil
		}
		if !all {
			return
		}
	}
}

// wait returns when what came now is delivered.
func (h *heldAnswers) wait() {
	h.mu.Lock()
	held := h.before
	if h.elected {
		held = h.after
	}
	h.mu.Unlock()
	if held != nil {
		<-held
	}
}

// cut reports whether others do not reach the paused leader.
func (h *heldAnswers) cut() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.after != nil
}

// pausedTransport is that of a leader which stands still, or of the others, who do
// not reach it meanwhile.
type pausedTransport struct {
	cluster.PeerTransport
	answers *heldAnswers
	paused  bool
}

func (p pausedTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (p pausedTransport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	if err := p.reach(target); err != nil {
		return err
	}
	err := p.PeerTransport.AppendEntries(id, target, request, response)
	if p.paused {
		p.answers.wait()
	}
	return err
}

func (p pausedTransport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse,
) error {
	if err := p.reach(target); err != nil {
		return err
	}
	return p.PeerTransport.RequestVote(id, target, request, response)
}

func (p pausedTransport) reach(target raft.ServerAddress) error {
	if !p.paused && target == "a:1" && p.answers.cut() {
		return errors.New("it does not answer")
	}
	return nil
}

// slowVotes is a disk on which the write of a vote takes as long as a test wants.
type slowVotes struct {
	raft.StableStore
	mu     sync.Mutex
	armed  bool
	begun  chan struct{} // closed when a vote is being written
	finish chan struct{} // closed: it is written
}

func (s *slowVotes) wrap(store raft.StableStore) raft.StableStore {
	s.StableStore = store
	return s
}

func (s *slowVotes) Set(key, value []byte) error {
	s.mu.Lock()
	held := s.armed && string(key) == "LastVoteCand"
	s.armed = s.armed && !held
	s.mu.Unlock()
	if held {
		close(s.begun)
		<-s.finish
	}
	return s.StableStore.Set(key, value)
}

func (s *slowVotes) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = true
}

// B-13: a former leader is in the next term, and does not yet know that it leads no
// more. The others are in that term too, and confirm nothing by it.
func TestReadIsNotConfirmedInTheNextTerm(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	votes := &slowVotes{begun: make(chan struct{}), finish: make(chan struct{})}
	defer close(votes.finish)
	patient := func(o *cluster.Options) { o.Peers.Autopilot.StabilizationTime = time.Hour }
	e.start("a", patient, func(o *cluster.Options) { *o = o.WithStable(votes.wrap) })
	for _, name := range []string{"b", "c", "d"} {
		e.start(name, patient)
	}
	e.unite("a", "b", "c", "d")
	e.promote("b")
	e.promote("c")
	e.transfer("a")
	waitReady(t, e.replicas["d"])
	thaw := e.network.freezeLink("b", "d") // d does not hear of the next leader
	defer thaw()
	votes.arm()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { _, _ = e.replicas["a"].TransferLeadership(ctx, "b") }()
	<-votes.begun
	eventually(t, "b leads", func() bool { leading, _ := e.replicas["b"].Leadership(); return leading })
	propose(t, e.replicas["b"], register(7))
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if view, err := e.replicas["d"].Read(short); err == nil && !hasNode(view, 7) {
		t.Errorf("a read at index %d lacks what was answered", view.Index())
	}
}
