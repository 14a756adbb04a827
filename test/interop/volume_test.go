//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

const (
	crowdSize = 10_000
	// auditWithin bounds the time from a node's last word about its names to the
	// lists that show them all: of a crowd the node itself drops a part.
	auditWithin = 10 * time.Second
	// crowdStart is what an application may need to announce a crowd; two cores
	// need about ten seconds.
	crowdStart = 2 * time.Minute
)

// A node that registers with 10,000 names, and one that announces as many at
// once, are served completely, though the node drops announcements, and the
// withdrawals likewise.
func TestScenario21CrowdOfNames(t *testing.T) {
	l := openLab(t, mesh) // alone, since it measures
	b := l.start(t, behindRelay(t, l, l.spec(t, "b", "node-b")))[0]
	a := l.start(t, behindRelay(t, l, l.spec(t, "a", "node-a")))[0]
	l.WaitLink(t, "a", "b", observer.From(a.fullID()))

	a.relay.refuse(t)
	crowd := startCrowd(t, a)
	a.relay.serve(t)
	l.wantCrowd(t, a, b, crowdSize)
	settled := residentMemory(t, l.Pid())
	crowd.Kill(t)
	l.wantCrowd(t, a, b, 0)

	crowd = startCrowd(t, a)
	l.wantCrowd(t, a, b, crowdSize)
	crowd.leave(t)
	l.wantCrowd(t, a, b, 0)
	if after := residentMemory(t, l.Pid()); after > settled+settled/2 {
		t.Errorf("the replica had %d KiB in memory with the first crowd, and has %d KiB after the second", settled, after)
	}
	for _, n := range []*node{a, b} {
		if largest := n.relay.largest.Load(); largest > messageLimit {
			t.Errorf("a message of %d bytes went to or from %s, more than %d", largest, n.fullID(), messageLimit)
		}
	}
}

// startCrowd runs an application with very many names.
func startCrowd(t *testing.T, on *node) *app {
	t.Helper()
	crowd := startApp(t, on, carol)
	if err := crowd.try(t, fmt.Sprintf("announce %s %d", carol, crowdSize-1), crowdStart); err != nil {
		t.Fatal(err)
	}
	return crowd
}

// wantCrowd waits until exactly so many names are announced on a node, routed
// from another, and held by that.
func (l *lab) wantCrowd(t *testing.T, on, from *node, count int) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("%d names on %s", count, on.fullID()), func(ctx context.Context) error {
		for _, source := range []string{observer.AnyNode, from.fullID()} {
			routes, err := l.Routes(ctx, source, on.fullID())
			if err != nil {
				return err
			}
			live := map[controlplanepb.RouteStatus]int{}
			for _, route := range routes {
				if !observer.Deleted(route) {
					live[route.GetStatus()]++
				}
			}
			if applied := live[controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED]; applied != count || len(live) > 1 || count == 0 && len(live) > 0 {
				return fmt.Errorf("from %s: %v, want %d applied", source, live, count)
			}
		}
		return nil
	})
	took := time.Since(time.Unix(0, on.relay.lastAnnounced.Load()))
	if took > auditWithin {
		t.Errorf("%d names took %v from the node's last word, want at most %v", count, took, auditWithin)
	}
	began := time.Now()
	observer.Eventually(t, fmt.Sprintf("%d names in the table of %s", count, from.fullID()), func(ctx context.Context) error {
		entries, err := l.NodeRoutes(ctx, from.fullID())
		if err == nil && len(entries) != count {
			err = fmt.Errorf("it holds %d", len(entries))
		}
		return err
	})
	t.Logf("%d names: listed %v after the node's last word, held %v later", count, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// residentMemory returns what a process has in memory, in KiB.
func residentMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("no VmRSS in the status of process %d", pid)
	return 0
}
