package northbound

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// convergence asks the handler without a connection.
func (f *fleet) convergence() *slimcppb.ConvergenceResponse {
	f.tb.Helper()
	answer, err := NewService(f.options()).Convergence(handlerContext(), &slimcppb.ConvergenceRequest{})
	if err != nil {
		f.tb.Fatal(err)
	}
	return answer
}

func handlerContext() context.Context {
	return grpc.NewContextWithServerTransportStream(context.Background(), headerSink{})
}

func (f *fleet) wantConvergence(tb testing.TB, counts *slimcppb.ConvergenceResponse, lines ...string) {
	tb.Helper()
	got := f.convergence()
	wantLines(tb, got.GetLines(), lines...)
	counts.Index, counts.Converged = f.index, len(lines) == 0
	got.Lines = nil
	got.Warnings = plain(got.Warnings)
	if len(got.Warnings) == 0 {
		got.Warnings = nil
	}
	if !proto.Equal(got, counts) {
		tb.Errorf("got %v, want %v", got, counts)
	}
}

// TestConvergence follows a fleet until it holds what it should, and back.
func TestConvergence(t *testing.T) {
	f := newFleet(t, mesh())
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{})

	f.register("a/1", inner())
	f.register("b/1", inner())
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 2},
		"groups a and b are not linked: neither group a nor group b has a connected node with an external endpoint")

	f.register("a/1", gateway("a-ext:1"))
	f.announce("a/1", "app")
	link := f.link("a", "b")
	counts := &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 2, Links: 1}
	if link.SourceGroup == "a" {
		t.Fatalf("node %s dials", link.SourceNode)
	}
	f.wantConvergence(t, counts, "link LINK of groups b and a is PENDING: node b/1 has been dialling since TIME")
	f.reconciled("b/1", dialled(link, "connection refused"))
	f.wantConvergence(t, counts,
		"link LINK of groups b and a is FAILED: it was dialled at TIME and failed, 1 in a row: connection refused; the next try is due at TIME")

	f.claim("a/1", link)
	counts.AppliedLinks, counts.Routes = 1, 1
	f.wantConvergence(t, counts, fmt.Sprintf(
		"node b/1: routes not applied: 1, among them %s over link LINK: the node has confirmed index %d, the route is of index %d", app, f.index-2, f.index))
	f.reconciled("b/1", nil, &slimcppb.RouteFailure{Name: appName("app"), LinkId: link.ID, Revision: f.index, Error: "connection not found"})
	f.wantConvergence(t, counts, "node b/1: routes failed: 1, among them "+app+" over link LINK: connection not found")
	f.reconciled("b/1", nil)
	counts.AppliedRoutes = 1
	f.wantConvergence(t, counts)

	f.withdraw("a/1", "app")
	counts.Routes, counts.AppliedRoutes = 0, 0
	f.wantConvergence(t, counts,
		"withdrawn names whose routes nodes may still hold: 1, among them "+app+" of node a/1, withdrawn at TIME")
	f.reconciled("b/1", nil)
	f.wantConvergence(t, counts)

	f.setTopology(&slimcppb.Segment{Name: "other"})
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 2},
		"node b/1 still holds the deleted link LINK: "+f.onlyLink().StatusMessage)
	f.dropped(link)
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 2})
}

// Two processes that give themselves one id are named, and nothing waits for them.
func TestConvergenceWarnsOfDoubles(t *testing.T) {
	f := newFleet(t, star("hub"))
	f.register("a/1", gateway("a-ext:1"))
	f.register("a/1", gateway("other:1"))
	if warnings := f.convergence().GetWarnings(); len(warnings) != 0 {
		t.Errorf("right after a restart: %q", warnings)
	}
	f.clock = f.clock.Add(2 * time.Minute)
	f.register("b/1")
	got := f.convergence()
	wantLines(t, got.GetWarnings(),
		"two processes with one id: a/1 has been connected from 192.0.2.1:1 since TIME (2m3s ago) and from 192.0.2.1:2 since TIME (2m2s ago); the later one gets the commands")
	if !got.GetConverged() {
		t.Errorf("not converged for it: %q", got.GetLines())
	}
}

