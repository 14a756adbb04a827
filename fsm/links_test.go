package fsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// TestOneLinkForEachPair registers nodes in any order under any topology: each
// pair that the topology allows has one live link, and no other pair has any.
// Two groups that registered at one moment once got two opposite links.
func TestOneLinkForEachPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		pairs := rapid.SliceOfNDistinct(rapid.SampledFrom([][2]string{
			{"a", "b"}, {"a", "c"}, {"b", "c"}, {"c", "d"}, {"hub", "a"}, {"d", "hub"}, {"b", Wildcard}, {Wildcard, "hub"},
		}), 1, 6, func(pair [2]string) [2]string { return pair }).Draw(t, "topology")
		h.must(topologyCommand(linksSegment(DefaultSegment, pairs...)))
		order := rapid.Permutation([][2]string{
			{"a", "n1"}, {"a", "n2"}, {"b", "n1"}, {"c", "n1"}, {"d", "n1"}, {"d", "n2"}, {"hub", "n1"},
		}).Draw(t, "order")
		var together []*slimcppb.Command // also two in one log entry
		for _, node := range order {
			together = append(together, registerCommand(h.sessionName(), node[0], node[1], node[0]+node[1]+".test:1"))
			if rapid.Bool().Draw(t, "entry ends") {
				h.apply(together...)
				together = nil
			}
		}
		h.apply(together...)
		h.check()
		live := map[[2]string]int{}
		for link := range h.view().Links() {
			if link.Live() {
				live[[2]string{min(link.SourceGroup, link.DestGroup), max(link.SourceGroup, link.DestGroup)}]++
			}
		}
		allowed := 0
		for a, b := range h.view().AllowedPairs() {
			allowed++
			if live[[2]string{a, b}] != 1 {
				t.Fatalf("%d links %s~%s", live[[2]string{a, b}], a, b)
			}
		}
		if len(live) != allowed {
			t.Fatalf("links of %d pairs, %d are allowed", len(live), allowed)
		}
	})
}

func TestWhoDialsWhom(t *testing.T) {
	cases := []struct {
		name          string
		first, second string // external endpoint of a/n1, which registers first, and b/n1
		source        string // empty: no link can be made
	}{
		{"both can be dialled: the newly registered one dials", "a.test:1", "b.test:1", "b/n1"},
		{"only the first can be dialled", "a.test:1", "", "b/n1"},
		{"only the newly registered one can be dialled", "", "b.test:1", "a/n1"},
		{"neither can be dialled", "", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := meshed(t)
			h.must(registerCommand(h.sessionName(), "a", "n1", c.first))
			h.must(registerCommand(h.sessionName(), "b", "n1", c.second))
			if c.source == "" {
				h.unlinked("a", "b")
				// It is made as soon as a node comes that can be dialled.
				h.register("a", "n2")
				link := h.between("a", "b")
				equal(t, "source", link.SourceNode, "b/n1")
				equal(t, "endpoint", link.Endpoint, "a-n2.test:1")
				return
			}
			link := h.between("a", "b")
			equal(t, "source", link.SourceNode, c.source)
			equal(t, "endpoint", link.Endpoint, map[string]string{"b/n1": c.first, "a/n1": c.second}[c.source])
			equal(t, "endpoint's node", link.EndpointNode, map[string]string{"b/n1": "a/n1", "a/n1": "b/n1"}[c.source])
			equal(t, "status", link.Status, LinkPending)
			equal(t, "end", link.DestNode, "")
			equal(t, "source's revision", link.SourceRevision, h.view().Index())
			equal(t, "destination's revision", link.DestRevision, h.view().Index())
			h.check()
		})
	}
}

func TestASiblingGetsNoSecondLink(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	h.register("b", "n1")
	link := *h.between("a", "b")
	h.register("a", "n2")
	h.register("b", "n2")
	equal(t, "link", *h.between("a", "b"), link)
	count := 0
	for range h.view().Links() {
		count++
	}
	equal(t, "number of links", count, 1)
}

func TestOnlyConnectedNodesThatAnswerAreLinked(t *testing.T) {
	t.Run("without a session", func(t *testing.T) {
		h := meshed(t)
		h.lose(h.register("a", "n1"))
		h.register("b", "n1")
		h.unlinked("a", "b")
		h.register("a", "n1")
		h.between("a", "b")
	})
	t.Run("departed", func(t *testing.T) {
		h := meshed(t)
		h.depart("a/n1", h.register("a", "n1"))
		h.register("b", "n1")
		h.unlinked("a", "b")
	})
	t.Run("leaving", func(t *testing.T) {
		h := meshed(t)
		h.deregister(h.register("a", "n1"))
		h.register("b", "n1")
		h.unlinked("a", "b")
	})
	t.Run("silent", func(t *testing.T) {
		h := meshed(t)
		a := h.register("a", "n1")
		h.must(silentCommand("a/n1", a, true))
		h.register("b", "n1")
		h.unlinked("a", "b")
		h.must(silentCommand("a/n1", a, false))
		equal(t, "source", h.between("a", "b").SourceNode, "a/n1")
	})
	t.Run("beside one that does not answer", func(t *testing.T) {
		for range 8 {
			h := meshed(t)
			h.must(silentCommand("a/n1", h.register("a", "n1"), true))
			h.lose(h.register("a", "n2"))
			h.register("a", "n3")
			h.register("b", "n1")
			equal(t, "endpoint's node", h.between("a", "b").EndpointNode, "a/n3")
		}
	})
	t.Run("a new session answers again", func(t *testing.T) {
		h := meshed(t)
		h.must(silentCommand("a/n1", h.register("a", "n1"), true))
		h.register("b", "n1")
		h.register("a", "n1")
		h.between("a", "b")
	})
}

