package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Replica is one Raft replica, alone or one of several. All methods may be called by any goroutine.
type Replica struct {
	options  Options
	logger   hclog.Logger
	store    *fsm.Store
	identity *identity
	bootID   string

	storage      *storage
	logWrites    logWrites
	reloading    sync.Mutex // held while the library's settings change
	raft         *raft.Raft
	proposer     *proposer
	leadership   *leadership
	readiness    *readiness
	calls        calls
	verification verification
	remoteIndex  verification  // of the leader's read index
	snapshotting chan struct{} // holds a token while a snapshot is being written

	// Of one of several replicas only.
	network      *network
	forwarder    *forwarder
	seenPeers    seenPeers
	certificates certificates
	addresses    addresses
	gate         *gate
	members      members
	restoring    sync.Mutex // held while a snapshot is received and installed
	noteRemoval  sync.Once  // that this replica was removed
	checkpoints  checkpoints
	health       health
	fence        fence
	quorum       quorum
	removals     removals
	startIndex   uint64 // of the log's last entry at the start
	draining     atomic.Bool
	missed       atomic.Pointer[string] // the leader that it hears and cannot call; nil: none
	caughtUp     atomic.Bool
	sessions     atomic.Pointer[func() int]
	serving      atomic.Pointer[func() bool]

	stopWork  context.CancelFunc // ends lead
	work      sync.WaitGroup     // lead
	stopWatch context.CancelFunc // ends watchLeader and supervise
	watch     sync.WaitGroup     // drainElections, watchLeader, supervise, boundLog
	raftEnded chan struct{}      // closed when raft has shut down
	stopRaft  func() raft.Future

	done    chan struct{} // closed when the replica has failed or shuts down
	finish  func()        // closes done and ends life
	life    context.Context
	failure failure

	beginShutdown func()       // starts shutDown once
	shutdownStep  atomic.Value // string: what shutDown waits for
	closed        chan struct{}
	closeErr      error // set before closed is closed
}

// failure holds why a replica cannot go on; the first reason stays.
type failure struct {
	happened chan struct{} // closed once err is set

	mu  sync.Mutex
	err error
}

func (f *failure) set(err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return false
	}
	f.err = err
	close(f.happened)
	return true
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Open starts a replica. A data directory that is new becomes a cluster of this
// replica alone; one that holds a log or a snapshot is never bootstrapped again.
// Open returns when the newest snapshot is restored; WaitReady returns when the
// log behind it is applied. The store must be empty, and the replica's alone to
// apply to. The error says what is wrong with the options or the data directory
// (ErrDataDir, ErrStoreFailed, ErrUnknownSchema, ErrWrongCluster).
func Open(ctx context.Context, options Options, store *fsm.Store, logger hclog.Logger) (*Replica, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	raftLogger := libraryLogger(logger.Named("raft"))
	storage, err := openStorage(options, logger, raftLogger)
	if err != nil {
		return nil, err
	}
	if err := storage.settleRestore(options.DataDir, logger); err != nil {
		return nil, errors.Join(err, storage.close())
	}
	last, err := storage.checkCommitted(options.DataDir)
	if err != nil {
		return nil, errors.Join(err, storage.close())
	}
	r := newReplica(options, store, storage, logger)
	r.startIndex = last
	if err := errors.Join(r.checkpoints.loadVerdict(options.DataDir), r.loadFence()); err != nil {
		return nil, errors.Join(err, storage.close())
	}
	elections := make(chan bool, 1)
	config := raftConfig(options, r.ReplicaID(), elections, raftLogger)
	if err = ctx.Err(); err == nil {
		err = r.startRaft(config)
	}
	if err != nil {
		return nil, errors.Join(err, r.closeNetwork(), storage.close())
	}
	r.startWork(elections)
	return r, nil
}