// A node that may yet come back is missed; one that was given up is not.
func TestConvergenceOfNodes(t *testing.T) {
	f := newFleet(t, star("hub"))
	f.register("a/1")
	f.register("a/2")
	f.silence("a/2")
	f.lose("a/1")
	silent := "node a/2 is connected but does not answer: it gets no new links"
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 1},
		"node a/1 has not been connected since TIME: its stream ended", silent)
	f.depart("a/1")
	gone := []string{"node a/1 is gone: it has not been connected since TIME"}
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 1, ConnectedNodes: 1, DepartedNodes: 1, Warnings: gone}, silent)
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_DeregisterNode{DeregisterNode: &slimcppb.DeregisterNode{
		Session: f.sessions["a/2"].name,
	}}})
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 1, ConnectedNodes: 1, DepartedNodes: 1, Warnings: gone},
		"node a/2 is leaving: it deregistered or was evicted")
}

// A fleet whose nodes are all gone has converged, and says so.
func TestConvergenceNamesNodesThatAreGone(t *testing.T) {
	f := newFleet(t, star("hub"))
	for i := range 6 {
		id := fmt.Sprintf("a/%d", i)
		f.register(id)
		f.lose(id)
		f.depart(id)
	}
	got := f.convergence()
	if !got.GetConverged() || got.GetNodes() != 0 || got.GetDepartedNodes() != 6 {
		t.Errorf("%v", got)
	}
	warnings := plain(got.GetWarnings())
	if len(warnings) != 6 || warnings[0] != "node a/0 is gone: it has not been connected since TIME" || warnings[5] != "more nodes that are gone: 1" {
		t.Errorf("warnings are\n%s", strings.Join(warnings, "\n"))
	}
	f.register("a/5")
	if again := f.convergence(); again.GetDepartedNodes() != 5 || again.GetNodes() != 1 {
		t.Errorf("after one came back: %v", again)
	}
}

// What nobody can dial is named: the node has no link for it.
func TestMalformedEndpointsAreNamed(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", inner())
	bad := gateway("b ext:1")
	bad.ExternalEndpointMalformed = true
	f.register("b/1", bad)
	named := `nobody can dial the external endpoint "b ext:1" of node b/1: accepted is HOST:PORT`
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 2, ConnectedNodes: 2, Warnings: []string{named}},
		"groups a and b are not linked: neither group a nor group b has a connected node with an external endpoint")
	f.wantLink(t, false, allowed, named, "neither group a nor group b has a connected node with an external endpoint")
	for i := range 7 {
		f.register(fmt.Sprint("b/x", i), bad)
	}
	answer, err := f.operator(t).ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "a", GroupB: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if lines := answer.GetLines(); len(lines) != 8 || lines[6] != "more nodes with an external endpoint that nobody can dial: 3" {
		t.Errorf("lines are\n%s", strings.Join(lines, "\n"))
	}
	// It is shown as the node sent it.
	if nodes := f.operator(t).nodes(t); nodes[1].GetConnections()[0].GetExternalEndpoint() != "b ext:1" {
		t.Errorf("nodes %v", nodes)
	}
}

// A link whose end is disputed may have its routes at the wrong node.
func TestConvergenceWaitsForDisputes(t *testing.T) {
	f, link := twoGroups(t)
	f.claim("a/1", link)
	f.register("a/2")
	f.claim("a/2", link)
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 3, ConnectedNodes: 3, Links: 1, AppliedLinks: 1},
		"link LINK of groups b and a is APPLIED: it stands since TIME, from node b/1 to node a/1; "+
			"its end at node a/1 is disputed by node a/2; the connection list of node b/1 will tell")
}

// What a node refused for a link that another one holds now is nobody's failure.
func TestConvergenceForgetsOldFailures(t *testing.T) {
	f, link := twoGroups(t)
	f.register("a/2")
	f.claim("a/1", link)
	f.announce("b/1", "app")
	f.reconciled("a/1", nil, &slimcppb.RouteFailure{Name: appName("app"), LinkId: link.ID, Revision: f.index, Error: "refused"})
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_Observed{Observed: &slimcppb.Observed{
		NodeId: "b/1", Session: f.sessions["b/1"].name, Links: []*slimcppb.LinkObservation{{
			LinkId: link.ID, Revision: f.link("a", "b").SourceRevision, Seen: &slimcppb.LinkObservation_Up{Up: "2"},
		}},
	}}})
	f.reconciled("a/2", nil)
	f.wantConvergence(t, &slimcppb.ConvergenceResponse{Nodes: 3, ConnectedNodes: 3, Links: 1, AppliedLinks: 1, Routes: 1, AppliedRoutes: 1})
}

