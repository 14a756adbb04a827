//go:build interop

package interop_test

import (
	"context"
	"errors"
	"maps"
	"syscall"
	"testing"

	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// All replicas are restarted, one after the other. Meanwhile operators work, and
// nodes on the other replicas are not disturbed.
func TestScenario26RollingRestart(t *testing.T) {
	c := formCluster(t, managed)
	waitTolerance(t, c.replicas[0], 1)
	leading, others := c.leader(t)
	first, second, last := others[0], others[1], leading
	l := c.ask(t, first)
	groups := []string{"a", "b", "c", "d"}
	for i, group := range groups {
		for _, other := range groups[:i] {
			l.mustAddLink(t, "", other, group)
		}
	}
	// So that at each restart two nodes are elsewhere.
	nodes := []*node{
		c.startOn(t, l, "a", first, last, second), c.startOn(t, l, "b", second, first, last),
		c.startOn(t, l, "c", last, first, second), c.startOn(t, l, "d", first, second, last),
	}
	apps := map[*node]*app{}
	for i, name := range []string{alice, bob, carol, dave} {
		apps[nodes[i]] = startApp(t, nodes[i], name, "--quiet")
	}
	converged := func() {
		t.Helper()
		for i, to := range nodes {
			l.WaitConnected(t, to.fullID())
			for j, from := range nodes {
				if i != j {
					l.wantReached(t, to, apps[to].name, from.group)
				}
			}
		}
	}
	converged()
	before := l.linkEnds(t)
	work := startOperators(t, c.replicas)
	for _, r := range []*process.Replica{first, second, last} {
		var apart []*node
		for _, n := range nodes {
			if n.balancer.on() != r.Member.Name {
				apart = append(apart, n)
			}
		}
		if len(apart) < 2 {
			t.Fatalf("%d nodes are not on %s", len(apart), r.Member.Name)
		}
		talk := startExchange(t, apps[apart[0]], apps[apart[1]])
		talk.waitTicks(t, 5)
		c.restart(t, r)
		talk.waitTicks(t, 5)
		heard := talk.stop(t)
		t.Logf("restart of %s: %v", r.Member.Name, heard)
		if err := heard.undisturbed(); err != nil {
			t.Error(err)
		}
		converged()
	}
	if after := l.linkEnds(t); !maps.Equal(before, after) {
		t.Errorf("the links were %v, and are %v", before, after)
	}
	work.finish(t, l)
}

// restart stops a replica as its supervisor would and starts it again. If it leads
// it hands over before it ends.
func (c *cluster) restart(t *testing.T, r *process.Replica) {
	t.Helper()
	leading, others := c.leader(t)
	r.Signal(t, syscall.SIGTERM)
	if r == leading {
		observer.Eventually(t, "another leader, before "+r.Member.Name+" ends", func(context.Context) error {
			ended := r.Exited()
			for _, other := range others {
				if leads(t, other) {
					if ended {
						t.Errorf("%s ended before another replica led", r.Member.Name)
					}
					return nil
				}
			}
			return errors.New("none leads")
		})
	}
	r.Stop(t)
	r.Start(t)
	waitTolerance(t, r, 1)
}
