package northbound

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

var (
	shownTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ( \(\d+s ago\))?`)
	shownLink = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// plain replaces times and ids of links, which tests cannot foretell.
func plain(lines []string) []string {
	replaced := make([]string, len(lines))
	for i, line := range lines {
		replaced[i] = shownLink.ReplaceAllString(shownTime.ReplaceAllString(line, "TIME"), "LINK")
	}
	return replaced
}

func wantLines(tb testing.TB, got []string, want ...string) {
	tb.Helper()
	if got := plain(got); !slices.Equal(got, want) {
		tb.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (f *fleet) wantLink(tb testing.TB, works bool, want ...string) {
	tb.Helper()
	answer, err := f.operator(tb).ExplainLink(tb.Context(), &slimcppb.ExplainLinkRequest{GroupA: "a", GroupB: "b"})
	if err != nil {
		tb.Fatal(err)
	}
	if answer.GetWorks() != works || answer.GetIndex() != f.index {
		tb.Errorf("works: %v at index %d, want %v at %d", answer.GetWorks(), answer.GetIndex(), works, f.index)
	}
	wantLines(tb, answer.GetLines(), want...)
}

const allowed = "the topology links groups a and b in segment default"

// TestExplainLinkWithoutALink goes through all that can keep two groups from
// having one.
func TestExplainLinkWithoutALink(t *testing.T) {
	f := newFleet(t, mesh())
	unread := "no segment links groups a and b; patterns of the file are read for groups that have a node"
	f.wantLink(t, false, unread, "group a has no node", "group b has no node")
	f.register("a/1", inner())
	f.wantLink(t, false, unread, "group b has no node")
	f.register("b/1", inner())
	f.wantLink(t, false, allowed, "neither group a nor group b has a connected node with an external endpoint")
	f.lose("b/1")
	f.wantLink(t, false, allowed, "group b has no connected node", "node b/1 has not been connected since TIME: its stream ended")
	f.depart("b/1")
	f.wantLink(t, false, allowed, "group b has no connected node", "node b/1 is gone: it has not been connected since TIME")

	f.register("b/1", inner())
	f.silence("b/1")
	f.wantLink(t, false, allowed, "node b/1 is connected but does not answer: it gets no new links", "no connected node of group b answers")

	f.setTopology(&slimcppb.Segment{Name: "other"})
	f.wantLink(t, false, "no segment of the topology links groups a and b",
		"node b/1 is connected but does not answer: it gets no new links")
	f.setTopology() // managed through the API, and nothing is linked yet
	f.wantLink(t, false, "no segment of the topology links groups a and b",
		"node b/1 is connected but does not answer: it gets no new links")
}

// TestExplainLink follows a link through its states.
func TestExplainLink(t *testing.T) {
	f, link := twoGroups(t)
	dials := "link LINK: node b/1 dials http://a-ext:1, which node a/1 offers"
	f.wantLink(t, false, allowed, dials, "node b/1 has been dialling since TIME")

	f.reconciled("b/1", dialled(link, "connection refused"))
	f.reconciled("b/1", dialled(link, "connection refused"))
	f.wantLink(t, false, allowed, dials,
		"it was dialled at TIME and failed, 2 in a row: connection refused", "the next try is due at TIME")

	f.reconciled("b/1", dialled(link, ""))
	f.wantLink(t, false, allowed, dials,
		"node b/1 acknowledged the dial; since TIME no node of group a has claimed the connection")

	f.claim("a/1", link)
	stands := "it stands since TIME, from node b/1 to node a/1"
	f.wantLink(t, true, allowed, dials, stands)

	f.register("a/2")
	f.claim("a/2", link)
	f.wantLink(t, false, allowed, dials, stands,
		"its end at node a/1 is disputed by node a/2; the connection list of node b/1 will tell")

	f.lose("b/1")
	away := "node b/1 has not been connected since TIME: its stream ended"
	f.claim("a/1", f.link("a", "b")) // said again by the node that holds the end
	f.wantLink(t, true, allowed, "group b has no connected node", away, dials, stands)
	f.register("b/1")
	f.lose("b/1")
	f.wantLink(t, false, allowed, "group b has no connected node", away, dials,
		"it waits to be dialled by node b/1 since TIME: the node is not connected", "reason for dialling: the source connected anew")
}

func TestExplainLinkThatNobodyDials(t *testing.T) {
	f, _ := twoGroups(t)
	dials := "link LINK: node b/1 dials http://a-ext:1, which node a/1 offers"
	f.silence("b/1")
	f.wantLink(t, false, allowed, "node b/1 is connected but does not answer: it gets no new links", dials,
		"it waits to be dialled by node b/1 since TIME: the node does not answer")
	f.register("b/1")
	f.lose("a/1")
	f.wantLink(t, false, allowed, "group a has no connected node", "node a/1 has not been connected since TIME: its stream ended", dials,
		"it waits to be dialled by node b/1 since TIME: group a has no connected node", "reason for dialling: the source connected anew")
}

// A link that failed every way says so.
func TestExplainLinkOfLastResort(t *testing.T) {
	f, link := twoGroups(t)
	f.register("b/2")
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, SourceNodeId: "b/2", DialledNodeId: "a/1",
	}}})
	dials := "link LINK: node b/2 dials http://a-ext:1, which node a/1 offers"
	f.wantLink(t, false, allowed, dials, "node b/2 has been dialling since TIME", "reason for dialling: moved from b/1",
		"other ways to dial it that failed before: 1")
	link = f.link("a", "b")
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, FullState: true,
	}}})
	f.wantLink(t, false, allowed, dials, "node b/2 has been dialling since TIME",
		"reason for dialling: "+f.link("a", "b").StatusMessage, "no other way being left, it is dialled with the node's own settings")
}

func TestExplainDeletedLink(t *testing.T) {
	f, link := twoGroups(t)
	f.claim("a/1", link)
	f.setTopology(&slimcppb.Segment{Name: "other"})
	forbidden := "no segment of the topology links groups a and b"
	deleted := "link LINK from node b/1 was deleted: " + f.onlyLink().StatusMessage
	f.wantLink(t, false, forbidden, deleted, "node b/1 still holds the deleted link")
	f.dropped(link)
	f.wantLink(t, false, forbidden, deleted)
}

// TestExplainShowsTimes: absolute, and how long ago by this replica's clock.
func TestExplainShowsTimes(t *testing.T) {
	f, link := twoGroups(t)
	f.reconciled("b/1", dialled(link, "refused"))
	failed := f.clock
	f.announce("a/1", "app")
	answer, err := f.operator(t).ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "b", GroupB: "a"})
	if err != nil {
		t.Fatal(err)
	}
	lines := answer.GetLines()
	const layout = "2006-01-02T15:04:05Z"
	for i, want := range []string{
		"dialled at " + failed.Format(layout) + " (2s ago) and failed, 1 in a row: refused",
		"due at " + failed.Add(redialAfter(1)).Format(layout),
	} {
		if got := lines[len(lines)-2+i]; !strings.HasSuffix(got, want) {
			t.Errorf("%q does not end in %q", got, want)
		}
	}
}

func TestRedialAfter(t *testing.T) {
	for failures, want := range map[uint32]int{0: 1, 1: 1, 2: 2, 3: 4, 6: 32, 7: 60, 1 << 31: 60} {
		if got := redialAfter(failures); got.Seconds() != float64(want) {
			t.Errorf("after %d failures %v, want %d s", failures, got, want)
		}
	}
}

// Many nodes of a group are not all named.
func TestExplainNamesAFewNodes(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", inner())
	for i := range 9 {
		id := fmt.Sprint("b/", i)
		f.register(id, inner())
		f.lose(id)
	}
	answer, err := f.operator(t).ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "a", GroupB: "b"})
	if err != nil {
		t.Fatal(err)
	}
	lines := answer.GetLines()
	if want := "more nodes that are not connected or do not answer: 4"; len(lines) != 8 || lines[7] != want {
		t.Errorf("lines are\n%s", strings.Join(lines, "\n"))
	}
}

func TestExplainRefusals(t *testing.T) {
	operator := newFleet(t, mesh()).operator(t)
	for _, c := range []struct{ a, b, want string }{
		{"", "b", "group_a and group_b must not be empty"},
		{"a", "", "group_a and group_b must not be empty"},
		{"a", "a", "group_a and group_b are both a: the nodes of one group connect among themselves"},
	} {
		_, err := operator.ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: c.a, GroupB: c.b})
		wantStatus(t, err, codes.InvalidArgument, c.want)
	}
	for _, c := range []struct{ name, group, want string }{
		{"a/b", "g", `name "a/b": accepted are C0/C1/C2 and C0/C1/C2/ID, where ID is a UUID or NULL_COMPONENT`},
		{"a/b/c/d", "g", `name "a/b/c/d": accepted are C0/C1/C2 and C0/C1/C2/ID, where ID is a UUID or NULL_COMPONENT`},
		{"a/b/c", "", "group must not be empty"},
	} {
		_, err := operator.ExplainRoute(t.Context(), &slimcppb.ExplainRouteRequest{Name: c.name, Group: c.group})
		wantStatus(t, err, codes.InvalidArgument, c.want)
	}
}

func (f *fleet) wantRoute(tb testing.TB, name, group string, works bool, want ...string) {
	tb.Helper()
	answer, err := f.operator(tb).ExplainRoute(tb.Context(), &slimcppb.ExplainRouteRequest{Name: name, Group: group})
	if err != nil {
		tb.Fatal(err)
	}
	if answer.GetWorks() != works || answer.GetIndex() != f.index {
		tb.Errorf("works: %v at index %d, want %v at %d", answer.GetWorks(), answer.GetIndex(), works, f.index)
	}
	wantLines(tb, answer.GetLines(), want...)
}

const app = "org/ns/app/NULL_COMPONENT"

// chain is a fleet of the groups a, b and c in which only neighbours are linked.
func chain(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t, &slimcppb.Segment{Name: "chain", Links: []*slimcppb.Adjacency{
		{Group: "a", Neighbors: []string{"b"}}, {Group: "b", Neighbors: []string{"c"}},
	}})
	f.register("a/1", gateway("a-ext:1"))
	f.register("b/1", gateway("b-ext:1"))
	f.register("c/1")
	return f
}

// TestExplainRoute follows a name over two hops until it works.
func TestExplainRoute(t *testing.T) {
	f := chain(t)
	f.wantRoute(t, "org/ns/app", "c", false, "nobody announces org/ns/app")
	f.announce("a/1", "app")
	announced := app + " is announced in group a, which is in segment chain, by a/1"
	path := "messages for " + app + " go c → b → a"
	f.wantRoute(t, "org/ns/app", "c", false, announced, path,
		"c → b: node c/1 over link LINK is PENDING: node c/1 has been dialling since TIME",
		"b → a: node b/1 over link LINK is PENDING: node b/1 has been dialling since TIME",
	)
	f.reconciled("c/1", dialled(f.link("b", "c"), "connection refused"))
	f.claim("a/1", f.link("a", "b"))
	f.wantRoute(t, app, "c", false, announced, path,
		"c → b: node c/1 over link LINK is PENDING: it was dialled at TIME and failed, 1 in a row: connection refused; the next try is due at TIME",
		fmt.Sprintf("b → a: node b/1 over link LINK is PENDING: the node has confirmed index 0, the route is of index %d", f.index),
	)
	f.claim("b/1", f.link("b", "c"))
	f.reconciled("b/1", nil)
	f.reconciled("c/1", nil, &slimcppb.RouteFailure{
		Name: appName("app"), LinkId: f.link("b", "c").ID, Revision: f.index, Error: "connection not found",
	})
	hop := "b → a: node b/1 over link LINK is APPLIED"
	f.wantRoute(t, app, "c", false, announced, path, "c → b: node c/1 over link LINK is FAILED: connection not found", hop)
	f.reconciled("c/1", nil)
	f.wantRoute(t, app, "c", true, announced, path, "c → b: node c/1 over link LINK is APPLIED", hop)

	f.announce("a/1", "other")
	f.lose("b/1")
	f.wantRoute(t, "org/ns/other", "b", false,
		"group b has no connected node", "node b/1 has not been connected since TIME: its stream ended",
		"org/ns/other/NULL_COMPONENT is announced in group a, which is in segment chain, by a/1",
		"messages for org/ns/other/NULL_COMPONENT go b → a",
		"b → a: node b/1 over link LINK is PENDING: node b/1 has not been connected since TIME: its stream ended",
	)
	f.withdraw("a/1", "app")
	f.wantRoute(t, "org/ns/app", "c", false, "nobody announces org/ns/app", "node a/1 no longer announces "+app+" since TIME")
}

func TestExplainRouteOfOneself(t *testing.T) {
	f := chain(t)
	f.announce("a/1", "app")
	f.register("a/2")
	f.announce("a/2", "app")
	announced := app + " is announced in group a, which is in segment chain, by a/1, a/2"
	own := "group a announces " + app + " itself: its nodes pass the messages on among themselves"
	f.wantRoute(t, app, "a", true, announced, own)
	f.lose("a/2")
	f.wantRoute(t, app, "a", true, "node a/2 has not been connected since TIME: its stream ended", announced, own)
	f.wantRoute(t, app, "nobody", false, "group nobody has no node", announced, "node a/2 has not been connected since TIME: its stream ended",
		"group nobody is isolated from group a: no segment holds both")
}

// TestExplainIsolation: segments keep messages apart, and so do gaps in one.
func TestExplainIsolation(t *testing.T) {
	f := newFleet(t,
		&slimcppb.Segment{Name: "one", Links: []*slimcppb.Adjacency{{Group: "a", Neighbors: []string{"b"}}}},
		&slimcppb.Segment{Name: "two", Links: []*slimcppb.Adjacency{
			{Group: "b", Neighbors: []string{"c"}}, {Group: "d", Neighbors: []string{"e"}},
		}},
	)
	for _, id := range []string{"a/1", "b/1", "c/1", "d/1", "e/1"} {
		f.register(id)
	}
	f.announce("a/1", "app")
	in := app + " is announced in group a, which is in segment one, by a/1"
	f.wantRoute(t, app, "c", false, in, "group c is isolated from group a: no segment holds both")
	f.announce("c/1", "far")
	far := "org/ns/far/NULL_COMPONENT"
	f.wantRoute(t, far, "d", false, far+" is announced in group c, which is in segment two, by c/1",
		"there is no way from group d to group c within segment two: groups between them have no node, or nothing links them")
	// Isolated announcers are meant to be out of reach: that is no fault.
	f.announce("c/1", "app")
	f.wantRoute(t, app, "c", true, in, app+" is announced in group c, which is in segment two, by c/1",
		"group c is isolated from group a: no segment holds both",
		"group c announces "+app+" itself: its nodes pass the messages on among themselves")

	f.register("lonely")
	f.announce("lonely", "alone")
	f.wantRoute(t, "org/ns/alone", "a", false,
		"org/ns/alone/NULL_COMPONENT is announced by lonely, which belongs to no group: nobody has a route to it")
	f.register("f/1")
	f.announce("f/1", "out")
	f.wantRoute(t, "org/ns/out", "a", false, "org/ns/out/NULL_COMPONENT is announced in group f, which is in no segment, by f/1",
		"group a is isolated from group f: no segment holds both")
}

// A hop between groups that have no link says why they have none.
func TestExplainHopWithoutALink(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", inner())
	f.register("b/1", inner())
	f.announce("a/1", "app")
	announced := app + " is announced in group a, which is in segment default, by a/1"
	f.wantRoute(t, app, "b", false, announced, "messages for "+app+" go b → a",
		"b → a: PENDING: there is no link yet: neither group b nor group a has a connected node with an external endpoint")

	f.register("b/1", gateway("b-ext:1")) // a dials b: nobody holds b's end yet
	link := f.link("a", "b")
	if link.SourceGroup != "a" {
		t.Fatalf("node %s dials, want a/1: only b/1 can be dialled", link.SourceNode)
	}
	f.wantRoute(t, app, "b", false, announced, "messages for "+app+" go b → a",
		"b → a: PENDING: no node of group b holds link LINK: node a/1 has been dialling since TIME")
}

// TestExplainInstances: without an id each instance is explained, up to a bound.
func TestExplainInstances(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1")
	var changes []*slimcppb.NameChange
	for i := range 25 {
		id := fsm.InstanceID{15: byte(i)}
		changes = append(changes, &slimcppb.NameChange{Name: &slimcppb.Name{Component0: "org", Component1: "ns", Component2: "app", InstanceId: id[:]}})
	}
	changes = append(changes, &slimcppb.NameChange{Name: appName("appendix")})
	f.sessions["a/1"].sequence++
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: f.sessions["a/1"].name, Sequence: f.sessions["a/1"].sequence, Changes: changes,
	}}})
	answer, err := f.operator(t).ExplainRoute(t.Context(), &slimcppb.ExplainRouteRequest{Name: "org/ns/app", Group: "a"})
	if err != nil {
		t.Fatal(err)
	}
	lines := answer.GetLines()
	if last := "more instances that are announced: 5; name one to have it explained"; len(lines) != 41 || lines[40] != last || !answer.GetWorks() {
		t.Errorf("%d lines, works: %v, the last: %q", len(lines), answer.GetWorks(), lines[len(lines)-1])
	}
	one := "org/ns/app/00000000-0000-0000-0000-000000000007"
	f.wantRoute(t, one, "a", true, one+" is announced in group a, which is in no segment, by a/1",
		"group a announces "+one+" itself: its nodes pass the messages on among themselves")
}

// TestExplainDetour: where names are led around two groups, both explanations say
// so and why.
func TestExplainDetour(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", inner())
	f.register("b/1", inner())
	f.announce("a/1", "app")
	f.register("c/1", gateway("c-ext:1"))
	around := "names are led around groups a and b: neither of them has a node with an external endpoint, so there is no link"
	f.wantLink(t, false, allowed, around, "neither group a nor group b has a connected node with an external endpoint")
	announced := app + " is announced in group a, which is in segment default, by a/1"
	f.wantRoute(t, app, "b", false, announced,
		"the path is led around groups b and a: neither of them has a node with an external endpoint, so there is no link",
		"messages for "+app+" go b → c → a",
		"b → c: node b/1 over link LINK is PENDING: node b/1 has been dialling since TIME",
		"c → a: PENDING: no node of group c holds link LINK: node a/1 has been dialling since TIME",
	)
}

// TestExplainDetourAroundADeadLink is the same for a link that nobody can make.
func TestExplainDetourAroundADeadLink(t *testing.T) {
	f, link := twoGroups(t)
	f.announce("a/1", "app")
	f.register("c/1", gateway("c-ext:1"))
	f.reconciled("b/1", dialled(link, "connection refused"))
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_ReplaceLink{ReplaceLink: &slimcppb.ReplaceLink{
		LinkId: link.ID, Revision: link.SourceRevision, Exhausted: true,
	}}})
	vain := "every way to make link LINK was tried in vain, and it goes on being tried"
	f.wantLink(t, false, allowed, "names are led around groups a and b: "+vain,
		"link LINK: node b/1 dials http://a-ext:1, which node a/1 offers",
		"it was dialled at TIME and failed, 1 in a row: connection refused", "the next try is due at TIME",
		"it has not stood since every way to dial it failed")
	answer, err := f.operator(t).ExplainRoute(t.Context(), &slimcppb.ExplainRouteRequest{Name: app, Group: "b"})
	if err != nil {
		t.Fatal(err)
	}
	lines := plain(answer.GetLines())
	if want := "the path is led around groups b and a: " + vain; !slices.Contains(lines, want) {
		t.Errorf("no line %q in\n  %s", want, strings.Join(lines, "\n  "))
	}
	if want := "messages for " + app + " go b → c → a"; !slices.Contains(lines, want) {
		t.Errorf("no line %q in\n  %s", want, strings.Join(lines, "\n  "))
	}
	f.claim("a/1", f.link("a", "b"))
	f.wantLink(t, true, allowed, "link LINK: node b/1 dials http://a-ext:1, which node a/1 offers",
		"it stands since TIME, from node b/1 to node a/1")
}