func newReplica(options Options, store *fsm.Store, storage *storage, logger hclog.Logger) *Replica {
	r := &Replica{
		options: options, logger: logger, store: store, storage: storage,
		identity:     storage.identity,
		bootID:       uuid.NewString(),
		leadership:   newLeadership(),
		readiness:    newReadiness(options.Now()),
		members:      members{changing: make(chan struct{}, 1)},
		snapshotting: make(chan struct{}, 1),
		raftEnded:    make(chan struct{}),
		done:         make(chan struct{}),
		closed:       make(chan struct{}),
		failure:      failure{happened: make(chan struct{})},
	}
	life, end := context.WithCancel(context.Background())
	r.life = life
	r.finish = sync.OnceFunc(func() { close(r.done); end() })
	r.verification = verification{calls: &r.calls, verify: r.verifyLeader}
	r.remoteIndex = verification{calls: &r.calls, verify: r.askReadIndex}
	r.beginShutdown = sync.OnceFunc(func() {
		r.shutdownStep.Store("the leader's work")
		go r.shutDown()
	})
	return r
}

// raftConfig assembles the library's settings; docs/cluster.md says why.
func raftConfig(options Options, replicaID string, elections chan<- bool, logger hclog.Logger) *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(replicaID)
	config.HeartbeatTimeout = options.Timings.Heartbeat
	config.ElectionTimeout = options.Timings.Election
	config.LeaderLeaseTimeout = options.Timings.LeaderLease
	config.CommitTimeout = commitTimeout
	config.MaxAppendEntries = maxAppendEntries
	config.BatchApplyCh = true
	config.ShutdownOnRemove = true
	config.TrailingLogs = options.trailingLogs
	config.SnapshotInterval = snapshotInterval
	config.SnapshotThreshold = options.SnapshotThreshold
	config.NotifyCh = elections
	config.Logger = logger
	config.NoLegacyTelemetry = true
	return config
}

// startRaft bootstraps a new replica and starts the library.
func (r *Replica) startRaft(config *raft.Config) error {
	transport, err := r.openTransport(config)
	if err != nil {
		return err
	}
	dog := watchdog{limit: storeLimit, fail: r.fail}
	logs, stable := r.storage.logs, r.storage.stable
	if wrap := r.options.wrapLogs; wrap != nil {
		logs = wrap(logs)
	}
	if wrap := r.options.wrapStable; wrap != nil {
		stable = wrap(stable)
	}
	machine := &stateMachine{
		store: r.store, fail: r.fail, leaderStarted: r.readiness.poke,
		snapshotMoved: r.storage.disk.snapshotMoved, applied: r.storage.committed.raise,
	}
	if r.options.DataDir != "" {
		logs = &guardedLogs{LogStore: logs, storage: r.storage, fence: r.fenceOff}
	}
	logs = &watchedLogs{LogStore: logs, watchdog: dog, writes: &r.logWrites, logger: r.logger}
	if r.network != nil {
		// What was just written is about to be sent to the others.
		if logs, err = raft.NewLogCache(cachedEntries, logs); err != nil {
			return err
		}
	}
	err = r.newRaft(config, machine, logs, &watchedStable{StableStore: stable, watchdog: dog}, transport)
	if err != nil {
		// What failed says more than the library's error.
		return errors.Join(cmp.Or(r.Err(), err), closeTransport(transport))
	}
	if r.gate != nil {
		close(r.gate.started)
	}
	r.stopRaft = sync.OnceValue(func() raft.Future { return r.raft.Shutdown() })
	if err := r.checkRestored(); err != nil {
		return errors.Join(err, r.stopRaft().Error())
	}
	return nil
}

