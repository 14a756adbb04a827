//go:build interop

package interop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

func TestScenario14SegmentsKeepSpokesApart(t *testing.T) {
	l := startLab(t, `segments: [{name: segment-$group, links: [{group: platform, neighbors: [$group]}]}]`)
	nodes := l.startGroup(t, "platform", "spoke-a", "spoke-b")
	hub, spokeA, spokeB := nodes[0], nodes[1], nodes[2]
	l.WaitLink(t, "platform", "spoke-a")
	l.WaitLink(t, "platform", "spoke-b")
	l.wantLinks(t, 2)
	center := startApp(t, hub, carol)
	one, other := startApp(t, spokeA, alice), startApp(t, spokeB, bob, "--timeout", "2000")
	l.wantReached(t, hub, carol, "spoke-a", "spoke-b")
	l.wantReached(t, spokeA, alice, "platform")
	l.wantReached(t, spokeB, bob, "platform")
	converse(t, center, one, "hello spoke-a")
	converse(t, center, other, "hello spoke-b")

	if err := other.try(t, "send "+alice+" hello neighbour", appAnswer); err == nil || one.received("hello neighbour") > 0 {
		t.Error("a message went from spoke to spoke")
	}
	for _, apart := range []struct {
		from *node
		name string
	}{{spokeB, alice}, {spokeA, bob}} {
		l.wantUnrouted(t, apart.from, apart.name)
	}
}

func TestScenario15OperatorsMakeAndUnmakeTheTopology(t *testing.T) {
	const segment = "research"
	l := startLab(t, managed)
	l.mustAddSegment(t, segment)
	l.mustAddSegment(t, segment) // once more is no error
	for range 2 {
		warnings := l.mustAddLink(t, segment, "a", "b")
		if len(warnings) != 2 || !strings.Contains(warnings[0], "'a'") || !strings.Contains(warnings[1], "'b'") {
			t.Errorf("the warnings for two groups without nodes are %q", warnings)
		}
	}
	nodes := l.startGroup(t, "a", "b", "c")
	a, b := nodes[0], nodes[1]
	if warnings := l.mustAddLink(t, segment, "a", "b"); len(warnings) != 0 {
		t.Errorf("the warnings for two groups with nodes are %q", warnings)
	}
	link := l.WaitLink(t, "a", "b")
	l.wantLinks(t, 1)
	one, other := startApp(t, a, alice), startApp(t, b, bob)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)
	converse(t, one, other, "hello")

	if _, err := l.API().RemoveTopologyLink(t.Context(), &controlplanepb.RemoveTopologyLinkRequest{Segment: segment, DomainA: "b", DomainB: "a"}); err != nil {
		t.Fatal(err)
	}
	l.wantApart(t, link.GetLinkId(), a, b)
	l.mustAddLink(t, segment, "a", "b")
	link = l.WaitLink(t, "a", "b")
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)
	converse(t, one, other, "hello again")

	if _, err := l.API().RemoveSegment(t.Context(), &controlplanepb.RemoveSegmentRequest{Name: segment}); err != nil {
		t.Fatal(err)
	}
	l.wantApart(t, link.GetLinkId(), a, b)
	l.wantLinks(t, 0)
}

func TestScenario16FilesTopologyIsNotForOperators(t *testing.T) {
	l := startLab(t, mesh)
	ctx := t.Context()
	for name, change := range map[string]func() error{
		"add a segment": func() error {
			_, err := l.API().AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: "research"})
			return err
		},
		"remove a segment": func() error {
			_, err := l.API().RemoveSegment(ctx, &controlplanepb.RemoveSegmentRequest{Name: "research"})
			return err
		},
		"add a link": func() error {
			_, err := l.API().AddTopologyLink(ctx, &controlplanepb.AddTopologyLinkRequest{DomainA: "a", DomainB: "b"})
			return err
		},
		"remove a link": func() error {
			_, err := l.API().RemoveTopologyLink(ctx, &controlplanepb.RemoveTopologyLinkRequest{DomainA: "a", DomainB: "b"})
			return err
		},
	} {
		if err := change(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v, want the code %v", name, err, codes.FailedPrecondition)
		}
	}
}