func TestConvergenceIsBounded(t *testing.T) {
	f := newFleet(t, star("hub"))
	for i := range 150 {
		id := fmt.Sprintf("g%d/1", i)
		f.register(id)
		f.lose(id)
	}
	lines := f.convergence().GetLines()
	if len(lines) != 100 || lines[99] != "and 51 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}

var countedRoutes = regexp.MustCompile(`^node \S+: routes (not applied|failed): (\d+), among them org/ns/[xyz]/NULL_COMPONENT over link \S+: \S`)

// Whatever happened to a fleet, the counts are those of the listed routes, and
// each that is not applied is counted at its node.
func TestConvergenceCountsWhatIsListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := randomFleet(t)
		routes := map[string]controlplanepb.RouteStatus{}
		for _, row := range f.rows(fsm.RouteFilter{}) {
			if row.GetSourceNodeId() != "*" && row.GetStatus() != controlplanepb.RouteStatus_ROUTE_STATUS_DELETED {
				routes[row.GetSourceNodeId()+row.GetLinkId()+row.GetName().GetStrName().GetStrComponent_2()] = row.GetStatus()
			}
		}
		want := map[string]uint64{}
		for _, status := range routes {
			want[status.String()]++
		}
		answer := f.convergence()
		got := map[string]uint64{}
		if answer.GetAppliedRoutes() > 0 {
			got["ROUTE_STATUS_APPLIED"] = answer.GetAppliedRoutes()
		}
		for _, line := range answer.GetLines() {
			match := countedRoutes.FindStringSubmatch(line)
			if match == nil {
				if strings.Contains(line, "routes not applied") || strings.Contains(line, "routes failed") {
					t.Fatalf("unreadable: %s", line)
				}
				continue
			}
			status := "ROUTE_STATUS_PENDING"
			if match[1] == "failed" {
				status = "ROUTE_STATUS_FAILED"
			}
			count, err := strconv.ParseUint(match[2], 10, 64)
			if err != nil || count == 0 {
				t.Fatalf("line %q", line)
			}
			got[status] += count
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || answer.GetRoutes() != uint64(len(routes)) {
			t.Fatalf("%v of %d routes, want %v of %d", got, answer.GetRoutes(), want, len(routes))
		}
		if answer.GetConverged() != (len(answer.GetLines()) == 0) {
			t.Fatalf("converged: %v, with %q", answer.GetConverged(), answer.GetLines())
		}
	})
}

// Whatever happened to a fleet, a route is said to work if and only if following
// the applied routes that are listed leads from the group to every group that
// announces the name, or to itself.
func TestExplainRouteAgreesWithTheList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := randomFleet(t)
		group := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "group")
		app := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "app")
		answer, err := NewService(f.options()).ExplainRoute(handlerContext(), &slimcppb.ExplainRouteRequest{Name: "org/ns/" + app, Group: group})
		if err != nil {
			t.Fatal(err)
		}
		if want := f.delivers(group, app); answer.GetWorks() != want {
			t.Fatalf("works: %v, want %v:\n%s", answer.GetWorks(), want, strings.Join(answer.GetLines(), "\n"))
		}
	})
}

// delivers follows the listed routes of a star around group a.
func (f *fleet) delivers(group, app string) bool {
	view := f.view()
	var steps []string // group>group, over applied routes
	for _, row := range f.rows(fsm.RouteFilter{}) {
		link, ok := view.Link(row.GetLinkId())
		if ok && row.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED && row.GetName().GetStrName().GetStrComponent_2() == app {
			source, _, _ := strings.Cut(row.GetSourceNodeId(), "/")
			steps = append(steps, source+">"+link.PeerGroup(source))
		}
	}
	step := func(from, to string) bool { return slices.Contains(steps, from+">"+to) }
	reaches := func(goal string) bool {
		return group == "a" && step("a", goal) || goal == "a" && step(group, "a") || step(group, "a") && step("a", goal)
	}
	origin, ok := view.Group(group)
	record, announced := view.NameRecord(fsm.Name{C0: "org", C1: "ns", C2: app, ID: fsm.NoInstance})
	if !ok || origin.Connected == 0 || !announced {
		return false
	}
	hub, ok := view.Group("a")
	hubPresent := ok && hub.Present > 0
	for _, goal := range record.Groups() {
		if goal != group && hubPresent && !reaches(goal) {
			return false
		}
	}
	return hubPresent || slices.Contains(record.Groups(), group)
}

// BenchmarkConvergence asks about a fleet of 990,000 routes.
func BenchmarkConvergence(b *testing.B) {
	f := manyRoutes(b, 10_000)
	for b.Loop() {
		f.convergence()
	}
	b.ReportMetric(float64(f.convergence().GetRoutes()), "routes")
}
