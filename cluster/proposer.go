package cluster

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// MaxCommandBytes bounds an encoded command. Raft holds up heartbeats while
	// it sends an entry, so entries must stay small; longer lists are proposed
	// in pieces.
	MaxCommandBytes = 512 << 10
	// maxEntryCommands and maxEntryBytes bound what shares one log entry. An
	// entry of one command may be longer by its stamp.
	maxEntryCommands = 256
	maxEntryBytes    = MaxCommandBytes
	// maxFillBytes is what encode may add to a command.
	maxFillBytes = 32
	// maxEntriesInFlight entries are with Raft at a time; what comes meanwhile
	// gathers for the next one. More of them are smaller, and each costs a write to
	// three disks: with 64 callers on one machine two were 9 % slower.
	maxEntriesInFlight = 1
	// enqueueTimeout bounds the hand-over to Raft. Its queue holds more than
	// maxEntriesInFlight, so it is never reached.
	enqueueTimeout = 5 * time.Second

	// entryCommands is the field of slimcp.v1.Entry that holds its commands.
	entryCommands protowire.Number = 1
)

// outcome is what became of a proposal.
type outcome struct {
	result fsm.Result
	err    error
}

// proposal is a command on its way into the log.
type proposal struct {
	encoded []byte
	// leaderStart proposals open a leadership; all others wait for them.
	leaderStart bool
	element     *list.Element // in the queue; nil once handed over
	done        chan outcome  // holds one value
}

// proposer puts commands that wait together into one log entry. One goroutine,
// run, stamps them and hands them to Raft.
type proposer struct {
	raft  *raft.Raft
	store *fsm.Store
	now   func() time.Time
	// leads returns nil while this replica's leadership has started its work.
	leads func() error

	admission admission
	slots     chan struct{} // one token for each entry with Raft
	wake      chan struct{} // holds a token while the queue may not be empty
	stopped   chan struct{} // closed by stop
	abandoned chan struct{} // closed by abandon
	running   sync.WaitGroup

	stamped time.Time // the last time given out; owned by run

	// handing is held from the check that this replica leads to the hand-over to Raft.
	handing sync.Mutex

	mu    sync.Mutex
	queue list.List // of *proposal
	cause error     // of stop or abandon
}

func newProposer(r *raft.Raft, store *fsm.Store, now func() time.Time, leads func() error) *proposer {
	p := &proposer{
		raft: r, store: store, now: now, leads: leads,
		slots:     make(chan struct{}, maxEntriesInFlight),
		wake:      make(chan struct{}, 1),
		stopped:   make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	p.running.Go(p.run)
	return p
}

// proposeEncoded puts an encoded command into the queue, when there is room, and
// waits for its outcome.
func (p *proposer) proposeEncoded(ctx context.Context, encoded []byte) (fsm.Result, error) {
	if len(encoded) > MaxCommandBytes+maxFillBytes {
		return fsm.Result{}, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(encoded))
	}
	if err := p.admission.acquire(ctx, len(encoded), true); err != nil {
		return fsm.Result{}, err
	}
	return p.await(ctx, &proposal{encoded: encoded})
}

// start proposes a command that opens a leadership: past the queue's bounds,
// which what waits for a leader may have filled.
func (p *proposer) start(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	encoded, err := p.encode(command)
	if err != nil {
		return fsm.Result{}, err
	}
	return p.await(ctx, &proposal{encoded: encoded, leaderStart: true})
}

// checkCommand refuses what must not enter the log: applied, it would stop every
// replica that does not know it, at each start again.
func (p *proposer) checkCommand(command *slimcppb.Command) error {
	if command.GetPayload() == nil {
		return fmt.Errorf("%w: it has no payload that this version knows", ErrInvalidCommand)
	}
	if usable := max(1, p.store.View().ActiveSchema()); command.GetSchema() > usable {
		return fmt.Errorf("%w: it needs schema %d, the cluster uses %d", ErrInvalidCommand, command.GetSchema(), usable)
	}
	return nil
}

