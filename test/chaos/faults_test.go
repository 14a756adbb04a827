//go:build chaos

package chaos_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// fault is something that happens to some replicas until it is healed.
type fault struct {
	name string
	// victims is how many replicas it takes out of the majority.
	victims int
	// leader: it happens to the leader, if that has no other fault.
	leader bool
	begin  func(c *chaos, victims []*member) (heal func())
}

// quorumLost replicas are a majority: without them nothing is acknowledged.
const quorumLost = size/2 + 1

func faults() []fault {
	return []fault{
		{name: "kill", victims: 1, begin: (*chaos).kill},
		{name: "kill the leader", victims: 1, leader: true, begin: (*chaos).kill},
		{name: "kill two", victims: 2, begin: (*chaos).kill},
		{name: "stop (SIGSTOP)", victims: 1, begin: (*chaos).stop},
		{name: "stop two", victims: 2, begin: (*chaos).stop},
		{name: "end (SIGTERM)", victims: 1, begin: (*chaos).end},
		{name: "cut off", victims: 1, begin: func(c *chaos, v []*member) func() { return c.cut(v, true, true) }},
		{name: "cut off two", victims: 2, begin: func(c *chaos, v []*member) func() { return c.cut(v, true, true) }},
		{name: "cut one way, from", victims: 1, begin: func(c *chaos, v []*member) func() { return c.cut(v, true, false) }},
		{name: "cut one way, to", victims: 1, begin: func(c *chaos, v []*member) func() { return c.cut(v, false, true) }},
		{name: "cut one pair", victims: 1, begin: (*chaos).cutPair},
		{name: "slow paths", victims: 0, begin: (*chaos).slow},
		{name: "connections end", victims: 0, begin: (*chaos).sever},
		{name: "address leads to another member", victims: 1, begin: (*chaos).misdirect},
		{name: "dead member's address leads to another member", victims: 1, begin: (*chaos).misdirectDead},
		{name: "two swap addresses", victims: 2, begin: (*chaos).rotate},
		{name: "three rotate addresses", victims: quorumLost, begin: (*chaos).rotate},
		{name: "disk full", victims: 1, begin: (*chaos).fillDisk},
		{name: "leadership is transferred", victims: 0, begin: (*chaos).transfer},
		{name: "quorum lost", victims: quorumLost, begin: (*chaos).kill},
		{name: "all are killed", victims: size, begin: (*chaos).kill},
		{name: "replaced at the same address", victims: 1, begin: (*chaos).replace},
		{name: "put back to an older image", victims: 1, begin: (*chaos).putBack},
	}
}

func (c *chaos) kill(victims []*member) func() {
	for _, m := range victims {
		m.down = true
		m.Kill(c.t)
	}
	return func() { c.launch(victims) }
}

func (c *chaos) launch(members []*member) {
	for _, m := range members {
		m.Launch(c.t)
		m.down = false
	}
}

func (c *chaos) stop(victims []*member) func() {
	for _, m := range victims {
		m.down = true
		m.Signal(c.t, syscall.SIGSTOP)
	}
	return func() {
		for _, m := range victims {
			m.Signal(c.t, syscall.SIGCONT)
			m.down = false
		}
	}
}

func (c *chaos) end(victims []*member) func() {
	for _, m := range victims {
		m.down = true
		if code := m.Terminate(c.t, time.Minute); code != 0 {
			c.t.Errorf("%s ended with exit code %d after SIGTERM", m.name, code)
		}
	}
	return func() { c.launch(victims) }
}

// others are all replicas but these.
func (c *chaos) others(victims []*member) []*member {
	return slices.DeleteFunc(slices.Clone(c.members), func(m *member) bool { return slices.Contains(victims, m) })
}

// cut closes the paths from these replicas to the others, or the other way, or both.
// Among each other they talk.
func (c *chaos) cut(victims []*member, from, to bool) func() {
	var paths [][2]string
	for _, m := range victims {
		for _, other := range c.others(victims) {
			if from {
				paths = append(paths, [2]string{m.name, other.name})
			}
			if to {
				paths = append(paths, [2]string{other.name, m.name})
			}
		}
	}
	return c.change(paths, func() path { return path{closed: true} })
}

// cutPair closes both directions between a replica and one other.
func (c *chaos) cutPair(victims []*member) func() {
	others := c.others(victims)
	other := others[c.random.IntN(len(others))]
	return c.change([][2]string{{victims[0].name, other.name}, {other.name, victims[0].name}}, func() path { return path{closed: true} })
}

func (c *chaos) slow([]*member) func() {
	var paths [][2]string
	for _, a := range c.members {
		for _, b := range c.members {
			if a != b && c.random.IntN(3) == 0 {
				paths = append(paths, [2]string{a.name, b.name})
			}
		}
	}
	return c.change(paths, func() path { return path{delay: time.Duration(5+c.random.IntN(100)) * time.Millisecond} })
}

