package fsm

import "testing"

// A node with an external endpoint that cannot be dialled is a node like one that has
// none. Before schema 2 it meant what it meant to the versions of that time.
func TestMalformedEndpointsAreNotDialled(t *testing.T) {
	for schema, dialled := range map[uint32]bool{1: true, SchemaVersion: false} {
		h := newHistoryOf(t, schema)
		h.must(mesh())
		h.must(registerCommand(h.sessionName(), "a", "n1", ""))
		malformed := registerCommand(h.sessionName(), "b", "n1", "b test:1")
		malformed.GetRegisterNode().Details[0].ExternalEndpointMalformed = true
		h.must(malformed)
		if _, linked := h.view().LinkBetween("a", "b"); linked != dialled {
			t.Errorf("schema %d: linked: %v, want %v", schema, linked, dialled)
		}
		node, _ := h.view().Node("b/n1")
		if detail := node.Details[0]; detail.ExternalEndpoint != "b test:1" {
			t.Errorf("schema %d: what the node sent is gone: %+v", schema, detail)
		}
		group, _ := h.view().Group("b")
		if dialable := group.Dialable > 0; dialable != dialled {
			t.Errorf("schema %d: group b can be dialled: %v", schema, dialable)
		}
		h.check()
	}
}

// A node that is mended is dialled.
func TestMendedEndpointIsDialled(t *testing.T) {
	h := newHistoryOf(t, SchemaVersion)
	h.must(mesh())
	h.must(registerCommand(h.sessionName(), "a", "n1", ""))
	malformed := registerCommand(h.sessionName(), "b", "n1", "b test:1")
	malformed.GetRegisterNode().Details[0].ExternalEndpointMalformed = true
	h.must(malformed)
	h.register("b", "n1")
	if link, linked := h.view().LinkBetween("a", "b"); !linked || link.Endpoint != "b-n1.test:1" {
		t.Errorf("link %+v", link)
	}
}
