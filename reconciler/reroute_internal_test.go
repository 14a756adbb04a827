package reconciler

import (
	"testing"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const rerouteTerm = 1

// apply applies one command to a store, as the leader of the term.
func apply(t *testing.T, store *fsm.Store, command *slimcppb.Command) fsm.Result {
	t.Helper()
	command.Generation, command.Seed = store.View().Generation(), 1
	entry := &slimcppb.Entry{Commands: []*slimcppb.Command{command}}
	result := store.Apply(store.View().Index()+1, rerouteTerm, entry)[0]
	if result.Err != nil {
		t.Fatalf("%T: %v", command.GetPayload(), result.Err)
	}
	return result
}

// failingPair is a store with a link between two groups of some nodes.
func failingPair(t *testing.T, nodes ...string) *fsm.Store {
	t.Helper()
	store := fsm.New()
	apply(t, store, &slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "c", ActiveSchema: fsm.SchemaVersion}}})
	apply(t, store, &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{Topology: &slimcppb.Topology{Segments: []*slimcppb.Segment{{
			Name: "default", Links: []*slimcppb.Adjacency{{Group: "a", Neighbors: []string{"b"}}},
		}}}},
	}}})
	for i, node := range nodes {
		for _, group := range []string{"a", "b"} {
			endpoint := group + node + ":1"
			apply(t, store, &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
				Session: &slimcppb.SessionName{ReplicaId: "cp", BootId: group, Counter: uint64(i + 1)},
				Group:   group, Node: node,
				Details: []*slimcppb.ConnectionDetail{{ExternalEndpoint: &endpoint}},
			}}})
		}
	}
	return store
}

// walk follows the attempts until there is none and returns their kinds.
func walk(t *testing.T, store *fsm.Store) (kinds []string, attempts map[string]int) {
	t.Helper()
	attempts = map[string]int{}
	for range 100 {
		link, ok := store.View().LinkBetween("a", "b")
		if !ok {
			t.Fatal("the pair lost its link")
		}
		attempts[fsm.Attempt(link.SourceNode, link.EndpointNode)]++
		source, dialled, found := nextAttempt(store.View(), link)
		if !found {
			return kinds, attempts
		}
		from, _ := store.View().Node(source)
		switch {
		case from.Group != link.SourceGroup:
			kinds = append(kinds, "direction")
		case dialled != link.EndpointNode:
			kinds = append(kinds, "endpoint")
		default:
			kinds = append(kinds, "source")
		}
		apply(t, store, &slimcppb.Command{Term: rerouteTerm, Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
			LinkId: link.ID, Revision: link.SourceRevision, SourceNodeId: source, DialledNodeId: dialled,
		}}})
	}
	t.Fatal("the attempts do not end")
	return nil, nil
}

func TestOtherWaysToMakeALinkTakeTurns(t *testing.T) {
	kinds, attempts := walk(t, failingPair(t, "n1", "n2"))
	if len(kinds) < 3 || kinds[0] != "source" || kinds[1] != "endpoint" || kinds[2] != "direction" {
		t.Errorf("the ways were %v", kinds)
	}
	if len(attempts) != 8 {
		t.Errorf("%d of the 8 ways were tried: %v", len(attempts), attempts)
	}
	for attempt, times := range attempts {
		if times != 1 {
			t.Errorf("%s was tried %d times", attempt, times)
		}
	}
}

func TestTheWaysThatAreTriedAreBounded(t *testing.T) {
	kinds, _ := walk(t, failingPair(t, "n1", "n2", "n3", "n4", "n5", "n6"))
	if len(kinds) != maxTried {
		t.Errorf("%d ways were tried, the bound is %d", len(kinds), maxTried)
	}
}

func TestASinglePairHasOnlyTheOtherDirection(t *testing.T) {
	kinds, _ := walk(t, failingPair(t, "n1"))
	if len(kinds) != 1 || kinds[0] != "direction" {
		t.Errorf("the ways were %v", kinds)
	}
}
