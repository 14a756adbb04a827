package southbound

import (
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// A node may send megabytes in any field: none of them makes a log line that long.
func TestLoggedValuesAreBounded(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	register := func(request *controllerpb.RegisterNodeRequest) (*registration, error) {
		return parseRegistration(fsm.New().View(), &controllerpb.ControlMessage{
			Payload: &controllerpb.ControlMessage_RegisterNodeRequest{RegisterNodeRequest: request},
		}, nil)
	}
	for _, group := range []string{"", "a", long} {
		refused, err := register(&controllerpb.RegisterNodeRequest{DomainName: &group, NodeId: long})
		if err == nil || len(err.Error()) > 1000 || len(refused.nodeID) > 1000 || !strings.Contains(refused.nodeID, "(2097152 bytes)") {
			t.Errorf("refused as %.200q, %.200v", refused.nodeID, err)
		}
	}
	taken, err := register(&controllerpb.RegisterNodeRequest{
		NodeId:            "n",
		ConnectionDetails: []*controllerpb.ConnectionDetails{{Endpoint: long, AuthMethod: 99}},
	})
	if err != nil || len(taken.skipped) != 1 || len(taken.skipped[0].Error()) > 1000 {
		t.Errorf("skipped %.200v, %v", taken.skipped, err)
	}
	group := strings.Repeat("g", 253)
	whole, err := register(&controllerpb.RegisterNodeRequest{DomainName: &group, NodeId: strings.Repeat("n", 253)})
	if err != nil || len(whole.nodeID) != 507 {
		t.Errorf("a long good id is %q, %v", whole.nodeID, err)
	}
}