func TestUnmadeLinksOfASilentNodeMove(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	h.register("c", "n1")
	b1 := h.register("b", "n1")
	h.claim(h.commandSession("a/n1"), h.between("a", "b").ID, "m")
	made, unmade := h.between("a", "b"), h.between("b", "c")
	h.must(silentCommand("b/n1", b1, true)) // nobody to take over
	equal(t, "source", h.between("b", "c").SourceNode, "b/n1")
	h.must(silentCommand("b/n1", b1, false))
	h.register("b", "n2")
	h.must(silentCommand("b/n1", b1, true))
	equal(t, "link that stands", *h.between("a", "b"), *made)
	moved := h.between("b", "c")
	equal(t, "id", moved.ID, unmade.ID)
	equal(t, "source", moved.SourceNode, "b/n2")
	h.check()
}

func TestNodesWithoutAGroupAreNotLinked(t *testing.T) {
	h := meshed(t)
	h.register("a", "n1")
	lone := h.sessionName()
	h.must(registerCommand(lone, "", "lone", "lone.test:1"))
	h.must(registerCommand(h.sessionName(), "", "other", "other.test:1"))
	h.announce(lone, appName("x", 1))
	for link := range h.view().Links() {
		t.Errorf("link %+v", *link)
	}
	if got := h.announcers(appName("x", 1)); !slices.Equal(got, []string{"lone"}) {
		t.Errorf("announcers %q", got)
	}
	h.register("b", "n1")
	h.expectForwards(appName("x", 1), nil)
	h.check()
}

func TestATopologyChangeEndsAndMakesLinks(t *testing.T) {
	h := meshed(t)
	for _, group := range []string{"a", "b", "hub"} {
		h.register(group, "n1")
	}
	h.stand()
	kept, forbidden := h.between("a", "hub"), h.between("a", "b")

	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"hub", Wildcard})))
	h.unlinked("a", "b")
	equal(t, "link that stays", *h.between("a", "hub"), *kept)
	deleted := h.link(forbidden.ID)
	equal(t, "status", deleted.Status, LinkDeleted)
	equal(t, "gone before its source dropped it", deleted.Gone, false)
	h.check()

	h.must(mesh())
	if h.between("a", "b").ID == forbidden.ID {
		t.Error("an edge that was removed and added again has its old id")
	}
	equal(t, "link that stays", *h.between("a", "hub"), *kept)
	h.check()
}

func TestATopologyMayNameGroupsThatAreNotThere(t *testing.T) {
	h := newHistory(t)
	h.register("a", "n1")
	h.must(topologyCommand(linksSegment(DefaultSegment, [2]string{"a", "later"}, [2]string{"x", "y"})))
	h.check()
	h.register("later", "n1")
	h.between("a", "later")
}

func TestLinksWaitForATopology(t *testing.T) {
	h := newHistory(t)
	h.register("a", "n1")
	h.register("b", "n1")
	h.unlinked("a", "b")
	h.must(mesh())
	h.between("a", "b")
	h.check()
}

func TestWhatALinkDials(t *testing.T) {
	external := func(endpoint string) *string { return &endpoint }
	cases := []struct {
		name    string
		details []*slimcppb.ConnectionDetail
		want    endpoint
	}{
		{"the first external endpoint that is not empty", []*slimcppb.ConnectionDetail{
			{Endpoint: "10.0.0.1:1"}, {Endpoint: "10.0.0.1:2", ExternalEndpoint: external("")},
			{Endpoint: "10.0.0.1:3", ExternalEndpoint: external("ext.test:3")},
			{Endpoint: "10.0.0.1:4", ExternalEndpoint: external("ext.test:4"), TlsRequired: true},
		}, endpoint{address: "ext.test:3"}},
		{"with its own requirements", []*slimcppb.ConnectionDetail{
			{ExternalEndpoint: external("ext.test:1"), TlsRequired: true, AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_JWT, TrustDomain: "td"},
		}, endpoint{address: "ext.test:1", tlsRequired: true, authMethod: slimcppb.AuthMethod_AUTH_METHOD_JWT}},
		{"in the trust domain that it names", []*slimcppb.ConnectionDetail{
			{ExternalEndpoint: external("ext.test:1"), AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE, TrustDomain: "td.test"},
		}, endpoint{address: "ext.test:1", authMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE, trustDomain: "td.test"}},
		{"in the trust domain of its group", []*slimcppb.ConnectionDetail{
			{ExternalEndpoint: external("ext.test:1"), AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE},
		}, endpoint{address: "ext.test:1", authMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE, trustDomain: "a"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := meshed(t)
			command := registerCommand(h.sessionName(), "a", "n1", "")
			command.GetRegisterNode().Details = c.details
			h.must(command)
			h.register("b", "n1")
			link := h.between("a", "b")
			equal(t, "endpoint", link.endpoint(), c.want)
			equal(t, "needs credentials", link.NeedsCredentials(), c.want.tlsRequired || c.want.authMethod != slimcppb.AuthMethod_AUTH_METHOD_NONE)
		})
	}
}
