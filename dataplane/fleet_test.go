package dataplane

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func TestFleet(t *testing.T) {
	inBubble(t, func(cp *stub, network *Network) {
		t := cp.t
		fleet, err := NewFleet(FleetOptions{
			Groups: 2, NodesPerGroup: 3, Names: 4, Network: network,
			Node: NodeOptions{Servers: []Server{{"stub"}}, Dialer: cp.dial},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := fleet.Start(); err != nil {
			t.Fatal(err)
		}
		cp.latest()
		if cp.opened() != 6 {
			t.Fatalf("%d streams, want one per node", cp.opened())
		}
		for _, conv := range cp.streams[1:] {
			conv.accept()
		}
		cp.streams[0].end(nil)
		err = fleet.WaitRegistered(t.Context())
		if !errors.Is(err, ErrHandshake) || len(fleet.GaveUp()) != 1 || !strings.Contains(err.Error(), fleet.GaveUp()[0].ID()) {
			t.Errorf("a node gave up: %v, %v", err, fleet.GaveUp())
		}
		// Each group reaches itself; nothing links the two.
		matrix := network.Matrix()
		if defects := matrix.Complete(func(_, _ string) bool { return false }); len(defects) != 0 || len(matrix.Cells) != 16 {
			t.Errorf("%d cells, defects %v", len(matrix.Cells), defects)
		}
		if defects := matrix.Complete(Everything); len(defects) != 8 {
			t.Errorf("defects %v, want 8", defects)
		}
		fleet.Close()
		for _, node := range fleet.Nodes() {
			if node.Phase() != Stopped {
				t.Errorf("%s is %s", node.ID(), node.Phase())
			}
		}
	})
}

func TestFleetNamesAreTheSameInEveryRun(t *testing.T) {
	if !proto.Equal(FleetName("a", 1), FleetName("a", 1)) {
		t.Error("one number, two names")
	}
	if got, want := FormatName(FleetName("group-1", 1)), "org/group-1/app-1/c5c4f861-4e4e-efa0-b101-dd85acee16cf"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFleetOptionsAreChecked(t *testing.T) {
	for _, options := range []FleetOptions{{}, {Groups: 1}, {Groups: 1, NodesPerGroup: 1, Names: -1}} {
		if _, err := NewFleet(options); err == nil {
			t.Errorf("%+v was accepted", options)
		}
	}
}
