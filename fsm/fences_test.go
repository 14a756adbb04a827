package fsm

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func initCommand(clusterID string) *slimcppb.Command {
	return &slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: clusterID}}}
}

func TestACommandOfAnotherGenerationIsRefused(t *testing.T) {
	h := meshed(t)
	for _, generation := range []uint64{2, 7} {
		command := registerCommand(h.sessionName(), "a", "n1", "a.test:1")
		command.Generation = generation
		h.refuse(command, ErrStaleGeneration)
	}
	equal(t, "nodes", h.view().NodeCount(), 0)
	equal(t, "generation", h.view().Generation(), 1)
}

// What a deposed leader decided may still reach the log under the next one.
func TestWorkOfAnotherLeadershipIsRefused(t *testing.T) {
	h := meshed(t)
	session := h.register("a", "n1")
	h.register("b", "n1")
	h.lose(session)
	link := *h.between("a", "b")
	for _, command := range []*slimcppb.Command{
		departCommand("a/n1", session), replaceCommand(&link), leftCommand("a/n1"),
		reconciledCommand("b/n1", h.commandSession("b/n1"), 1, dialled(&link)), purgeCommand(nil, link.ID),
	} {
		for _, term := range []uint64{testTerm - 1, testTerm + 1} {
			command.Term = term
			h.refuse(command, ErrStaleTerm)
		}
	}
	h.refuse(leaderCommand(testTerm-1, "cp-1", "boot-1"), ErrStaleTerm)
	equal(t, "link", *h.between("a", "b"), link)
	equal(t, "state", h.node("a/n1").State, NodePresent)
	equal(t, "confirmed index", h.node("b/n1").Acked, 0)
}

func TestNothingIsAppliedBeforeTheClusterIsInitialised(t *testing.T) {
	h := &history{t: t, store: New(), spoken: map[SessionName]uint64{}}
	h.refuse(registerCommand(h.sessionName(), "a", "n1", ""), ErrNotInitialised)
	h.refuse(initCommand(""), ErrInvalid)
	h.must(initCommand("one"))
	h.must(initCommand("one")) // a repetition does no harm
	h.refuse(initCommand("two"), ErrInitialised)
	equal(t, "cluster id", h.view().ClusterID(), "one")
	h.register("a", "n1")
}

func TestACommandThatThisBinaryDoesNotKnowIsFatal(t *testing.T) {
	register := func() *slimcppb.Command {
		return registerCommand(SessionName{ReplicaID: "cp-1", BootID: "boot-1", Counter: 99}, "late", "n1", "late.test:1")
	}
	newer := register()
	newer.Schema = SchemaVersion + 1
	// A payload of a number that no command has.
	unknown := &slimcppb.Command{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 9999, protowire.BytesType), nil))
	for name, c := range map[string]struct {
		command *slimcppb.Command
		want    error
	}{
		"of a newer schema": {newer, ErrSchema}, "of an unknown type": {unknown, ErrUnknownCommand},
	} {
		t.Run(name, func(t *testing.T) {
			h := meshed(t)
			h.register("a", "n1")
			if h.store.Fatal() != nil {
				t.Fatal("fatal before")
			}
			generation := h.view().Generation()
			for _, command := range []*slimcppb.Command{c.command} {
				command.Generation = generation
			}
			good := register()
			good.Generation, good.Schema = generation, SchemaVersion
			next := h.view().Index() + 1
			entry := &slimcppb.Entry{Commands: []*slimcppb.Command{proto.CloneOf(c.command), good}}
			results := h.store.Apply(next, testTerm, entry)
			for _, result := range append(results, h.store.Apply(next+1, testTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{good}})...) {
				if !errors.Is(result.Err, c.want) {
					t.Errorf("answered %v, not %v", result.Err, c.want)
				}
			}
			if !errors.Is(h.store.Fatal(), c.want) {
				t.Errorf("fatal: %v", h.store.Fatal())
			}
			if _, known := h.view().Node("late/n1"); known {
				t.Error("a command after one that was not understood took effect")
			}
		})
	}
}

func TestAnEmptyEntryIsApplied(t *testing.T) {
	h := meshed(t)
	next := h.view().Index() + 1
	equal(t, "results", len(h.store.Apply(next, testTerm, &slimcppb.Entry{})), 0)
	equal(t, "index", h.view().Index(), next)
	equal(t, "fatal", h.store.Fatal(), nil)
}

func TestTheClockNeverGoesBack(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	before := h.view().Clock()
	h.clock = h.clock.Add(-time.Hour)
	h.register("b", "n1")
	equal(t, "clock", h.view().Clock(), before)
	equal(t, "time of a record", h.node("b/n1").CreatedAt, before)
	h.clock = h.clock.Add(3 * time.Hour)
	h.register("c", "n1")
	if !h.view().Clock().After(before) {
		t.Error("the clock stands still")
	}
	equal(t, "clock", h.view().Clock(), h.clock)
}

// Times come from the log and nowhere else.
func TestTheClockStandsStillWithoutStamps(t *testing.T) {
	h := meshed(t)
	before := h.view().Clock()
	command := registerCommand(h.sessionName(), "a", "n1", "")
	command.Generation = 1
	h.store.Apply(h.view().Index()+1, testTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})
	equal(t, "clock", h.view().Clock(), before)
	equal(t, "created", h.node("a/n1").CreatedAt, before)
}

// TestPicksFollowTheSeed replays one log under different seeds: the same seed
// gives the same bytes, and different ones give every candidate its turn.
func TestPicksFollowTheSeed(t *testing.T) {
	play := func(seed uint64) (*history, string) {
		h := meshed(t)
		h.seed = seed
		for _, node := range []string{"n1", "n2", "n3"} {
			h.register("a", node)
		}
		b := h.register("b", "n1")
		h.register("b", "n2")
		h.register("b", "n3")
		chosen := h.between("a", "b").EndpointNode
		h.depart("b/n1", b)
		return h, chosen + " " + h.between("a", "b").SourceNode
	}
	outcomes := map[string]bool{}
	ids := map[string]bool{}
	for seed := range uint64(64) {
		h, outcome := play(seed * 1_000_003)
		again, sameOutcome := play(seed * 1_000_003)
		if outcome != sameOutcome || !bytes.Equal(snapshotBytes(t, h.store), snapshotBytes(t, again.store)) {
			t.Fatalf("seed %d: %s, then %s", seed, outcome, sameOutcome)
		}
		outcomes[outcome] = true
		ids[h.between("a", "b").ID] = true
	}
	equal(t, "different choices", len(outcomes), 6)
	equal(t, "different link ids", len(ids), 64)
}

// Two links that one command makes have different ids.
func TestLinkIDsOfOneCommandDiffer(t *testing.T) {
	h := newHistory(t)
	for _, group := range []string{"a", "b", "c", "d"} {
		h.register(group, "n1")
	}
	h.must(mesh())
	ids := map[string]bool{}
	for link := range h.view().Links() {
		ids[link.ID] = true
	}
	equal(t, "different ids", len(ids), 6)
}
