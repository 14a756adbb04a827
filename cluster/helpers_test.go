package cluster_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// TestMain runs more tests at a time than there are processors: ensembles mostly
// wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	// A replica that fails shuts the library down, which then never answers what it was
	// asked; whoever asked has gone on, and the process of such a replica ends.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// patience bounds what a test waits for.
const patience = time.Minute

// quiet swallows the log unless the test is verbose.
func quiet(tb testing.TB) hclog.Logger {
	tb.Helper()
	output := io.Discard
	if testing.Verbose() {
		output = tb.Output()
	}
	return hclog.New(&hclog.LoggerOptions{Output: output, Level: hclog.Warn})
}

// start opens a replica over an empty store, waits until it is ready and shuts
// it down at the end of the test.
func start(tb testing.TB, options cluster.Options) *cluster.Replica {
	tb.Helper()
	replica, err := open(tb, options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { stop(tb, replica) })
	waitReady(tb, replica)
	return replica
}

func open(tb testing.TB, options cluster.Options) (*cluster.Replica, error) {
	tb.Helper()
	if options.Name == "" {
		options.Name = "cp"
	}
	return cluster.Open(context.Background(), options, fsm.New(), quiet(tb))
}

func waitReady(tb testing.TB, replica *cluster.Replica) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := replica.WaitReady(ctx); err != nil {
		tb.Fatal("not ready:", err)
	}
}

func waitDone(tb testing.TB, replica *cluster.Replica) {
	tb.Helper()
	select {
	case <-replica.Done():
	case <-time.After(patience):
		tb.Fatal("the replica goes on")
	}
}

func stop(tb testing.TB, replica *cluster.Replica) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := replica.Shutdown(ctx); err != nil {
		tb.Error("shutdown:", err)
	}
}

// eventually polls a condition.
func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			tb.Fatal("not in time:", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// register is a command that registers a node of its own.
func register(i int) *slimcppb.Command {
	return registerNamed(fmt.Sprintf("n%d", i), uint64(i+1))
}

func registerNamed(node string, counter uint64) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
		Session: &slimcppb.SessionName{ReplicaId: "other-01", BootId: "boot", Counter: counter},
		Group:   "g", Node: node,
	}}}
}

// propose proposes a command that must be accepted.
func propose(tb testing.TB, replica *cluster.Replica, command *slimcppb.Command) fsm.Result {
	tb.Helper()
	result, err := replica.Propose(context.Background(), command)
	if err := errors.Join(err, result.Err); err != nil {
		tb.Fatal("propose:", err)
	}
	return result
}

// proposeWithRetry proposes a command until its outcome is known: a busy machine may lose a
// leader. The command must be one that has its effect once.
func proposeWithRetry(tb testing.TB, replica *cluster.Replica, command *slimcppb.Command) fsm.Result {
	tb.Helper()
	var result fsm.Result
	eventually(tb, "the command is answered", func() bool {
		var err error
		result, err = replica.Propose(context.Background(), command)
		if err == nil && result.Err != nil && !errors.Is(result.Err, fsm.ErrStaleSequence) {
			tb.Fatal("propose:", result.Err)
		}
		return err == nil
	})
	return result
}

func hasNode(view *fsm.View, i int) bool {
	_, ok := view.Node(fmt.Sprintf("g/n%d", i))
	return ok
}

func nodeIDs(view *fsm.View) []string {
	var ids []string
	for node := range view.Nodes() {
		ids = append(ids, node.ID)
	}
	return ids
}

// faultyLogs is a log store whose writes can be held up or made to fail, and
// which remembers the entries written to it.
type faultyLogs struct {
	raft.LogStore

	mu      sync.Mutex
	hold    chan struct{} // not nil: writes wait until it is closed
	fail    error
	entries []*slimcppb.Entry
	terms   []uint64 // of the entries
}

func (f *faultyLogs) wrap(logs raft.LogStore) raft.LogStore {
	f.LogStore = logs
	return f
}

// block holds up writes until the returned function is called.
func (f *faultyLogs) block() (unblock func()) {
	hold := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.hold = nil
		f.mu.Unlock()
		close(hold)
	})
}

func (f *faultyLogs) setFailure(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// written returns the commands in the log, entry by entry.
func (f *faultyLogs) written() []*slimcppb.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.entries)
}

// firstCommands returns the first command of each term.
func (f *faultyLogs) firstCommands() []*slimcppb.Command {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first []*slimcppb.Command
	for i, entry := range f.entries {
		if i == 0 || f.terms[i] != f.terms[i-1] {
			first = append(first, entry.GetCommands()[0])
		}
	}
	return first
}

func (f *faultyLogs) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

func (f *faultyLogs) StoreLogs(logs []*raft.Log) error {
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	for _, log := range logs {
		if log.Type != raft.LogCommand {
			continue
		}
		entry := &slimcppb.Entry{}
		if err := proto.Unmarshal(log.Data, entry); err != nil {
			return err
		}
		f.entries = append(f.entries, entry)
		f.terms = append(f.terms, log.Term)
	}
	return f.LogStore.StoreLogs(logs)
}
