package ensemble_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/slim-cp/slim-cp/dataplane"
)

var kills = flag.Int("kills", 4, "how often replicas are killed under load")

// Whichever replicas are killed while names are being announced, every link keeps
// its id.
func TestKilledReplicasChangeNoLinkID(t *testing.T) {
	e := form(t)
	var fleet []*dataplane.Node
	for group := range 5 {
		for id := range 2 {
			fleet = append(fleet, e.join(fmt.Sprintf("g%d", group), fmt.Sprintf("n%d", id), e.running()...))
		}
	}
	e.converged()
	links := linkIDs(e.view())
	for kill := range *kills {
		for i, node := range fleet { // routes are on their way when the replicas end
			node.Announce(dataplane.InstanceName("org", "ns", fmt.Sprintf("name-%d-%d", kill, i)))
		}
		victims := e.followers()
		switch kill % 3 {
		case 0:
			victims = []*replica{e.leader()}
		case 1:
			victims = victims[:1]
		}
		for _, victim := range victims {
			e.kill(victim.name)
		}
		for _, victim := range victims {
			e.start(victim.name)
		}
		e.converged()
		now := linkIDs(e.view())
		for id := range links {
			if _, ok := now[id]; !ok {
				t.Fatalf("kill %d: link %s has another id", kill, id)
			}
		}
	}
}
