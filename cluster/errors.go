package cluster

import (
	"errors"
	"fmt"
)

// Errors of Propose and Read. Each but ErrUnknownOutcome means that the command
// was surely not proposed and may be sent again.
var (
	// ErrUnknownOutcome: the command was handed to Raft, and whether it takes
	// effect is not known. It must only be sent again under the same session
	// name, sequence number or request id.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrNotLeader: another replica leads.
	ErrNotLeader = errors.New("this replica does not lead")
	// ErrNoLeader: nobody leads, or the leader has not started its work yet.
	ErrNoLeader = errors.New("no leader")
	// ErrOverloaded: too many proposals are in flight.
	ErrOverloaded = errors.New("too many proposals in flight")
	// ErrTooLarge: the command is larger than MaxCommandBytes.
	ErrTooLarge = errors.New("command is too large")
	// ErrInvalidCommand: the command cannot be encoded, or no replica of this
	// version could apply it.
	ErrInvalidCommand = errors.New("command cannot be proposed")
	// ErrShutdown: the replica is shutting down.
	ErrShutdown = errors.New("replica is shutting down")
)

// Errors that stop a replica; see Replica.Err. Open returns them too.
var (
	// ErrStoreFailed: the disk failed or hung.
	ErrStoreFailed = errors.New("store failed")
	// ErrUnknownSchema: the log holds a command that this binary is too old for.
	ErrUnknownSchema = errors.New("log needs a newer version of slim-cp")
	// ErrWrongCluster: state and data directory belong to different clusters.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrRemoved: the replica was removed from its cluster. Its id never joins
	// again.
	ErrRemoved = errors.New("replica was removed from the cluster")
	// ErrDuplicate: another process runs with a copy of the data directory.
	ErrDuplicate = errors.New("another process runs with a copy of this data directory")
	// ErrTransferStuck: the Raft library refuses every write. The process has to
	// start again.
	ErrTransferStuck = errors.New("the leader is stuck in a transfer of its leadership")
	// ErrRestoreOpen: this replica has a restored state, and whether it becomes the
	// cluster's is not known. The process has to start again, which settles it.
	ErrRestoreOpen = errors.New("a restore did not reach a majority")
	// ErrWorkStuck: the leader's work of an earlier leadership does not end. The
	// process has to start again.
	ErrWorkStuck = errors.New("the leader's work of an earlier leadership does not end")
	// ErrDataDir: the data directory cannot be used.
	ErrDataDir = errors.New("data directory cannot be used")
)

// UnknownOutcomeError says why the outcome of a command is not known. It is an
// ErrUnknownOutcome and wraps the cause.
type UnknownOutcomeError struct {
	Cause error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("%v, the command may or may not take effect: %v", ErrUnknownOutcome, e.Cause)
}

// Is makes errors.Is(err, ErrUnknownOutcome) true.
func (e *UnknownOutcomeError) Is(target error) bool { return target == ErrUnknownOutcome }

// Unwrap returns the cause, for instance a context's error.
func (e *UnknownOutcomeError) Unwrap() error { return e.Cause }

// Errors of changes of the membership.
var (
	// ErrMembership: the change is refused; the text says why and what to do.
	ErrMembership = errors.New("membership")
	// ErrUnknownReplica: no member has that name or id.
	ErrUnknownReplica = errors.New("no such replica")
)