// openTransport returns Raft's transport. A lone replica that is new makes itself
// the only voter; one of several waits to be told what it is part of.
func (r *Replica) openTransport(config *raft.Config) (raft.Transport, error) {
	if r.options.Peers != nil {
		r.certificates = certificates{identity: r.options.Peers.Identity, ownID: r.ReplicaID(), logger: r.logger}
		if err := r.certificates.checkOwn(r.options.Peers); err != nil {
			return nil, err
		}
		r.gate = newGate(r)
		r.network = r.openNetwork(r.options.Peers)
		r.store.SetCheckpointHandler(func(state *fsm.Snapshot) { r.checkpoints.take(state, &r.calls) })
		transport := r.transport(r.options.without, config.Logger)
		if wrap := r.options.wrapTransport; wrap != nil {
			transport = wrap(transport)
		}
		return transport, nil
	}
	transport := loneTransport(r.ReplicaID())
	return transport, r.storage.bootstrap(config, transport)
}

// checkRestored looks at the state that the library restored from a snapshot.
func (r *Replica) checkRestored() error {
	if err := r.Err(); err != nil {
		return err
	}
	if id := r.store.View().ClusterID(); id != "" {
		return r.identity.adopt(id)
	}
	return nil
}

// newRaft calls the library in a goroutine of its own, since it panics when the
// log has a hole and watchedStable ends the goroutine that it writes on.
func (r *Replica) newRaft(config *raft.Config, machine raft.FSM, logs raft.LogStore, stable raft.StableStore, transport raft.Transport) error {
	err := fmt.Errorf("%w: raft could not start", ErrStoreFailed)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("%w: log and snapshots do not fit together: %v", ErrStoreFailed, reason)
			}
		}()
		r.raft, err = raft.NewRaft(config, machine, logs, stable, r.storage.snapshots, transport)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrStoreFailed, err)
		}
	}()
	<-done
	return err
}

func (r *Replica) startWork(elections <-chan bool) {
	r.proposer = newProposer(r.raft, r.store, r.options.Now, r.leads)
	var work, watch context.Context
	work, r.stopWork = context.WithCancel(context.Background())
	watch, r.stopWatch = context.WithCancel(context.Background())
	r.watch.Go(func() { r.drainElections(elections) })
	r.watch.Go(func() { r.watchLeader(watch) })
	r.watch.Go(func() { r.supervise(watch) })
	r.watch.Go(func() { r.boundLog(watch) })
	r.watch.Go(func() { r.watchCandidacy(watch) })
	r.work.Go(func() { r.lead(work) })
	r.LeadWith(r.runProbes)
	if r.options.Peers != nil {
		r.startNetwork(watch)
	}
}

// fail stops the replica for good. It does not block, and may be called from
// inside the library.
func (r *Replica) fail(err error) {
	switch {
	case !r.failure.set(err):
	case errors.Is(err, ErrRemoved): // somebody asked for it
		r.logger.Info("this replica stops: it was removed from its cluster", "reason", err)
	default:
		r.logger.Error("replica failed", "error", err)
	}
}

// supervise takes a failed replica out of service: its leadership ends, callers
// are answered, Raft is told to stop. What hangs is not waited for.
func (r *Replica) supervise(ctx context.Context) {
	select {
	case <-r.failure.happened:
		r.endWork()
		r.proposer.abandon(r.Err())
		r.stopRaft()
		r.finish()
	case <-ctx.Done():
	}
}

// Done is closed when the replica has failed or shuts down.
func (r *Replica) Done() <-chan struct{} { return r.done }

// Err returns why the replica failed: ErrUnknownSchema, ErrStoreFailed or
// ErrWrongCluster. It is nil for a replica that runs or was shut down.
func (r *Replica) Err() error { return r.failure.get() }

// stopCause says why a replica has stopped.
func (r *Replica) stopCause() error {
	if err := r.Err(); err != nil {
		return err
	}
	return ErrShutdown
}

// ReplicaID returns the id that was drawn with the data directory: the name and
// eight hexadecimal digits.
func (r *Replica) ReplicaID() string { return r.identity.replicaID() }

// BootID returns the id of this run of the process (protocol S1).
func (r *Replica) BootID() string { return r.bootID }

