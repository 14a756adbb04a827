//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
)

func TestScenario22StoppedNodeHoldsNobodyUp(t *testing.T) {
	l := startLab(t, mesh)
	nodes := l.startGroup(t, "a", "b", "c")
	a, b, c := nodes[0], nodes[1], nodes[2]
	l.WaitLink(t, "a", "b")
	l.WaitLink(t, "a", "c")
	l.WaitLink(t, "b", "c")
	one, stopped := startApp(t, a, alice), startApp(t, c, carol)
	l.wantReached(t, a, alice, "b", "c")
	l.wantReached(t, c, carol, "a", "b")

	c.Signal(t, syscall.SIGSTOP)
	other := startApp(t, b, bob)
	l.wantReached(t, b, bob, "a")
	converse(t, one, other, "hello")
	d := l.startGroup(t, "d")[0]
	// It dials the stopped node too, which must not keep it from the others.
	l.wantLinked(t, a, d)
	l.wantLinked(t, b, d)
	last := startApp(t, d, dave)
	l.wantReached(t, d, dave, "a", "b")
	l.wantReached(t, a, alice, "d")
	converse(t, one, last, "hello from the newcomer")

	c.Signal(t, syscall.SIGCONT)
	l.WaitLink(t, "c", "d")
	l.WaitRoute(t, c.fullID(), d.fullID(), dave)
	l.WaitRoute(t, c.fullID(), b.fullID(), bob)
	l.WaitRoute(t, d.fullID(), c.fullID(), carol)
	l.WaitRoute(t, observer.AnyNode, c.fullID(), carol)
	converse(t, stopped, last, "hello at last")
}

// wantLinked waits until the newcomer has dialled another node.
func (l *lab) wantLinked(t *testing.T, other, newcomer *node) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("applied link %s -> %s", newcomer.fullID(), other.fullID()), func(ctx context.Context) error {
		links, err := l.Links(ctx)
		if err != nil {
			return err
		}
		for _, link := range links {
			if link.GetSourceNodeId() == newcomer.fullID() && link.GetDestNodeId() == other.fullID() &&
				link.GetStatus() == controlplanepb.LinkStatus_LINK_STATUS_APPLIED {
				return nil
			}
		}
		return fmt.Errorf("the links are %v", links)
	})
}
