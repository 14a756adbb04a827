package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestConcurrentProposalsGetTheirOwnResults(t *testing.T) {
	replica := start(t, cluster.Options{DataDir: t.TempDir()})
	var callers sync.WaitGroup
	for i := range 500 {
		callers.Go(func() {
			result, err := replica.Propose(t.Context(), register(i))
			if want := fmt.Sprintf("g/n%d", i); err != nil || result.Err != nil || result.NodeID != want {
				t.Errorf("caller %d: %+v, %v", i, result, err)
			}
			if replica.View().Index() < result.Index || !hasNode(replica.View(), i) {
				t.Errorf("caller %d does not see its own command", i)
			}
		})
	}
	callers.Wait()
}

func TestWaitingProposalsShareAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		before := len(logs.written())
		unblock := logs.block()
		var callers sync.WaitGroup
		for i := range 500 {
			callers.Go(func() { propose(t, replica, register(i)) })
			synctest.Wait()
		}
		unblock()
		callers.Wait()
		entries := logs.written()[before:]
		if len(entries) > cluster.MaxEntriesInFlight+2 {
			t.Errorf("500 waiting proposals took %d entries", len(entries))
		}
		next := 0
		for _, entry := range entries {
			if len(entry.GetCommands()) > cluster.MaxEntryCommands {
				t.Errorf("an entry has %d commands", len(entry.GetCommands()))
			}
			for _, command := range entry.GetCommands() {
				if node := command.GetRegisterNode().GetNode(); node != fmt.Sprintf("n%d", next) {
					t.Fatalf("%s is command %d", node, next)
				}
				next++
			}
		}
	})
}

func TestEntriesStayWithinTheirBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		unblock := logs.block()
		var callers sync.WaitGroup
		for i := range 40 {
			callers.Go(func() {
				if _, err := replica.Propose(t.Context(), padded(i, 100<<10)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		unblock()
		callers.Wait()
		for _, entry := range logs.written() {
			if size := proto.Size(entry); size > cluster.MaxCommandBytes+1024 {
				t.Errorf("an entry of %d commands has %d bytes", len(entry.GetCommands()), size)
			}
		}
	})
}

// padded is a command of about the given size.
func padded(i, size int) *slimcppb.Command {
	command := register(i)
	command.GetRegisterNode().PeerAddress = strings.Repeat("x", size)
	return command
}

func TestStamps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := rapid.SliceOfN(rapid.Int64Range(1, 1000), 30, 30).Draw(rt, "clock")
		commands := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *slimcppb.Command {
			command := register(rapid.IntRange(0, 5).Draw(rt, "node"))
			command.Generation = rapid.Uint64Range(0, 3).Draw(rt, "generation")
			command.Schema = rapid.Uint32Range(0, 1).Draw(rt, "schema")
			command.RequestId = rapid.StringMatching(`[a-z]{0,5}`).Draw(rt, "request")
			command.TimeUnixNanos = rapid.Int64Range(0, 5).Draw(rt, "time")
			return command
		}), 1, 20).Draw(rt, "commands")
		synctest.Test(t, func(t *testing.T) {
			var reads atomic.Int64
			logs := &faultyLogs{}
			replica := start(t, cluster.Options{Now: func() time.Time {
				return time.Unix(0, clock[int(reads.Add(1))%len(clock)])
			}}.WithLogs(logs.wrap))
			before := len(logs.written())
			for _, command := range commands {
				if _, err := replica.Propose(t.Context(), command); err != nil {
					t.Fatal(err)
				}
			}
			checkStamps(t, commands, logs.written()[before:])
		})
	})
}

// checkStamps compares commands as proposed with the log, one an entry.
func checkStamps(t *testing.T, proposed []*slimcppb.Command, written []*slimcppb.Entry) {
	t.Helper()
	seeds := map[uint64]bool{}
	var last int64
	for i, entry := range written {
		logged := entry.GetCommands()[0]
		if logged.GetTimeUnixNanos() < last {
			t.Errorf("time went back from %d to %d", last, logged.GetTimeUnixNanos())
		}
		last = logged.GetTimeUnixNanos()
		seeds[logged.GetSeed()] = true
		want := proto.CloneOf(proposed[i])
		if want.Schema == 0 {
			want.Schema = fsm.SchemaVersion
		}
		if want.Generation == 0 {
			want.Generation = 1
		}
		want.TimeUnixNanos, want.Seed = logged.GetTimeUnixNanos(), logged.GetSeed()
		if !proto.Equal(want, logged) {
			t.Errorf("proposed %v, logged %v", want, logged)
		}
	}
	if len(seeds) != len(proposed) || len(written) != len(proposed) {
		t.Errorf("%d seeds in %d entries for %d commands", len(seeds), len(written), len(proposed))
	}
}

