package fsm

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	benchGroups       = 100
	benchNamesOfGroup = 10
)

// starFleet is a star of benchGroups groups in which all links stand and each
// group announces benchNamesOfGroup names.
func starFleet(b *testing.B, nodes int) (*history, []SessionName) {
	b.Helper()
	h := star(b)
	var sessions []SessionName
	for i := range nodes {
		group := "hub"
		if at := i % benchGroups; at > 0 {
			group = fmt.Sprintf("spoke-%02d", at)
		}
		sessions = append(sessions, h.register(group, fmt.Sprintf("node-%05d", i)))
	}
	h.stand()
	for i, session := range sessions[:benchGroups] {
		var names []Name
		for j := range benchNamesOfGroup {
			names = append(names, appName(fmt.Sprintf("app-%02d", i), byte(j)))
		}
		h.announce(session, names...)
	}
	return h, sessions
}

// BenchmarkApplyAnnounce applies announcements of new names one by one, each with
// the publication of the view. The cost must not follow the size of the fleet.
func BenchmarkApplyAnnounce(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			h, sessions := starFleet(b, nodes)
			const round = 10_000
			entries := make([]*slimcppb.Entry, round)
			for i := range entries {
				session := sessions[i%len(sessions)]
				name := Name{C0: "org", C1: "bench", C2: fmt.Sprintf("app-%04d", i*7919%round), ID: NoInstance}
				command := announceCommand(session, h.nextSequence(session), announcing(name)...)
				command.Generation = h.view().Generation()
				entries[i] = &slimcppb.Entry{Commands: []*slimcppb.Command{command}}
			}
			first := h.view().Index() + 1
			saved := h.store.Capture()
			at := 0
			b.ReportAllocs()
			for b.Loop() {
				if at == round { // begin again with the same state
					b.StopTimer()
					h.store.state = saved.tables.copy()
					at = 0
					b.StartTimer()
				}
				if result := h.store.Apply(first+uint64(at), testTerm, entries[at])[0]; result.Err != nil {
					b.Fatal(result.Err)
				}
				at++
			}
		})
	}
}

// BenchmarkApplyClaim applies the claim of a link over which many names travel, and
// publishes the view. Routes are not in the state, so the names cost nothing.
func BenchmarkApplyClaim(b *testing.B) {
	for _, names := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("names=%d", names), func(b *testing.B) {
			h := star(b)
			hub := h.register("hub", "node")
			spoke := h.register("spoke", "node")
			const chunk = 100
			for at := range names / chunk {
				var announced []Name
				for instance := range chunk {
					announced = append(announced, appName(fmt.Sprintf("app-%03d", at), byte(instance)))
				}
				h.announce([]SessionName{hub, spoke}[at%2], announced...)
			}
			link, _ := h.view().LinkBetween("hub", "spoke")
			session := h.commandSession(link.EndpointNode)
			command := claimCommand(session, h.nextSequence(session), link.ID, "claim")
			command.Generation = h.view().Generation()
			entry := &slimcppb.Entry{Commands: []*slimcppb.Command{command}}
			next := h.view().Index() + 1
			saved := h.store.Capture()
			b.ReportAllocs()
			for b.Loop() {
				h.store.state = saved.tables.copy()
				if result := h.store.Apply(next, testTerm, entry)[0]; result.Err != nil {
					b.Fatal(result.Err)
				}
			}
			if link, _ := h.view().LinkBetween("hub", "spoke"); link.Status != LinkApplied {
				b.Errorf("the claimed link is %v", link.Status)
			}
		})
	}
}

// BenchmarkApplyGroup applies the registration of a group that is new, with all that
// follows for its links, and compares the last of many groups with the twentieth. In a
// star each has one link; in a mesh an entry makes as many as its budget allows.
func BenchmarkApplyGroup(b *testing.B) {
	const few, many = 20, 400
	for name, topology := range map[string]*slimcppb.Command{
		"mesh": mesh(), "star": topologyCommand(linksSegment(DefaultSegment, [2]string{"g000", Wildcard})),
	} {
		b.Run(name, func(b *testing.B) {
			h := newHistoryOf(b, 2)
			h.must(topology)
			var states []*Snapshot
			var entries []Batch
			for i, command := range h.registrations(many) {
				if i+1 == few || i+1 == many {
					states = append(states, h.store.Capture())
				}
				h.must(command)
				if i+1 == few || i+1 == many {
					entries = append(entries, h.log[len(h.log)-1])
				}
				h.makeLinks()
			}
			var spent [2]time.Duration
			for b.Loop() {
				for i := range entries {
					h.store.state = states[i].tables.copy()
					start := time.Now()
					h.store.ApplyBatch(entries[i : i+1])
					spent[i] += time.Since(start)
				}
			}
			b.ReportMetric(float64(spent[1])/float64(max(1, spent[0])), "last/twentieth")
		})
	}
}

// BenchmarkApplyRegister applies registrations of nodes that are known, with all
// that follows for their links, one by one.
func BenchmarkApplyRegister(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			h, sessions := starFleet(b, nodes)
			entries := make([]*slimcppb.Entry, len(sessions))
			i := 0
			for node := range h.view().Nodes() {
				lost := lostCommand(h.commandSession(node.ID))
				register := registerCommand(h.sessionName(), node.Group, node.LocalID, node.Details[0].ExternalEndpoint)
				lost.Generation, register.Generation = h.view().Generation(), h.view().Generation()
				entries[i] = &slimcppb.Entry{Commands: []*slimcppb.Command{lost, register}}
				i++
			}
			first := h.view().Index() + 1
			saved := h.store.Capture()
			at := 0
			b.ReportAllocs()
			for b.Loop() {
				if at == len(entries) {
					b.StopTimer()
					h.store.state = saved.tables.copy()
					at = 0
					b.StartTimer()
				}
				for _, result := range h.store.Apply(first+uint64(at), testTerm, entries[at]) {
					if result.Err != nil {
						b.Fatal(result.Err)
					}
				}
				at++
			}
		})
	}
}

// snapshotFleet is a star of 1,000 nodes that announce 10,000 names.
func snapshotFleet(b *testing.B) *history {
	b.Helper()
	h, sessions := starFleet(b, 1_000)
	for i, session := range sessions {
		var names []Name
		for j := range 9 {
			names = append(names, appName(fmt.Sprintf("own-%04d", i), byte(j)))
		}
		h.announce(session, names...)
	}
	return h
}

// BenchmarkSnapshot writes and reads the state of 1,000 nodes and 10,000 names.
// Taking it is what Apply waits for.
func BenchmarkSnapshot(b *testing.B) {
	h := snapshotFleet(b)
	data := snapshotBytes(b, h.store)
	b.Run("take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.store.Capture()
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if err := h.store.Capture().Write(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := ReadSnapshot(bytes.NewReader(data)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
