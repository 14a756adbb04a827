package southbound

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// lastWordsTimeout bounds the proposing of what a node said before its stream
// ended.
const lastWordsTimeout = time.Second

// proposals is what one stream puts into the log, one at a time and in order
// (protocol S3). One goroutine owns it.
type proposals struct {
	*stream
	// exposed: the present session's registration may be in the log.
	exposed bool
	// admitted: Apply accepted the node's token under an earlier name.
	admitted bool
	epoch    uint64
	sequence uint64
	// inFlight is proposed again, under the same number, until its outcome is
	// known; numbered says that it has a number of the present session.
	inFlight *batch
	numbered bool
	flapping flapping
}

// outcome says why publishing stopped.
type outcome int

const (
	idle    outcome = iota // nothing waits
	lost                   // the state does not have the session
	over                   // the node is leaving: nothing more of it counts
	stopped                // the context ended
)

// propose registers the stream's session, then proposes what the node says. When
// the state loses the session while the stream lives, it registers another one
// (protocol S5). At the end of the stream it ends the session.
func (st *stream) propose() {
	p := &proposals{stream: st}
	for p.register() && p.publish(st.ctx) {
		p.rename()
		st.service.stats.replaced.Add(1)
	}
	<-st.ctx.Done()
	p.finish()
	st.service.parted(st)
}

// register returns true once the session is in the state and visible here. The
// same name is proposed until the outcome is known (protocol S2).
func (p *proposals) register() bool {
	s, retry := p.service, backoff{}
	for {
		result, err := s.propose(p.ctx, p.registerCommand())
		p.exposed = p.exposed || err == nil || errors.Is(err, cluster.ErrUnknownOutcome)
		switch {
		case err == nil && result.Err == nil:
			if s.store.WaitApplied(p.ctx, result.Index) != nil {
				return false
			}
			p.epoch, p.sequence = result.Epoch, 0
			p.setCommitted()
			return true
		case err == nil && errors.Is(result.Err, fsm.ErrSessionEnded):
			// The name was declared lost before its registration came, or after one
			// whose outcome was not told.
			if s.store.WaitApplied(p.ctx, result.Index) != nil {
				return false
			}
			p.admitted = p.admitted || p.wasAdmitted()
			p.rename()
		case err == nil && errors.Is(result.Err, fsm.ErrUnjudged):
			// The log itself says so: no leader need confirm what this view refuses.
			if s.store.WaitApplied(p.ctx, result.Index) != nil {
				return false
			}
			if reason := p.judge(s.store.View()); reason != nil {
				p.refused <- reason
				return false
			}
		case err == nil && !retriable(result.Err):
			p.refused <- result.Err
			return false
		case permanent(err):
			p.log.Warn("registration cannot be proposed", "error", err)
			p.refused <- err
			return false
		}
		if !retry.wait(p.ctx) {
			return false
		}
	}
}

// permanent reports whether a proposal can never succeed.
func permanent(err error) bool {
	return errors.Is(err, cluster.ErrTooLarge) || errors.Is(err, cluster.ErrInvalidCommand)
}

func (p *proposals) registerCommand() *slimcppb.Command {
	name := p.sessionName()
	p.mu.Lock()
	defer p.mu.Unlock()
	judged := p.everCommitted || p.admitted
	var epoch uint64
	if p.provisional && !judged {
		epoch = p.registration.appliedIndex
	}
	return p.registration.build(name, p.provisional || judged, epoch)
}

// wasAdmitted reports whether the node's token opened the session that was lost:
// another one of the same stream is no replay (protocol S5).
func (p *proposals) wasAdmitted() bool {
	hash := string(p.registration.command.GetTokenHash())
	view, ever := p.service.store.View(), time.Time{}
	return view.TokenUsed(hash, fsm.SessionName{}, ever) && !view.TokenUsed(hash, p.sessionName(), ever)
}

// claimRest tells of the links that the registration had no room for.
func (st *stream) claimRest() {
	notice := uuid.NewString()
	for _, id := range st.registration.unreported {
		st.put(func() bool { return st.pending.addClaim(id, notice) })
	}
}

func (p *proposals) setCommitted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = true
	p.service.stats.registrations.Add(1)
	if !p.everCommitted {
		p.everCommitted = true
		close(p.committed)
	}
}

// rename gives the stream another session.
func (p *proposals) rename() {
	s := p.service
	s.mu.Lock()
	old := p.name
	p.name = s.drawName()
	name := p.name
	delete(s.names, old)
	s.names[name] = p.stream
	_, callable := s.sessions[old]
	if callable {
		delete(s.sessions, old)
		s.sessions[name] = p.stream
		if !p.first.answer.answered() {
			p.firstOf = name
		}
	}
	s.mu.Unlock()
	p.mu.Lock()
	p.registered = false
	p.mu.Unlock()
	p.exposed, p.numbered = false, false
	if callable {
		p.log.Warn("session of a live stream was lost, registering it again", "lost", old.Counter, "session", name.Counter)
		s.sessionEnded(p.registration.nodeID, old)
		s.sessionReady(p.registration.nodeID, name)
	}
}

