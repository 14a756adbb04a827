package fsm

import (
	"errors"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func TestCheckNodeID(t *testing.T) {
	long := strings.Repeat("x", 253)
	cases := []struct {
		name, group, node string
		bad               string // what the error must name; empty: the ids are good
	}{
		{name: "plain", group: "a", node: "n1"},
		{name: "no group", node: "n1"},
		{name: "longest", group: long, node: long},
		{name: "dots and dashes", group: "eu-1.prod_x", node: "node-1.x"},
		{name: "letters of any script", group: "köln", node: "узел"},
		{name: "node with a slash beside a group", group: "a", node: "pool/n1"},
		{name: "node with a colon", group: "a", node: "10.0.0.1:46357"},
		{name: "node with a space", group: "a", node: "node one"},
		{name: "star within an id", group: "a*", node: "*n"},
		{name: "group with spaces", group: " my\u00a0own domain", node: "n1"},
		{name: "colon and bar", group: "a:b|c", node: "n|1"},

		{name: "group that is a star", group: "*", node: "n1", bad: `group "*"`},
		{name: "group with a slash", group: "a/b", node: "n1", bad: `'/'`},
		{name: "group with a tab", group: "a\tb", node: "n1", bad: `'\t'`},
		{name: "group with a control character", group: "a\x00b", node: "n1", bad: `'\x00'`},
		{name: "group with a C1 control character", group: "a\u0085b", node: "n1", bad: "group"},
		{name: "group too long", group: long + "x", node: "n1", bad: "254 bytes, at most 253"},
		{name: "group that is not UTF-8", group: "a\xff", node: "n1", bad: "not UTF-8"},

		{name: "node empty", group: "a", bad: "empty"},
		{name: "node empty without a group", bad: "empty"},
		{name: "node that is a star", group: "a", node: "*", bad: `"*"`},
		{name: "node that is a star without a group", node: "*", bad: `"*"`},
		{name: "node with a control character", group: "a", node: "n\n1", bad: "control character"},
		{name: "node too long", group: "a", node: long + "x", bad: "254 bytes, at most 253"},
		{name: "node that is not UTF-8", group: "a", node: "n\xff", bad: "not UTF-8"},
		{name: "node with a slash without a group", node: "a/n1", bad: "has a /"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := CheckNodeID(c.group, c.node)
			h := newHistoryOf(t, SchemaVersion)
			registered := h.apply(registerCommand(h.sessionName(), c.group, c.node, ""))[0]
			if c.bad == "" {
				if err != nil || registered.Err != nil {
					t.Fatalf("refused: %v, %v", err, registered.Err)
				}
				return
			}
			if !errors.Is(err, ErrBadID) || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("error %v does not name %q", err, c.bad)
			}
			if !errors.Is(registered.Err, ErrInvalid) || !errors.Is(registered.Err, ErrBadID) || h.view().NodeCount() != 0 {
				t.Errorf("registration answered %v, %d nodes", registered.Err, h.view().NodeCount())
			}
		})
	}
}

// "a" with "b/c" and "a/b" with "c" would be one full id, and so would the node
// "a/n1" without a group and "n1" of group a: one of each two is refused.
func TestNoTwoNodesHaveOneID(t *testing.T) {
	if CheckNodeID("a", "b/c") != nil || CheckNodeID("a/b", "c") == nil || CheckNodeID("", "a/n1") == nil {
		t.Error("two nodes may have one id")
	}
}

// Equal node ids in two groups once collided.
func TestEqualNodeIDsOfTwoGroupsAreTwoNodes(t *testing.T) {
	h := meshed(t)
	a, b := h.register("a", "n1"), h.register("b", "n1")
	equal(t, "number of nodes", h.view().NodeCount(), 2)
	x := appName("x", 1)
	h.announce(a, x)
	h.withdraw(b, x)
	if got := h.announcers(x); len(got) != 1 || got[0] != "a/n1" {
		t.Errorf("announcers %q", got)
	}
}

// Entries that were written before schema 2 mean what they meant.
func TestIDsBeforeSchema2(t *testing.T) {
	for _, id := range [][2]string{{"a b", "n"}, {"a:b", "n"}, {"a|b", "n"}, {"a", "n|1"}} {
		h := meshed(t)
		if result := h.apply(registerCommand(h.sessionName(), id[0], id[1], ""))[0]; !errors.Is(result.Err, ErrBadID) {
			t.Errorf("%q registers: %v", id, result.Err)
		}
		edge := &slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{Segment: DefaultSegment, GroupA: id[0], GroupB: "z"}}}
		h = newHistory(t)
		if result := h.apply(edge)[0]; (id[0] != "a") != errors.Is(result.Err, ErrInvalid) {
			t.Errorf("%q is linked: %v", id, result.Err)
		}
	}
}
