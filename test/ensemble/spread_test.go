package ensemble_test

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

// Where the nodes' streams are is shown by every replica, and nobody moves them: a
// stream that is closed costs its node its links (istio/istio#11181 has the fault, of
// which closing streams would be the cure).
func TestSpreadIsShownAndKept(t *testing.T) {
	e := form(t)
	full := e.followers()[0]
	for i := range 6 {
		e.join(fmt.Sprintf("g%d", i/2), fmt.Sprintf("n%d", i%2), full)
	}
	e.converged()
	for _, r := range e.running() {
		r.CountSessions(func() int { return len(r.nodes.Sessions()) })
	}
	want := map[string]uint64{full.ReplicaID(): 6}
	for _, r := range e.running() {
		shown := map[string]uint64{}
		for _, member := range r.Status(t.Context()).Members {
			if member.Sessions > 0 {
				shown[member.ReplicaID] = member.Sessions
			}
		}
		if !maps.Equal(shown, want) {
			t.Errorf("%s shows the sessions %v, want %v", r.name, shown, want)
		}
	}
	before := sessions(e.view())
	e.throughout(2*time.Second, "nobody moves a stream", func() error {
		if streams := full.nodes.Stats().Streams; streams != 6 {
			return fmt.Errorf("%d streams", streams)
		}
		return nil
	})
	wantEqual(t, "sessions", sessions(e.view()), before)
}
