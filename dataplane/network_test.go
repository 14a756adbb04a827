package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// diary is an Observer that writes down what it is told.
type diary struct{ lines []string }

func (d *diary) LinkNegotiated(linkID string)        { d.lines = append(d.lines, "link "+linkID) }
func (d *diary) NameAttached(name *dataplanepb.Name) { d.lines = append(d.lines, "+"+third(name)) }
func (d *diary) NameDetached(name *dataplanepb.Name) { d.lines = append(d.lines, "-"+third(name)) }
func (d *diary) ConnectionLost(names []*dataplanepb.Name) {
	for _, name := range names {
		d.lines = append(d.lines, "lost "+third(name))
	}
}

func third(name *dataplanepb.Name) string { return name.GetStrName().GetStrComponent_2() }

// wiring is a network that a test wires by hand, without controllers.
type wiring struct {
	t       testing.TB
	network *Network
	diaries map[string]*diary
}

func newWiring(tb testing.TB, ids ...string) *wiring {
	tb.Helper()
	w := &wiring{t: tb, network: NewNetwork(NetworkOptions{}), diaries: make(map[string]*diary)}
	for _, id := range ids {
		w.add(id, NodeOptions{})
	}
	return w
}

// add makes and starts the datapath of node GROUP/ID.
func (w *wiring) add(fullID string, options NodeOptions) {
	w.t.Helper()
	options.Group, options.ID, _ = strings.Cut(fullID, "/")
	options.Endpoint, options.ExternalEndpoint = fullID, fullID
	node, err := w.network.NewNode(options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.diaries[fullID] = &diary{}
	if err := node.datapath.Start(w.diaries[fullID]); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wiring) datapath(id string) *memoryDatapath { return w.network.datapaths[id] }

// link connects two nodes; the link id is "from>to".
func (w *wiring) link(from, to string) string {
	w.t.Helper()
	linkID := from + ">" + to
	if err := w.datapath(from).Connect(context.Background(), ClientConfig{Endpoint: "http://" + to, LinkID: linkID, Type: remote}); err != nil {
		w.t.Fatal(err)
	}
	return linkID
}

// route makes a node send messages to the name over a link.
func (w *wiring) route(node, linkID string, name *dataplanepb.Name) {
	w.t.Helper()
	connection, found := w.datapath(node).Lookup(linkID)
	if !found {
		w.t.Fatalf("%s has no link %s", node, linkID)
	}
	if err := w.datapath(node).Subscribe(connection.ID, name, 7); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wiring) deliver(from string, name *dataplanepb.Name) Delivery {
	w.t.Helper()
	delivery, err := w.network.Deliver(from, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return delivery
}

func (w *wiring) wantArrived(from string, name *dataplanepb.Name, want string) {
	w.t.Helper()
	if got := fmt.Sprint(w.deliver(from, name).Arrived); got != "map["+want+"]" {
		w.t.Errorf("from %s to %s: arrived at %s, want %s", from, third(name), got, want)
	}
}

func (w *wiring) wantDiary(node string, want ...string) {
	w.t.Helper()
	if got := w.diaries[node].lines; !slices.Equal(got, want) {
		w.t.Errorf("%s was told %q, want %q", node, got, want)
	}
	w.diaries[node].lines = nil
}

func TestDeliveryAcrossGatewaysAndPeers(t *testing.T) {
	// The application is on c/2; a/1, b/1, b/2 and c/1 are gateways.
	w := newWiring(t, "a/1", "a/2", "b/1", "b/2", "c/1", "c/2")
	w.datapath("c/2").AttachName(bob)
	ab, bc := w.link("a/1", "b/1"), w.link("b/2", "c/1")
	w.wantArrived("a/2", bob, "")
	w.route("a/1", ab, bob)
	w.route("b/2", bc, bob)
	for _, from := range []string{"a/1", "a/2", "b/1", "b/2", "c/1", "c/2"} {
		w.wantArrived(from, bob, "c/2:1")
	}
	w.wantArrived("a/2", alice, "")
}

// Two announcers in one group: the sender's node tells both, and neither passes
// the message on to the other.
func TestPeersDoNotPassOnWhatAPeerSent(t *testing.T) {
	w := newWiring(t, "a/1", "a/2", "a/3")
	w.datapath("a/1").AttachName(bob)
	w.datapath("a/2").AttachName(bob)
	for _, from := range []string{"a/1", "a/2", "a/3"} {
		w.wantArrived(from, bob, "a/1:1 a/2:1")
	}
}

func TestMessagesDoNotGoBackWhereTheyCameFrom(t *testing.T) {
	w := newWiring(t, "a/1", "b/1")
	w.datapath("b/1").AttachName(bob)
	link := w.link("a/1", "b/1")
	w.route("a/1", link, bob)
	w.route("b/1", link, bob)
	w.wantArrived("a/1", bob, "b/1:1")
	if w.deliver("a/1", bob).Looped {
		t.Error("the message went back and forth")
	}
}

func TestConnectionIDsAreUsedAgain(t *testing.T) {
	w := newWiring(t, "a/1", "b/1", "c/1")
	first, _ := w.datapath("a/1").Lookup(w.link("a/1", "b/1"))
	w.link("a/1", "c/1")
	if err := w.datapath("a/1").Disconnect(first.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.datapath("a/1").Disconnect(first.ID); !errors.Is(err, ErrNoConnection) {
		t.Errorf("a second time: %v", err)
	}
	if again, _ := w.datapath("a/1").Lookup(w.link("a/1", "b/1")); again.ID != first.ID {
		t.Errorf("got id %d, want %d", again.ID, first.ID)
	}
}

func TestOnlyTheExactInstanceMatches(t *testing.T) {
	w := newWiring(t, "a/1", "b/1")
	other := NewName("org", "ns", "bob", 9, 9)
	whole := NewName("org", "ns", "bob", noInstance, noInstance)
	w.datapath("b/1").AttachName(bob)
	w.route("a/1", w.link("a/1", "b/1"), whole)
	w.wantArrived("a/1", bob, "") // a route without instance is not enough
	w.wantArrived("a/1", whole, "b/1:1")
	w.route("a/1", "a/1>b/1", bob)
	w.wantArrived("a/1", bob, "b/1:1")
	w.wantArrived("a/1", whole, "b/1:1") // one connection, one copy
	w.wantArrived("a/1", other, "")
}

// Nodes forward by hashes: a name with the right strings and wrong hashes is
// another name.
func TestForwardingGoesByHash(t *testing.T) {
	w := newWiring(t, "a/1")
	wrong := NewName("org", "ns", "bob", 3, 4)
	wrong.Name.Component_2++
	w.datapath("a/1").AttachName(wrong)
	w.wantArrived("a/1", bob, "")
}

func TestPeersLearnOnlyWhatANodeReachesItself(t *testing.T) {
	w := newWiring(t, "a/1", "a/2", "b/1")
	w.datapath("a/1").AttachName(alice)
	w.route("a/1", w.link("a/1", "b/1"), bob)
	w.add("a/3", NodeOptions{}) // comes later and is told too
	for _, id := range []string{"a/2", "a/3"} {
		var seen []string
		for _, entry := range w.datapath(id).Table() {
			for _, connection := range entry.Connections {
				seen = append(seen, third(entry.Name)+" "+connection.Type.String()+" "+connection.Peer)
			}
		}
		slices.Sort(seen)
		if want := []string{"alice CONNECTION_TYPE_PEER 1", "bob CONNECTION_TYPE_PEER 1"}; !slices.Equal(seen, want) {
			t.Errorf("%s knows %q, want %q", id, seen, want)
		}
		w.wantDiary(id)
	}
	w.datapath("a/1").DetachName(alice)
	w.wantArrived("a/2", alice, "")
	if table := w.datapath("a/2").Table(); len(table) != 1 {
		t.Errorf("a/2 still knows %v", table)
	}
	w.wantDiary("a/1", "+alice", "link a/1>b/1", "-alice")
}

func TestEndOfAProcess(t *testing.T) {
	w := newWiring(t, "a/1", "b/1")
	w.datapath("a/1").AttachName(alice)
	w.add("a/2", NodeOptions{})
	link := w.link("b/1", "a/1")
	w.route("b/1", link, alice)
	w.route("a/1", link, bob)
	w.datapath("a/1").Stop()
	w.wantDiary("a/1", "+alice", "link b/1>a/1")
	w.wantDiary("b/1", "link b/1>a/1", "lost alice")
	lost := w.diaries["a/2"].lines
	slices.Sort(lost)
	w.wantDiary("a/2", "lost alice", "lost bob")
	if _, err := w.network.Deliver("a/1", alice); !errors.Is(err, ErrNodeDown) {
		t.Errorf("a stopped node sent: %v", err)
	}
	err := w.datapath("b/1").Connect(context.Background(), ClientConfig{Endpoint: "http://a/1", LinkID: "again", Type: remote})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("dialling a stopped node: %v", err)
	}
}

func TestApplicationsOfOneName(t *testing.T) {
	w := newWiring(t)
	w.add("a/edge", NodeOptions{})
	w.add("b/local", NodeOptions{LocalApplications: true})
	for _, id := range []string{"a/edge", "b/local"} {
		for range 2 {
			w.datapath(id).AttachName(bob)
		}
		w.datapath(id).DetachName(bob)
		w.wantArrived(id, bob, id+":1")
	}
	// Behind connections each says so for itself, in the process they are counted.
	w.wantDiary("a/edge", "+bob", "+bob", "-bob")
	w.wantDiary("b/local", "+bob")
	w.datapath("b/local").DetachName(bob)
	w.wantDiary("b/local", "-bob")
	w.datapath("b/local").DetachName(bob)
	w.wantDiary("b/local")
	w.wantArrived("b/local", bob, "")
}

func TestEndpointsAreUnique(t *testing.T) {
	network := NewNetwork(NetworkOptions{})
	for i, want := range []error{nil, ErrEndpointInUse} {
		node, err := network.NewNode(NodeOptions{ID: fmt.Sprint(i), Endpoint: "same:1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.datapath.Start(&diary{}); !errors.Is(err, want) {
			t.Errorf("node %d: %v, want %v", i, err, want)
		}
	}
	if _, err := network.NewNode(NodeOptions{ID: "0"}); err == nil {
		t.Error("a second node of one id was made")
	}
}

func TestMatrixFindsDefects(t *testing.T) {
	defects := func(w *wiring, allowed func(from, to string) bool) []string {
		lines := []string{}
		for _, defect := range w.network.Matrix().Complete(allowed) {
			lines = append(lines, defect.String())
		}
		return lines
	}
	name := FormatName(bob)
	w := newWiring(t, "a/1", "a/2", "b/1", "c/1")
	w.datapath("c/1").AttachName(bob)
	ac, bc := w.link("a/1", "c/1"), w.link("b/1", "c/1")
	want := []string{
		"missing: a message from a/1 to " + name + " does not arrive at c/1",
		"missing: a message from b/1 to " + name + " does not arrive at c/1",
	}
	if got := defects(w, Everything); !slices.Equal(got, want) {
		t.Errorf("without routes: %q", got)
	}
	w.route("a/1", ac, bob)
	w.route("b/1", bc, bob)
	if got := defects(w, Everything); len(got) != 0 {
		t.Errorf("with routes: %q", got)
	}
	notFromB := func(from, _ string) bool { return from != "b" }
	if got := defects(w, notFromB); !slices.Equal(got, []string{"leak: a message from b/1 to " + name + " arrives at c/1, which must not get it"}) {
		t.Errorf("with a leak: %q", got)
	}
	// A second way from a over b.
	w.route("a/2", w.link("a/2", "b/1"), bob)
	if got := defects(w, Everything); !slices.Equal(got, []string{"duplicate: a message from a/1 to " + name + " arrives 2 times at c/1"}) {
		t.Errorf("with two ways: %q", got)
	}
}

func TestOneSenderWithADuplicateIsADefect(t *testing.T) {
	matrix := Matrix{Groups: []string{"a", "b"}, Cells: []Cell{{From: "a", Name: "x", Announcers: []Arrivals{
		{Group: "b", Node: "b/1", Fewest: 1, FewestFrom: "a/1", Most: 2, MostFrom: "a/2"},
	}}}}
	want := []Defect{{Kind: Duplicate, Sender: "a/2", Name: "x", Node: "b/1", Count: 2}}
	if got := matrix.Complete(Everything); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMatrixFindsLoops(t *testing.T) {
	w := newWiring(t, "a/1", "b/1", "c/1")
	w.datapath("c/1").AttachName(bob)
	// a -> b -> c -> a
	w.route("a/1", w.link("a/1", "b/1"), bob)
	w.route("b/1", w.link("b/1", "c/1"), bob)
	w.route("c/1", w.link("c/1", "a/1"), bob)
	if !w.deliver("a/1", bob).Looped {
		t.Fatal("the loop was not seen")
	}
	found := 0
	for _, defect := range w.network.Matrix().Complete(Everything) {
		if defect.Kind == Loop {
			found++
		}
	}
	if found != 3 {
		t.Errorf("%d senders see the loop, want 3", found)
	}
}

// A full mesh of loops makes copies of copies; that must end, too.
func TestMultiplyingLoopsEnd(t *testing.T) {
	ids := []string{"a/1", "b/1", "c/1", "d/1", "e/1", "f/1"}
	w := newWiring(t, ids...)
	for _, from := range ids {
		for _, to := range ids {
			if from != to {
				w.route(from, w.link(from, to), bob)
			}
		}
	}
	if !w.deliver("a/1", bob).Looped {
		t.Error("the loop was not seen")
	}
}

func TestLeftovers(t *testing.T) {
	w := newWiring(t, "a/1", "b/1")
	w.datapath("b/1").AttachName(bob)
	w.route("a/1", w.link("a/1", "b/1"), bob)
	if got := w.network.Leftovers(); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	w.datapath("b/1").DetachName(bob)
	if got := w.network.Leftovers(); !slices.Equal(got, []Leftover{{"a/1", FormatName(bob)}}) {
		t.Errorf("got %v", got)
	}
}

// Along a tree of links with routes towards the announcer every node reaches it
// exactly once, whichever nodes are the gateways.
func TestTreesDeliverExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		groups := rapid.IntRange(1, 6).Draw(rt, "groups")
		size := rapid.IntRange(1, 3).Draw(rt, "nodes per group")
		var ids []string
		for g := range groups {
			for i := range size {
				ids = append(ids, fmt.Sprintf("g%d/%d", g, i))
			}
		}
		w := newWiring(t, ids...)
		oneOf := func(g int, what string) string {
			return fmt.Sprintf("g%d/%d", g, rapid.IntRange(0, size-1).Draw(rt, what))
		}
		w.datapath(oneOf(0, "announcer")).AttachName(bob)
		for g := 1; g < groups; g++ {
			parent := rapid.IntRange(0, g-1).Draw(rt, "parent")
			near, far := oneOf(g, "near gateway"), oneOf(parent, "far gateway")
			var link string
			if rapid.Bool().Draw(rt, "child dials") {
				link = w.link(near, far)
			} else {
				link = w.link(far, near)
			}
			w.route(near, link, bob)
		}
		if defects := w.network.Matrix().Complete(Everything); len(defects) > 0 {
			rt.Fatalf("%v", defects)
		}
	})
}