// ClusterID returns the id of the cluster, empty until it is initialised.
func (r *Replica) ClusterID() string { return r.identity.clusterID() }

// leads returns nil while this replica leads and has started its work, else
// ErrNotLeader if another replica leads or ErrNoLeader.
func (r *Replica) leads() error {
	if leading, _ := r.Leadership(); leading {
		return nil
	}
	if id := r.leaderID(); id != "" && id != r.ReplicaID() {
		return fmt.Errorf("%w: %s does", ErrNotLeader, id)
	}
	return ErrNoLeader
}

// Propose puts a command into the log and returns what Apply answered; an error
// of the command itself is in the result. It fills in generation (protocol X3)
// and schema if they are 0; the leader stamps time and seed (protocol D6). A
// replica that does not lead sends it to the leader. When too much is in flight
// it waits; one of several replicas waits for a leader too, at most 5 s. The
// context's deadline, or 10 s, bounds all of it. An error that is
// ErrUnknownOutcome leaves open whether the command takes effect; any other error
// means that it was not proposed.
func (r *Replica) Propose(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	return r.propose(ctx, command, true)
}

// ProposeNow is Propose for callers that can be told to come back later: it
// returns ErrOverloaded when too much is in flight (protocol X1).
func (r *Replica) ProposeNow(ctx context.Context, command *slimcppb.Command) (fsm.Result, error) {
	return r.propose(ctx, command, false)
}

// ProposeAsLeader proposes what was decided by the leadership of the given term.
// It sets the command's term, and returns ErrNotLeader at once if that
// leadership is over. Should it end later, Apply drops the command with
// fsm.ErrStaleTerm (protocol C14). It is never forwarded.
func (r *Replica) ProposeAsLeader(ctx context.Context, term uint64, command *slimcppb.Command) (fsm.Result, error) {
	leading, current := r.Leadership()
	if !leading || current != term {
		return fsm.Result{}, fmt.Errorf("%w: the leadership of term %d is over", ErrNotLeader, term)
	}
	command.Term = term
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	encoded, err := r.proposer.encode(command)
	if err != nil {
		return fsm.Result{}, err
	}
	return r.proposer.proposeEncoded(ctx, encoded)
}

// Shutdown ends the leader's work, then Raft, then closes the files, and
// returns when all that is done or with the context's error. It may be called
// more than once. Callers of other methods get ErrShutdown or
// ErrUnknownOutcome. When the context has ended something hangs, which the error
// names, and the process should exit.
func (r *Replica) Shutdown(ctx context.Context) error {
	r.beginShutdown()
	select {
	case <-r.closed:
		return r.closeErr
	case <-ctx.Done():
		return fmt.Errorf("shutdown still waits for %v: %w", r.shutdownStep.Load(), ctx.Err())
	}
}

// shutDown blocks as long as anything hangs.
func (r *Replica) shutDown() {
	defer close(r.closed)
	r.endWork()
	r.work.Wait()
	r.finish()

	r.shutdownStep.Store("answers from raft")
	if r.forwarder != nil {
		r.forwarder.stop(ErrShutdown)
	}
	r.proposer.stop(ErrShutdown)
	if r.Err() == nil {
		// Futures that are with Raft when it shuts down are never answered. A
		// failed replica has shut it down already.
		r.proposer.drain()
		r.calls.close()
	}
	r.shutdownStep.Store("raft")
	_ = r.stopRaft().Error()
	close(r.raftEnded)
	r.stopWatch()
	if r.network != nil {
		r.network.stopServing()
	}
	r.watch.Wait()

	r.shutdownStep.Store("the files")
	if err := errors.Join(r.closeNetwork(), r.storage.close()); err != nil {
		r.closeErr = fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
}

// endWork ends this replica's leadership and every later one.
func (r *Replica) endWork() {
	r.leadership.resign()
	r.stopWork()
}
