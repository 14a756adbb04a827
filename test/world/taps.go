package world

import (
	"sync"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// Push is one request of the leader to a node. First commands, which the
// southbound service writes by itself, are not among them.
type Push struct {
	At     time.Time
	NodeID string
	// Command is nil for a request for lists.
	Command     *controllerpb.ConfigurationCommand
	Connections bool // a request for the connection list
}

// Tap may change a request before it goes out; it must replace a command, not
// write to it. What it returns, if not nil, may change the answer.
type Tap func(call *southbound.Call) func(*southbound.Answer)

// Taps see and change what the leader sends to nodes.
type Taps struct {
	mu       sync.Mutex
	tap      Tap
	recorded []Push
	record   bool
	count    int // of commands since the start
	// unreached: the leader does not reach the replicas that hold the nodes' streams.
	unreached bool
}

// Set replaces the tap; nil removes it.
func (t *Taps) Set(tap Tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tap = tap
}

// Unreach makes the leader think that no replica is reached, or that all are again.
func (t *Taps) Unreach(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreached = on
}

// Record starts a new record of what is sent.
func (t *Taps) Record() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.record, t.recorded = true, nil
}

// Pushes returns what was sent to a node since Record.
func (t *Taps) Pushes(nodeID string) []Push {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pushes []Push
	for _, push := range t.recorded {
		if push.NodeID == nodeID {
			pushes = append(pushes, push)
		}
	}
	return pushes
}

// Commands returns the commands sent to a node since Record.
func (t *Taps) Commands(nodeID string) []*controllerpb.ConfigurationCommand {
	var commands []*controllerpb.ConfigurationCommand
	for _, push := range t.Pushes(nodeID) {
		if push.Command != nil {
			commands = append(commands, push.Command)
		}
	}
	return commands
}

func (t *Taps) commands() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

func (t *Taps) note(push Push) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if push.Command != nil {
		t.count++
	}
	if t.record {
		push.At = time.Now()
		t.recorded = append(t.recorded, push)
	}
}

// tapped is the southbound service as the reconciler sees it.
type tapped struct {
	*southbound.Service
	taps *Taps
}

// Reached implements reconciler.Nodes.
func (s *tapped) Reached(replicaID string) bool {
	s.taps.mu.Lock()
	unreached := s.taps.unreached
	s.taps.mu.Unlock()
	return !unreached && s.Service.Reached(replicaID)
}

func (s *tapped) Call(call southbound.Call, done func(southbound.Answer)) {
	s.taps.mu.Lock()
	tap := s.taps.tap
	s.taps.mu.Unlock()
	var amend func(*southbound.Answer)
	if tap != nil {
		amend = tap(&call)
	}
	s.taps.note(Push{NodeID: call.NodeID, Command: call.Command, Connections: call.ListConnections})
	s.Service.Call(call, func(answer southbound.Answer) {
		if amend != nil {
			amend(&answer)
		}
		done(answer)
	})
}
