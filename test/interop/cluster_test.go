//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/authority"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

// clusterSize is the number of replicas that a cluster begins with.
const clusterSize = 3

// cluster is several replicas under test.
type cluster struct {
	replicas  []*process.Replica
	authority *authority.Authority // of southbound TLS; nil for plaintext
	config    string
}

func formCluster(t *testing.T, topology string, settings ...string) *cluster {
	t.Helper()
	c := &cluster{authority: authority.New(t), config: replicaConfig(topology, settings...)}
	c.form(t)
	return c
}

func formPlaintextCluster(t *testing.T, topology string) *cluster {
	t.Helper()
	c := &cluster{config: replicaConfig(topology)}
	c.form(t)
	return c
}

func (c *cluster) form(t *testing.T) {
	t.Helper()
	members := make([]process.Member, clusterSize)
	for i := range members {
		members[i] = c.member(t, fmt.Sprintf("cp-%d", i+1))
	}
	c.replicas = process.Form(t, binaries, members...)
}

// member describes a further replica.
func (c *cluster) member(t *testing.T, name string) process.Member {
	t.Helper()
	member := process.Member{Name: name, YAML: c.config}
	if c.authority != nil {
		member.SouthboundTLS = fmt.Sprintf("{source: %s}", c.authority.Issue(t, name))
	}
	return member
}

// leader waits until one of the running replicas leads, and returns it and the
// others.
func (c *cluster) leader(t *testing.T) (leader *process.Replica, others []*process.Replica) {
	t.Helper()
	observer.Eventually(t, "one leader", func(context.Context) error {
		leader, others = nil, nil
		for _, r := range c.replicas {
			if r.Exited() {
				continue
			}
			if !leads(t, r) {
				others = append(others, r)
				continue
			}
			if leader != nil {
				return fmt.Errorf("both %s and %s lead", leader.Member.Name, r.Member.Name)
			}
			leader = r
		}
		if leader == nil {
			return errors.New("none leads by its own word")
		}
		return nil
	})
	return leader, others
}

// waitLeader waits until one of the running replicas leads.
func (c *cluster) waitLeader(t *testing.T) {
	t.Helper()
	c.leader(t)
}

// leads tells whether a replica leads by its own word.
func leads(t *testing.T, r *process.Replica) bool {
	t.Helper()
	return roleOf(r.Status(t), r.Member.Name) == slimcppb.ReplicaRole_REPLICA_ROLE_LEADER
}

func roleOf(status *slimcppb.ClusterStatusResponse, name string) slimcppb.ReplicaRole {
	for _, replica := range status.GetReplicas() {
		if replica.GetName() == name {
			return replica.GetRole()
		}
	}
	return slimcppb.ReplicaRole_REPLICA_ROLE_UNSPECIFIED
}

// waitTolerance waits until a replica says that so many may fail.
func waitTolerance(t *testing.T, r *process.Replica, want uint32) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("failure tolerance of %d", want), func(context.Context) error {
		if status := r.Status(t); status.GetFailureTolerance() != want {
			return fmt.Errorf("%s says %v", r.Member.Name, status)
		}
		return nil
	})
}

// ask returns the view that a replica's operators have.
func (c *cluster) ask(t *testing.T, r *process.Replica) *lab {
	t.Helper()
	return &lab{Replica: r, Observer: observer.Dial(t, r.Northbound), southbound: []string{r.Southbound}, authority: c.authority}
}

// spec describes a node that registers with the first replica that lives, over a
// balancer of its own.
func (c *cluster) spec(t *testing.T, group, id string, on ...*process.Replica) nodeSpec {
	t.Helper()
	b := startBalancer(t, on...)
	spec := nodeSpec{group: group, id: id, port: process.FreePort(t), controlPlane: b.endpoint, balancer: b, release: nextRelease()}
	if c.authority != nil {
		spec.ca = c.authority.CA()
	}
	return spec
}

// startOn runs the node of a group, named after it, on the first replica that
// lives.
func (c *cluster) startOn(t *testing.T, l *lab, group string, on ...*process.Replica) *node {
	t.Helper()
	return l.start(t, c.spec(t, group, "node-"+group, on...))[0]
}