// checkForwarded is checkCommand for what another replica has encoded. What only a
// leader proposes is never forwarded (protocol X1).
func (p *proposer) checkForwarded(encoded []byte) error {
	command := &slimcppb.Command{}
	if err := proto.Unmarshal(encoded, command); err != nil {
		return fmt.Errorf("%w: it cannot be read", ErrInvalidCommand)
	}
	if command.GetTerm() != 0 {
		return fmt.Errorf("%w: it was decided by the leader of term %d and forwarded", ErrInvalidCommand, command.GetTerm())
	}
	return p.checkCommand(command)
}

// encode checks and encodes a command. Generation and schema are filled in if
// they are missing.
func (p *proposer) encode(command *slimcppb.Command) ([]byte, error) {
	if err := p.checkCommand(command); err != nil {
		return nil, err
	}
	encoded, err := proto.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidCommand, err)
	}
	if len(encoded) > MaxCommandBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are accepted", ErrTooLarge, len(encoded), MaxCommandBytes)
	}
	missing := &slimcppb.Command{}
	if command.GetSchema() == 0 {
		missing.Schema = max(1, p.store.View().ActiveSchema())
	}
	if command.GetGeneration() == 0 {
		missing.Generation = p.store.View().Generation()
	}
	return appendFields(encoded, missing)
}

// appendFields sets further scalar fields of an encoded command: encodings of
// one message type merge when they are put one after the other, and the last
// value of a scalar field counts.
func appendFields(encoded []byte, fields *slimcppb.Command) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(encoded, fields)
}

// await queues a proposal and waits for its outcome.
func (p *proposer) await(ctx context.Context, waiting *proposal) (fsm.Result, error) {
	waiting.done = make(chan outcome, 1)
	if err := p.enqueue(waiting); err != nil {
		p.release(waiting)
		return fsm.Result{}, err
	}
	select {
	case out := <-waiting.done:
		return out.result, out.err
	case <-ctx.Done():
		return p.giveUp(waiting, fmt.Errorf("no answer in time: %w", ctx.Err()))
	case <-p.abandoned:
		return p.giveUp(waiting, p.stopCause())
	}
}

func (p *proposer) enqueue(waiting *proposal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return p.cause
	}
	waiting.element = p.queue.PushBack(waiting)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// giveUp ends the wait for a proposal. One that is still in the queue is taken
// out, so that it is surely not proposed.
func (p *proposer) giveUp(waiting *proposal, cause error) (fsm.Result, error) {
	if p.withdraw(waiting) {
		p.release(waiting)
		return fsm.Result{}, fmt.Errorf("not proposed: %w", cause)
	}
	select {
	case out := <-waiting.done:
		return out.result, out.err
	default:
		return fsm.Result{}, &UnknownOutcomeError{Cause: cause}
	}
}

// withdraw takes a proposal out of the queue; false if it was handed over.
func (p *proposer) withdraw(waiting *proposal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waiting.element == nil {
		return false
	}
	p.queue.Remove(waiting.element)
	waiting.element = nil
	return true
}

func (p *proposer) release(done *proposal) {
	if !done.leaderStart {
		p.admission.release(len(done.encoded))
	}
}

// stop refuses further proposals and those in the queue, with the cause. Entries
// that are with Raft are answered; drain waits for them.
func (p *proposer) stop(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stopped:
		return
	default:
	}
	p.cause = cause
	p.admission.close(cause)
	close(p.stopped)
	for e := p.queue.Front(); e != nil; e = p.queue.Front() {
		waiting := e.Value.(*proposal)
		p.queue.Remove(e)
		waiting.element = nil
		waiting.done <- outcome{err: cause}
		p.release(waiting)
	}
}

// abandon is stop for a Raft that will not answer: whoever waits for an entry
// learns that its outcome is unknown. It is called at most once.
func (p *proposer) abandon(cause error) {
	p.stop(cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cause = cause
	close(p.abandoned)
}

func (p *proposer) stopCause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// drain waits for the entries that are with Raft. The proposer was stopped.
func (p *proposer) drain() { p.running.Wait() }

func (p *proposer) run() {
	for {
		select {
		case p.slots <- struct{}{}:
		case <-p.stopped:
			return
		}
		batch := p.next()
		if batch == nil {
			return
		}
		p.handOver(batch)
	}
}

// next waits for proposals and takes as many as fit into one entry; nil once
// the proposer was stopped.
func (p *proposer) next() []*proposal {
	for {
		if batch := p.take(); len(batch) > 0 {
			return batch
		}
		select {
		case <-p.wake:
		case <-p.stopped:
			return nil
		}
	}
}

func (p *proposer) take() []*proposal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return nil
	}
	return takeBatch(&p.queue)
}