func TestScenario17OperatorIsToldWhyThereIsNoLink(t *testing.T) {
	l := startLab(t, mesh)
	a, b := l.spec(t, "a", "node-a"), l.spec(t, "b", "node-b")
	a.internal, b.internal = true, true
	l.start(t, a, b)
	l.wantLinks(t, 0)
	unlinked, err := l.Unlinked(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(unlinked) != 1 {
		t.Fatalf("listed without a link are %v, want one pair", unlinked)
	}
	pair := unlinked[0]
	if pair.GetSourceNodeId() != "a" || pair.GetDestNodeId() != "b" || !strings.Contains(pair.GetStatusMsg(), "external endpoint") {
		t.Errorf("the pair without a link is listed as %v, with no word of the external endpoint", pair)
	}
	code, said, stderr := process.Run(t, process.Spec{
		Name: "slim-cp explain", Path: binaries.Path("slim-cp"), Args: []string{"explain", "link", "a", "b", "--server", l.Northbound},
	}, appStart)
	if code != 4 || !strings.Contains(said, "external endpoint") {
		t.Errorf("explain ended with exit code %d, and no word of the external endpoint in: %s%s", code, said, stderr)
	}

	// One end that can be dialled is enough.
	c := l.spec(t, "c", "node-c")
	l.start(t, c)
	l.WaitLink(t, "a", "c", observer.To(c.fullID()))
	l.WaitLink(t, "b", "c", observer.To(c.fullID()))
	l.wantLinks(t, 2)
}

func TestScenario19EnforcedValuesArriveInTheLink(t *testing.T) {
	l := startLab(t, mesh, `enforce_node_connection:
  backoff: 700
  timeout: 1500
  keepalive: {tcp_keepalive: 50s, http2_keepalive: 45s, timeout: 7s, keep_alive_while_idle: true}`)
	l.startGroup(t, "a", "b")
	link := l.WaitLink(t, "a", "b")

	// As the operator sees it.
	var listed struct {
		Timeout, Backoff int
		Keepalive        struct {
			HTTP2       string `json:"http2_keepalive"`
			TCP         string `json:"tcp_keepalive"`
			Timeout     string `json:"timeout"`
			WhenNothing bool   `json:"keep_alive_while_idle"`
		}
	}
	if err := json.Unmarshal([]byte(link.GetConnConfigData()), &listed); err != nil {
		t.Fatalf("%v in %s", err, link.GetConnConfigData())
	}
	if listed.Timeout != 1500 || listed.Backoff != 700 || listed.Keepalive.HTTP2 != "45s" ||
		listed.Keepalive.TCP != "50s" || listed.Keepalive.Timeout != "7s" || !listed.Keepalive.WhenNothing {
		t.Errorf("the link's config data is %s", link.GetConnConfigData())
	}

	// As the node that dialled uses it.
	observer.Eventually(t, "the connection with the enforced values", func(ctx context.Context) error {
		connections, err := l.NodeConnections(ctx, link.GetSourceNodeId())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(connections, func(c *controllerpb.ConnectionEntry) bool { return c.GetLinkId() == link.GetLinkId() })
		if i < 0 {
			return fmt.Errorf("no connection of the link among %v", connections)
		}
		used := connections[i].GetConfigData()
		for _, want := range []string{`"http2_keepalive":"45s"`, `"tcp_keepalive":"50s"`, `"timeout":"7s"`, `"interval":"700ms"`, `"keep_alive_while_idle":true`, `"connect_timeout":"1500ms"`} {
			if !strings.Contains(used, want) {
				return fmt.Errorf("no %s in %s", want, used)
			}
		}
		return nil
	})
}

func (l *lab) mustAddSegment(t *testing.T, name string) {
	t.Helper()
	if _, err := l.API().AddSegment(t.Context(), &controlplanepb.AddSegmentRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// mustAddLink returns the warnings.
func (l *lab) mustAddLink(t *testing.T, segment, groupA, groupB string) []string {
	t.Helper()
	response, err := l.API().AddTopologyLink(t.Context(), &controlplanepb.AddTopologyLinkRequest{Segment: segment, DomainA: groupA, DomainB: groupB})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetWarnings()
}

// wantApart waits until the link of two nodes is gone from the lists and from the
// nodes, and with it the routes to the applications of each on the other.
func (l *lab) wantApart(t *testing.T, linkID string, a, b *node) {
	t.Helper()
	l.WaitNoLink(t, a.group)
	for _, n := range []*node{a, b} {
		l.WaitNoConnection(t, n.fullID(), linkID)
	}
	l.wantUnrouted(t, a, bob)
	l.wantUnrouted(t, b, alice)
}

// wantUnrouted waits until there is no live route for a name from a node, whose
// own table lacks the name too.
func (l *lab) wantUnrouted(t *testing.T, from *node, name string) {
	t.Helper()
	observer.Eventually(t, fmt.Sprintf("no route from %s for %s", from.fullID(), name), func(ctx context.Context) error {
		routes, err := l.Routes(ctx, from.fullID(), "")
		if err != nil {
			return err
		}
		for _, route := range routes {
			if observer.NameOf(route.GetName()) == name && !observer.Deleted(route) {
				return fmt.Errorf("there is %v", route)
			}
		}
		return nil
	})
	l.WaitUnlisted(t, from.fullID(), name)
}
