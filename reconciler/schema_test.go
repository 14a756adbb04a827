package reconciler_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/world"
)

// Only the log's proposer knows which schema the cluster uses: a leader that
// names its own newest one gets nothing done before an upgrade is finalized
// (protocol X5).
func TestNoCommandNamesASchema(t *testing.T) {
	graces := world.DefaultGraces()
	graces.NodeRetentionMs = 1_800_000
	world.Run(t, world.Options{Graces: graces}, func(t *testing.T, w *world.World) {
		var mu sync.Mutex
		seen := map[string]bool{}
		w.Replica().Refuse(func(command *slimcppb.Command) error {
			mu.Lock()
			defer mu.Unlock()
			kind := strings.TrimPrefix(fmt.Sprintf("%T", command.GetPayload()), "*slimcppb.Command_")
			if command.GetSchema() != 0 && !seen[kind] {
				t.Errorf("%s names schema %d", kind, command.GetSchema())
			}
			seen[kind] = true
			return nil
		})
		a, b := w.Join("a", "n", world.NoExternal), w.Join("b", "n")
		a.Announce(world.Name("x"))
		w.Settle()
		// Nobody confirms a link, so it is replaced.
		w.Taps.Set(func(*southbound.Call) func(*southbound.Answer) {
			return func(answer *southbound.Answer) {
				for _, entry := range answer.Connections {
					entry.PeerNodeId = nil
				}
			}
		})
		c := w.AddNode("c", "n")
		a.LoseClaims(true)
		c.LoseClaims(true)
		w.Start(c)
		pass(40 * time.Second)
		w.Taps.Set(nil)
		c.LoseClaims(false)
		a.LoseClaims(false)
		w.Settle()
		a.Withdraw(world.Name("x"))
		w.Network.Break(w.Link("a", "b").ID)
		pass(3 * time.Minute)
		if err := b.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		c.Kill()
		pass(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		for _, kind := range []string{
			"RegisterNode", "SessionLost", "DeregisterNode", "Announce", "ClaimLink", "NodeReconciled", "Observed",
			"ReplaceLink", "DepartNode", "NodeLeft", "PurgeTombstones", "ExpireNodes",
		} {
			if !seen[kind] {
				t.Errorf("no %s was proposed", kind)
			}
		}
	})
}
