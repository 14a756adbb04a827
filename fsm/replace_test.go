package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// detailed registers a/n1 with a connection detail, reporting its links.
func (h *history) detailed(detail *slimcppb.ConnectionDetail, reported ...*slimcppb.ReportedLink) {
	h.t.Helper()
	command := registerCommand(h.sessionName(), "a", "n1", "", reported...)
	command.GetRegisterNode().Details = []*slimcppb.ConnectionDetail{detail}
	h.must(command)
}

func TestALinkIsReplacedWhenWhatItDialsChanges(t *testing.T) {
	external := "a.test:1"
	moved := "a.test:2"
	empty := ""
	spire := slimcppb.AuthMethod_AUTH_METHOD_SPIRE
	cases := []struct {
		name     string
		before   *slimcppb.ConnectionDetail
		after    *slimcppb.ConnectionDetail
		replaced bool
	}{
		{"external endpoint", &slimcppb.ConnectionDetail{ExternalEndpoint: &external}, &slimcppb.ConnectionDetail{ExternalEndpoint: &moved}, true},
		{"TLS", &slimcppb.ConnectionDetail{ExternalEndpoint: &external}, &slimcppb.ConnectionDetail{ExternalEndpoint: &external, TlsRequired: true}, true},
		{"auth method", &slimcppb.ConnectionDetail{ExternalEndpoint: &external},
			&slimcppb.ConnectionDetail{ExternalEndpoint: &external, AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_BASIC}, true},
		{"trust domain", &slimcppb.ConnectionDetail{ExternalEndpoint: &external, AuthMethod: spire, TrustDomain: "one.test"},
			&slimcppb.ConnectionDetail{ExternalEndpoint: &external, AuthMethod: spire, TrustDomain: "two.test"}, true},
		{"the group's trust domain spelled out", &slimcppb.ConnectionDetail{ExternalEndpoint: &external, AuthMethod: spire},
			&slimcppb.ConnectionDetail{ExternalEndpoint: &external, AuthMethod: spire, TrustDomain: "a"}, false},
		{"trust domain without SPIRE", &slimcppb.ConnectionDetail{ExternalEndpoint: &external},
			&slimcppb.ConnectionDetail{ExternalEndpoint: &external, TrustDomain: "two.test"}, false},
		{"own endpoint", &slimcppb.ConnectionDetail{Endpoint: "10.0.0.1:1", ExternalEndpoint: &external},
			&slimcppb.ConnectionDetail{Endpoint: "10.0.0.2:1", ExternalEndpoint: &external}, false},
		{"nothing", &slimcppb.ConnectionDetail{ExternalEndpoint: &external}, &slimcppb.ConnectionDetail{ExternalEndpoint: &external}, false},
		{"no external endpoint any more", &slimcppb.ConnectionDetail{ExternalEndpoint: &external}, &slimcppb.ConnectionDetail{ExternalEndpoint: &empty}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := meshed(t)
			h.detailed(c.before)
			h.register("b", "n1")
			h.stand()
			old := *h.between("a", "b")
			equal(t, "source", old.SourceNode, "b/n1")

			h.detailed(c.after, incoming(&old))
			link := h.between("a", "b")
			h.check()
			if !c.replaced {
				equal(t, "link", *link, old)
				return
			}
			if link.ID == old.ID {
				t.Fatal("the link kept its id: its source keeps what it dialled")
			}
			node := h.node(link.EndpointNode)
			rendered, ok := renderEndpoint(node)
			equal(t, "endpoint", link.endpoint(), rendered)
			equal(t, "can be dialled", ok, true)
			equal(t, "status", link.Status, LinkPending)
			equal(t, "old link's status", h.link(old.ID).Status, LinkDeleted)
		})
	}
}

func TestAnUnclaimedLinkIsReplacedToo(t *testing.T) {
	h := meshed(t)
	one, two := "a.test:1", "a.test:2"
	h.detailed(&slimcppb.ConnectionDetail{ExternalEndpoint: &one})
	h.register("b", "n1")
	old := h.between("a", "b").ID
	h.detailed(&slimcppb.ConnectionDetail{ExternalEndpoint: &two})
	equal(t, "endpoint", h.between("a", "b").Endpoint, two)
	if h.between("a", "b").ID == old {
		t.Error("the link kept its id")
	}
}

