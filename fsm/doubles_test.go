package fsm

import (
	"testing"
	"time"
)

func TestTwoProcessesWithOneID(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint, address string
		after             time.Duration
		want              bool
	}{
		"two streams of one process":           {"n1.test:1", "10.0.0.1:5001", time.Hour, false},
		"another host":                         {"n1.test:1", "10.0.0.2:5000", 61 * time.Second, true},
		"another endpoint behind one balancer": {"other.test:1", "10.0.0.1:5001", 61 * time.Second, true},
		"a restart elsewhere, not yet noticed": {"n1.test:1", "10.0.0.2:5000", 60 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := meshed(t)
			first := registerCommand(h.sessionName(), "a", "n1", "n1.test:1")
			first.GetRegisterNode().PeerAddress = "10.0.0.1:5000"
			h.must(first)
			h.clock = h.clock.Add(time.Hour)
			second := registerCommand(h.sessionName(), "a", "n1", c.endpoint)
			second.GetRegisterNode().PeerAddress = c.address
			h.must(second)
			older, newer, double := h.node("a/n1").Double(h.clock.Add(c.after))
			equal(t, "double", double, c.want)
			if double {
				equal(t, "older", older.PeerAddress, "10.0.0.1:5000")
				equal(t, "newer", newer.PeerAddress, c.address)
			}
			h.lose(sessionNameFromProto(first.GetRegisterNode().GetSession()))
			_, _, double = h.node("a/n1").Double(h.clock.Add(time.Hour))
			equal(t, "double after one is gone", double, false)
		})
	}
}