func (c *chaos) change(paths [][2]string, to func() path) func() {
	for _, p := range paths {
		c.network.set(p[0], p[1], to())
	}
	return func() {
		for _, p := range paths {
			c.network.set(p[0], p[1], path{})
		}
	}
}

func (c *chaos) sever([]*member) func() {
	c.network.sever(c.members[c.random.IntN(size)].name)
	return func() {}
}

// misdirect makes a living replica's address lead to another one, as a stale name
// or a re-used address does.
func (c *chaos) misdirect(victims []*member) func() {
	m, others := victims[0], c.others(victims)
	c.network.lead(m.Member.Advertise, others[c.random.IntN(len(others))].backend())
	c.network.sever(m.name)
	return func() { c.network.lead(m.Member.Advertise, m.backend()) }
}

func (c *chaos) misdirectDead(victims []*member) func() {
	restart, redirect := c.kill(victims), c.misdirect(victims)
	return func() {
		redirect()
		restart()
	}
}

// rotate has replicas come back with each other's addresses.
func (c *chaos) rotate(victims []*member) func() {
	restart := c.kill(victims)
	first := victims[0].Member.Advertise
	for i, m := range victims {
		member := m.Member
		member.Advertise = first
		if i+1 < len(victims) {
			member.Advertise = victims[i+1].Member.Advertise
		}
		m.Configure(c.t, member)
		c.network.lead(member.Advertise, m.backend())
		c.network.sever(m.name)
	}
	return restart
}

func (c *chaos) fillDisk(victims []*member) func() {
	m := victims[0]
	if !m.mounted {
		return func() {}
	}
	if err := m.fill(); err != nil {
		c.t.Errorf("fill the disk of %s: %v", m.name, err)
	}
	return func() { m.free(c.t) }
}

// transfer asks somebody for another leader. It may be refused.
func (c *chaos) transfer([]*member) func() {
	asked, target := c.members[c.random.IntN(size)], c.members[c.random.IntN(size)]
	if !asked.down {
		asked.Operate(c.t, "cluster", "transfer-leader", target.name, "--timeout", "5s")
	}
	return func() {}
}

// replace removes a dead replica, and takes in a new one at its addresses: operators
// and nodes find that one there, too.
func (c *chaos) replace(victims []*member) func() {
	gone := victims[0]
	gone.down = true
	gone.Kill(c.t)
	return func() { c.takePlace(gone) }
}

// putBack starts a replica from an image of its disk that is a start old. Nobody takes
// it in, so it ends and is replaced.
func (c *chaos) putBack(victims []*member) func() {
	m := victims[0]
	data, image := m.Member.DataDir, filepath.Join(c.t.TempDir(), "image")
	restart := c.kill(victims)
	if err := os.CopyFS(image, os.DirFS(data)); err != nil {
		c.t.Fatal(err)
	}
	restart()
	return func() {
		c.eventually(time.Minute, m.name+" is seen after the image was taken", func() error {
			status, err := m.status()
			if err == nil && status.GetLeaderId() == "" {
				err = fmt.Errorf("%s knows no leader", m.name)
			}
			return err
		})
		c.kill(victims)
		if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(image))); err != nil {
			c.t.Fatal(err)
		}
		m.Launch(c.t)
		if code := m.Wait(c.t, time.Minute); code == 0 {
			c.t.Errorf("%s, from an older image of its disk, ended with exit code 0", m.name)
		}
		c.takePlace(m)
	}
}

// takePlace removes a dead replica, and takes in a new one at its addresses.
func (c *chaos) takePlace(gone *member) {
	others := c.others([]*member{gone})
	c.eventually(time.Minute, "a dead replica is removed", func() error {
		asked := others[c.random.IntN(len(others))] // one of them may be cut off
		if code, _, stderr := asked.Operate(c.t, "cluster", "remove", gone.name, "--timeout", "10s"); code != 0 {
			return fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return nil
	})
	m := c.newMember(gone.Member)
	c.network.lead(m.Member.Advertise, m.backend())
	c.members[slices.Index(c.members, gone)] = m
	c.eventually(time.Minute, "a new replica is a member", func() error {
		asked := others[c.random.IntN(len(others))]
		if code, _, stderr := m.Operate(c.t, "cluster", "join", asked.Member.Advertise, "--timeout", "20s"); code != 0 {
			return fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return nil
	})
}

// alive fails the test if a replica ended that no fault ended.
func (c *chaos) alive() {
	c.t.Helper()
	for _, m := range c.members {
		if !m.down && m.Exited() {
			c.t.Fatalf("%s ended by itself with exit code %d", m.name, m.Wait(c.t, time.Second))
		}
	}
}

// votes reports how many replicas are voters by the word of one.
func votes(status *slimcppb.ClusterStatusResponse) int {
	voters := 0
	for _, replica := range status.GetReplicas() {
		switch replica.GetRole() {
		case slimcppb.ReplicaRole_REPLICA_ROLE_LEADER, slimcppb.ReplicaRole_REPLICA_ROLE_VOTER:
			voters++
		default:
		}
	}
	return voters
}