// publish proposes what the node says until the stream ends. It returns true if
// the stream needs a new session.
func (p *proposals) publish(ctx context.Context) bool {
	for {
		switch p.publishPending(ctx) {
		case lost:
			return true
		case over:
			p.setEnding()
			return false
		case stopped:
			return false
		}
		select {
		case <-p.pending.ready:
		case <-p.sessionLost:
			if p.needsSession() {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// publishPending proposes until nothing waits.
func (p *proposals) publishPending(ctx context.Context) outcome {
	for {
		if p.inFlight == nil {
			if !p.slow(ctx) {
				return stopped
			}
			p.inFlight = p.pending.take(p.announces)
			if p.inFlight == nil {
				return idle
			}
			p.flapping.charge(p.inFlight.flapBytes)
		}
		if result := p.proposeBatch(ctx); result != idle {
			return result
		}
		p.inFlight, p.numbered = nil, false
	}
}

// announces reports whether the state has all that an announcement could tell:
// that the node announces the name, by this session or a newer one, more than
// once, and that nobody doubts it (protocol N5, N7). An audit may be about to
// remove the name, though, if it is not told that the node said it again.
func (p *proposals) announces(name fsm.Name) bool {
	if p.audited() {
		return false
	}
	record, ok := p.service.store.View().NameRecord(name)
	if !ok {
		return false
	}
	for _, announcer := range record.Announcers {
		if announcer.NodeID == p.registration.nodeID {
			return announcer.Epoch >= p.epoch && announcer.Repeated && announcer.DoubtedAt == 0
		}
	}
	return false
}

// proposeBatch returns idle when the batch in flight is settled.
func (p *proposals) proposeBatch(ctx context.Context) outcome {
	if !p.numbered {
		p.sequence++
		p.numbered = true
	}
	s, retry := p.service, backoff{}
	command := p.batchCommand()
	for {
		result, err := s.propose(ctx, command)
		switch {
		case permanent(err):
			p.log.Warn("dropped what a node said: it cannot be proposed", "error", err)
			return idle
		case err != nil, retriable(result.Err):
		case errors.Is(result.Err, fsm.ErrUnknownSession):
			if s.store.WaitApplied(ctx, result.Index) != nil {
				return stopped
			}
			if p.needsSession() {
				return lost
			}
			return over
		case errors.Is(result.Err, fsm.ErrSessionEnded):
			return over
		default: // a number that was passed is that of an earlier try
			p.count()
			if s.store.WaitApplied(ctx, result.Index) != nil {
				return stopped
			}
			return idle
		}
		if !retry.wait(ctx) {
			return stopped
		}
	}
}

func (p *proposals) batchCommand() *slimcppb.Command {
	session := p.sessionName().Proto()
	if p.inFlight.linkID != "" {
		return &slimcppb.Command{Payload: &slimcppb.Command_ClaimLink{ClaimLink: &slimcppb.ClaimLink{
			Session: session, Sequence: p.sequence, LinkId: p.inFlight.linkID, MessageId: p.inFlight.messageID,
		}}}
	}
	return &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: session, Sequence: p.sequence, Changes: p.inFlight.changes,
	}}}
}

func (p *proposals) count() {
	if p.inFlight.linkID != "" {
		p.service.stats.claims.Add(1)
	}
	p.service.stats.announcements.Add(uint64(len(p.inFlight.changes)))
}

// finish proposes the last words of a node whose stream has ended, such as the
// withdrawals of one that stops, and then the end of its session. A registration
// that was surely never proposed needs no end.
func (p *proposals) finish() {
	if !p.exposed {
		return
	}
	<-p.unread // gRPC has ended the reader; what it read still counts
	if p.isRegistered() && !p.service.isDraining() {
		ctx, cancel := context.WithTimeout(p.service.background, lastWordsTimeout)
		p.publishPending(ctx)
		cancel()
	}
	p.service.losses.add(p.sessionName())
}

// proposeDeregister marks the node as leaving. ok is false if the stream ended
// first.
func (st *stream) proposeDeregister() (success, ok bool) {
	select {
	case <-st.committed:
	case <-st.ctx.Done():
		return false, false
	}
	retry := backoff{}
	for {
		result, err := st.service.propose(st.ctx, &slimcppb.Command{
			Payload: &slimcppb.Command_DeregisterNode{DeregisterNode: &slimcppb.DeregisterNode{
				Session: st.sessionName().Proto(),
			}},
		})
		if err == nil && !retriable(result.Err) {
			return result.Err == nil, true
		}
		if !retry.wait(st.ctx) {
			return false, false
		}
	}
}

func (st *stream) sessionName() fsm.SessionName {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.name
}

func (st *stream) isRegistered() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.registered
}

// needsSession reports whether the state lost the session of a stream that lives
// on (protocol S5). It may be called by any goroutine.
func (st *stream) needsSession() bool {
	name := st.sessionName()
	st.mu.Lock()
	wanted := st.registered && !st.ending && !st.closed
	st.mu.Unlock()
	if !wanted {
		return false
	}
	// Read after registered: the view holds the registration.
	view := st.service.store.View()
	if _, ok := view.SessionNode(name); ok {
		return false
	}
	node, ok := view.Node(st.registration.nodeID)
	return !ok || node.State != fsm.NodeLeaving
}

// follow watches the state for sessions that it lost.
func (s *Service) follow(feed *fsm.Feed) {
	defer feed.Close()
	for {
		changes, _, err := feed.Next(s.background)
		if err != nil {
			return
		}
		for _, st := range s.streamsOf(changes) {
			if st.needsSession() {
				notify(st.sessionLost)
			}
		}
	}
}

// streamsOf returns the streams of nodes that changed.
func (s *Service) streamsOf(changes fsm.Changes) []*stream {
	if !changes.All && len(changes.Nodes) == 0 {
		return nil
	}
	changed := make(map[string]struct{}, len(changes.Nodes))
	for _, id := range changes.Nodes {
		changed[id] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var streams []*stream
	for _, st := range s.sessions {
		if _, ok := changed[st.registration.nodeID]; ok || changes.All {
			streams = append(streams, st)
		}
	}
	return streams
}