func TestUnknownOutcome(t *testing.T) {
	logs := &faultyLogs{}
	replica := start(t, cluster.Options{DataDir: t.TempDir()}.WithLogs(logs.wrap))
	unblock := logs.block()
	defer unblock()

	// The first entries are handed over, the last proposal waits behind them.
	var unknown, refused []int
	for i := range cluster.MaxEntriesInFlight + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := replica.Propose(ctx, register(i))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("proposal %d: %v", i, err)
		}
		if errors.Is(err, cluster.ErrUnknownOutcome) {
			unknown = append(unknown, i)
		} else {
			refused = append(refused, i)
		}
	}
	if len(unknown) != cluster.MaxEntriesInFlight || len(refused) != 1 {
		t.Fatalf("unknown %v, refused %v", unknown, refused)
	}
	unblock()
	for _, i := range unknown {
		eventually(t, "the outcome", func() bool { return hasNode(replica.View(), i) })
	}
	propose(t, replica, register(100))
	if hasNode(replica.View(), refused[0]) {
		t.Error("a command that was refused took effect")
	}
}

func TestDefaultDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		defer logs.block()()
		began := time.Now()
		if _, err := replica.Propose(context.Background(), register(1)); !errors.Is(err, cluster.ErrUnknownOutcome) {
			t.Errorf("proposal: %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestCallersCommandIsNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica := start(t, cluster.Options{})
		command := register(1)
		propose(t, replica, command)
		if !proto.Equal(command, register(1)) {
			t.Errorf("command became %v", command)
		}
	})
}

func TestBadCommandsDisturbNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica := start(t, cluster.Options{})
		newer := register(0)
		newer.Schema = 99
		for name, bad := range map[string]struct {
			command *slimcppb.Command
			want    error
		}{
			"empty":     {&slimcppb.Command{}, cluster.ErrInvalidCommand},
			"nil":       {nil, cluster.ErrInvalidCommand},
			"newer":     {newer, cluster.ErrInvalidCommand},
			"not UTF-8": {registerNamed("\xff", 1), cluster.ErrInvalidCommand},
			"too large": {padded(0, cluster.MaxCommandBytes), cluster.ErrTooLarge},
		} {
			var callers sync.WaitGroup
			callers.Go(func() { propose(t, replica, register(1)) })
			callers.Go(func() {
				if _, err := replica.Propose(t.Context(), bad.command); !errors.Is(err, bad.want) {
					t.Errorf("%s: %v", name, err)
				}
			})
			callers.Wait()
		}
		if err := replica.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestAdmissionByCount(t *testing.T) { testAdmission(t, cluster.MaxProposals, 0) }

func TestAdmissionByBytes(t *testing.T) {
	const size = 256 << 10
	// Each command is a little longer than its padding.
	testAdmission(t, cluster.MaxProposalBytes/size-1, size)
}

// testAdmission fills the replica with as many proposals of a size as it takes.
func testAdmission(t *testing.T, room, size int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		logs := &faultyLogs{}
		replica := start(t, cluster.Options{}.WithLogs(logs.wrap))
		unblock := logs.block()
		var callers sync.WaitGroup
		for i := range room {
			callers.Go(func() { propose(t, replica, padded(i, size)) })
		}
		synctest.Wait()
		if _, err := replica.ProposeNow(t.Context(), padded(room, size)); !errors.Is(err, cluster.ErrOverloaded) {
			t.Errorf("proposal %d: %v", room, err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := replica.Propose(impatient, padded(room+1, size)); errors.Is(err, cluster.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("proposal without room: %v", err)
		}
		callers.Go(func() { propose(t, replica, padded(room+2, size)) })
		synctest.Wait()
		unblock()
		callers.Wait()
		if _, err := replica.ProposeNow(t.Context(), padded(room+3, size)); err != nil {
			t.Errorf("proposal with room: %v", err)
		}
		if got := replica.View().NodeCount(); got != room+2 {
			t.Errorf("%d nodes, want %d", got, room+2)
		}
	})
}
