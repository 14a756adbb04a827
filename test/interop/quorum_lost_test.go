//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

// closedWithin is the longest that a replica without a leader may accept nodes.
const closedWithin = 15 * time.Second

// The last of three replicas keeps the streams that it has, registers the nodes
// that come at once provisionally, and then accepts no more. With a second replica
// everything goes on where it was.
func TestScenario27TwoReplicasAreDown(t *testing.T) {
	t.Parallel()
	c := formCluster(t, managed)
	waitTolerance(t, c.replicas[0], 1)
	leading, others := c.leader(t)
	survivor, other := others[0], others[1]
	l := c.ask(t, survivor)
	pairs := [][2]string{{"a", "b"}, {"a", "c"}, {"a", "d"}, {"a", "e"}}
	for _, pair := range pairs {
		l.mustAddLink(t, "", pair[0], pair[1])
	}
	a, b := c.startOn(t, l, "a", survivor), c.startOn(t, l, "b", survivor)
	moved := c.startOn(t, l, "c", other, survivor)
	l.WaitLink(t, "a", "b")
	l.WaitLink(t, "a", "c")
	one, two := startApp(t, a, alice, "--quiet"), startApp(t, b, bob, "--quiet")
	l.wantReached(t, a, alice, "b", "c")
	l.wantReached(t, b, bob, "a")
	before := l.linkEnds(t)
	talk := startExchange(t, one, two)
	talk.waitTicks(t, 5)

	killed := time.Now()
	leading.Kill(t)
	other.Kill(t)
	newcomer := launchNode(t, c.spec(t, "d", "node-d", survivor))
	newcomer.waitReady(t)
	l.waitProvisional(t, moved, newcomer)
	l.waitRefused(t)
	if took := time.Since(killed); took > closedWithin {
		t.Errorf("the survivor accepted nodes for %v, want at most %v", took, closedWithin)
	} else {
		t.Logf("the survivor accepted nodes for %v", took.Round(100*time.Millisecond))
	}
	late := launchNode(t, c.spec(t, "e", "node-e", survivor))
	l.wantUnavailable(t)
	l.waitProvisional(t, a, b, moved, newcomer)
	talk.waitTicks(t, 5)

	leading.Start(t)
	late.waitReady(t)
	l.WaitConnected(t, a.fullID(), b.fullID(), moved.fullID(), newcomer.fullID(), late.fullID())
	for _, pair := range pairs {
		l.WaitLink(t, pair[0], pair[1])
	}
	last := startApp(t, late, carol)
	l.wantReached(t, late, last.name, "a")
	l.wantReached(t, a, alice, "b", "c", "d", "e")
	heard := talk.stop(t)
	t.Logf("nodes on the survivor: %v", heard)
	if err := heard.complete(); err != nil {
		t.Error(err)
	}
	after := l.linkEnds(t)
	for id, ends := range before {
		if after[id] != ends {
			t.Errorf("link %s was %s, and is %q", id, ends, after[id])
		}
	}
	for _, n := range []*node{a, b, newcomer} {
		if opened := n.balancer.connections(); len(opened) != 1 {
			t.Errorf("%s connected to %v", n.fullID(), opened)
		}
	}
}

// waitProvisional waits until a replica shows nodes as connected by its own copy.
func (l *lab) waitProvisional(t *testing.T, nodes ...*node) {
	t.Helper()
	observer.Eventually(t, "connected by the word of "+l.Member.Name, func(ctx context.Context) error {
		listed, err := l.Nodes(metadata.AppendToOutgoingContext(ctx, "slimcp-consistency", "stale"))
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if !connected(listed, n) {
				return fmt.Errorf("%s is not: %v", n.fullID(), listed)
			}
		}
		return nil
	})
}

// waitRefused waits until a replica refuses connections of nodes.
func (l *lab) waitRefused(t *testing.T) {
	t.Helper()
	observer.Eventually(t, "southbound connection refused by "+l.Member.Name, func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", l.Southbound)
		if err == nil {
			return errors.Join(errors.New("it was accepted"), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	})
}

// wantUnavailable checks what operators are told by a replica without a leader.
func (l *lab) wantUnavailable(t *testing.T) {
	t.Helper()
	for _, what := range []string{"node", "link", "route", "segment"} {
		code, stdout, stderr := l.Operate(t, what, "list", "--stale")
		if code != 0 || !strings.HasPrefix(stderr, "As of index ") {
			t.Errorf("%s list --stale ended with exit code %d:\n%s%s", what, code, stdout, stderr)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), appAnswer)
	defer cancel()
	_, err := l.API().AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: "nobody's"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(status.Convert(err).Message(), "no leader") {
		t.Errorf("a change ended with %v, want the code %v and the reason", err, codes.Unavailable)
	}
	code, stdout, stderr := l.Operate(t, "segment", "add", "nobody's")
	if code == 0 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "UNAVAILABLE: no leader") {
		t.Errorf("segment add ended with exit code %d:\n%s%s", code, stdout, stderr)
	}
	t.Logf("operators are told: %v; %s", err, strings.TrimSpace(stderr))
}
