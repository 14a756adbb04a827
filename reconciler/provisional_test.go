package reconciler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/world"
)

// A node that is answered provisionally has answered its first command before the
// log tells what became of its registration. If its session was lost meanwhile the
// stream gets another one, which is driven at once: that one is not marked as
// resumed, since its registration was never known to be in the log.
func TestProvisionalNodeIsDrivenUnderItsNextSession(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("session lost meanwhile: %v", lost), func(t *testing.T) {
			world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
				a := w.Join("a", "n")
				a.Announce(world.Name("x"))
				w.Settle()
				first := true
				w.Replica().Refuse(func(command *slimcppb.Command) error {
					switch {
					case command.GetTerm() != 0:
						return nil // the leader's own
					case command.GetRegisterNode() != nil && first:
						first = false
						w.Apply(command)
						return &cluster.UnknownOutcomeError{Cause: errors.New("cut off")}
					}
					return cluster.ErrNoLeader
				})
				b := w.Join("b", "n")
				pass(6 * time.Second)
				if lost {
					w.Apply(&slimcppb.Command{Payload: &slimcppb.Command_SessionLost{SessionLost: &slimcppb.SessionLost{
						Session: w.Record(b.ID()).Sessions[0].Name.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_UNREACHABLE,
					}}})
				}
				w.Taps.Record()
				w.Replica().Refuse(nil)
				w.Eventually("the node is registered", 10*time.Second, func() error {
					if len(w.Record(b.ID()).Sessions) != 1 {
						return errors.New("it has no session")
					}
					return nil
				})
				pass(time.Second)
				if lost && len(w.Taps.Pushes(b.ID())) == 0 {
					t.Error("nothing was sent to the node within a second")
				}
				w.Settle()
				a.Announce(world.Name("y"))
				w.Settle()
			})
		})
	}
}