// takeBatch removes from a queue of proposals as many as fit into one entry. The
// queue's lock is held.
func takeBatch(queue *list.List) []*proposal {
	var batch []*proposal
	size := 0
	for e := queue.Front(); e != nil && len(batch) < maxEntryCommands; e = queue.Front() {
		waiting := e.Value.(*proposal)
		if size += len(waiting.encoded); size > maxEntryBytes && len(batch) > 0 {
			break
		}
		queue.Remove(e)
		waiting.element = nil
		batch = append(batch, waiting)
	}
	return batch
}

// handOver gives a batch to Raft as one entry. The slot is freed when the
// outcome is known.
func (p *proposer) handOver(batch []*proposal) {
	p.handing.Lock()
	defer p.handing.Unlock()
	batch = p.refuseEarly(batch)
	entry, err := p.stamp(batch)
	if err != nil || len(batch) == 0 {
		p.finish(batch, nil, err)
		return
	}
	future := p.raft.ApplyLog(raft.Log{Data: entry}, enqueueTimeout)
	p.running.Go(func() {
		err := future.Error()
		if err != nil {
			p.finish(batch, nil, p.classify(err))
			return
		}
		results, _ := future.Response().([]fsm.Result)
		p.finish(batch, results, nil)
	})
}

// settle returns when every proposal that was found to be of a leadership before the
// call is with Raft, so that a barrier behind it is behind them all.
func (p *proposer) settle() {
	p.handing.Lock()
	defer p.handing.Unlock()
}

// refuseEarly refuses what comes while no leadership has started its work:
// LeaderStarted is the first command of a leadership (protocol X2).
func (p *proposer) refuseEarly(batch []*proposal) []*proposal {
	err := p.leads()
	if err == nil {
		return batch
	}
	var starts []*proposal
	for _, waiting := range batch {
		if waiting.leaderStart {
			starts = append(starts, waiting)
			continue
		}
		waiting.done <- outcome{err: err}
		p.release(waiting)
	}
	return starts
}

// stamp encodes the log entry: each command with the leader's time and a seed
// (protocol D6). The time never goes back.
func (p *proposer) stamp(batch []*proposal) ([]byte, error) {
	p.stamped = latest(p.now(), p.stamped, p.store.View().Clock())
	var entry []byte
	for _, waiting := range batch {
		command, err := appendFields(waiting.encoded, &slimcppb.Command{
			TimeUnixNanos: p.stamped.UnixNano(),
			Seed:          rand.Uint64(),
		})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidCommand, err)
		}
		entry = protowire.AppendTag(entry, entryCommands, protowire.BytesType)
		entry = protowire.AppendBytes(entry, command)
	}
	return entry, nil
}

func latest(times ...time.Time) time.Time {
	newest := times[0]
	for _, t := range times[1:] {
		if t.After(newest) {
			newest = t
		}
	}
	return newest
}

// finish hands out the outcome of a batch and frees its slot. Without an error
// there is a result for each proposal, or the entry was not applied here.
func (p *proposer) finish(batch []*proposal, results []fsm.Result, err error) {
	<-p.slots
	if err == nil && len(results) != len(batch) {
		err = &UnknownOutcomeError{Cause: errors.New("the entry was not applied by this replica")}
	}
	for i, waiting := range batch {
		out := outcome{err: err}
		if err == nil {
			out.result = results[i]
		}
		waiting.done <- out
		p.release(waiting)
	}
}

// classify tells what surely did not enter the log from what may have.
func (p *proposer) classify(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if err := p.leads(); err != nil {
			return err
		}
		return ErrNoLeader
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrOverloaded
	default:
		// Leadership lost, shut down, or the disk failed in the middle.
		return &UnknownOutcomeError{Cause: err}
	}
}