// A link that does not stand is dialled elsewhere under its id: nobody holds that.
func TestALinkThatDoesNotStandKeepsItsIDWhenItsEndpointMoves(t *testing.T) {
	one, two := "a.test:1", "a.test:2"
	for schema, kept := range map[uint32]bool{1: false, 2: true} {
		t.Run(fmt.Sprint("schema ", schema), func(t *testing.T) {
			h := newHistoryOf(t, schema)
			h.must(mesh())
			h.detailed(&slimcppb.ConnectionDetail{ExternalEndpoint: &one})
			h.register("b", "n1")
			h.stand()
			old := *h.between("a", "b")
			h.lose(h.commandSession("a/n1"))
			h.detailed(&slimcppb.ConnectionDetail{ExternalEndpoint: &two, TlsRequired: true}) // it reports no link
			link := h.between("a", "b")
			h.check()
			equal(t, "the id is kept", link.ID == old.ID, kept)
			equal(t, "endpoint", link.endpoint(), endpoint{address: two, tlsRequired: true})
			equal(t, "status", link.Status, LinkPending)
			equal(t, "an endpoint that nobody reached counts as proven", link.ReachedAt.IsZero(), true)
			if link.SourceRevision <= old.SourceRevision || link.DestRevision <= old.DestRevision {
				t.Errorf("revisions are %d and %d, were %d and %d", link.SourceRevision, link.DestRevision, old.SourceRevision, old.DestRevision)
			}
			equal(t, "links", len(slices.Collect(h.view().Links())) == 1, kept)

			// An answer about the old endpoint says nothing.
			stale := reconciledCommand("b/n1", h.commandSession("b/n1"), 0, &slimcppb.LinkAck{LinkId: old.ID, Revision: old.SourceRevision, Error: "refused"})
			h.must(stale)
			equal(t, "status", h.between("a", "b").Status, LinkPending)
			h.stand()
			equal(t, "status", h.between("a", "b").Status, LinkApplied)
			h.check()
		})
	}
}

// Outgoing links do not depend on the node's own endpoint, nor do links to the
// endpoint of a sibling.
func TestOtherLinksStayWhenAnEndpointChanges(t *testing.T) {
	h := meshed(t)
	h.register("b", "n1")
	h.register("a", "n1") // dials b
	outgoing := h.between("a", "b").ID
	h.register("c", "n1") // dials a
	h.stand()
	toSibling := h.between("a", "c").ID
	h.register("a", "n2")
	h.must(registerCommand(h.sessionName(), "a", "n2", "elsewhere.test:1"))
	equal(t, "link to the sibling", h.between("a", "c").ID, toSibling)
	h.must(registerCommand(h.sessionName(), "a", "n1", "elsewhere.test:2"))
	equal(t, "outgoing link", h.between("a", "b").ID, outgoing)
	if h.between("a", "c").ID == toSibling {
		t.Error("the link to the changed endpoint stayed")
	}
	h.check()
}

func TestReplaceLinkMakesALinkWithANewID(t *testing.T) {
	h := unclaimed(t)
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m1")
	old := h.between("a", "b")
	result := h.must(replaceCommand(old))
	link := h.between("a", "b")
	equal(t, "new id", result.LinkID, link.ID)
	if link.ID == old.ID {
		t.Error("the link kept its id")
	}
	equal(t, "source", link.SourceNode, old.SourceNode)
	equal(t, "old link's message", h.link(old.ID).StatusMessage, "replaced by the test")
	if link.Endpoint == old.Endpoint {
		equal(t, "reached", link.ReachedAt, old.ReachedAt) // the endpoint stays proven
	} else if !link.ReachedAt.IsZero() {
		t.Error("an endpoint that nobody reached counts as proven")
	}

	h.refuse(replaceCommand(old), ErrStale) // it is being deleted
	h.refuse(replaceCommand(&Link{ID: "no-such-link"}), ErrUnknownLink)
	decided := *link
	h.claim(h.commandSession("a/n1"), link.ID, "m2")
	h.refuse(replaceCommand(&decided), ErrStale) // claimed since that was decided
	equal(t, "link", h.between("a", "b").ID, link.ID)
	h.check()
}

func TestALinkIsNotReplacedWhileNobodyCouldMakeANewOne(t *testing.T) {
	h := unclaimed(t)
	h.lose(h.commandSession("b/n1"))
	old := h.between("a", "b")
	h.refuse(replaceCommand(old), ErrStale)
	equal(t, "link", h.between("a", "b").ID, old.ID)
	h.register("b", "n1")
	h.must(replaceCommand(h.between("a", "b")))
	h.check()
}
