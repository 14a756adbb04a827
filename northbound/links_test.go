package northbound

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	linkPending = controlplanepb.LinkStatus_LINK_STATUS_PENDING
	linkApplied = controlplanepb.LinkStatus_LINK_STATUS_APPLIED
	linkFailed  = controlplanepb.LinkStatus_LINK_STATUS_FAILED
	linkDeleted = controlplanepb.LinkStatus_LINK_STATUS_UNSPECIFIED
)

// plainConfig is what the source of a link without credentials is sent.
func plainConfig(endpoint, linkID string) string {
	return `{"endpoint":"http://` + endpoint + `","tls_required":false,"auth_method":"none",` +
		`"link_id":"` + linkID + `","connection_type":"remote","tls":{"insecure":true}}`
}

// twoGroups is a fleet whose node b/1 dials a/1.
func twoGroups(tb rapid.TB) (*fleet, *fsm.Link) {
	tb.Helper()
	f := newFleet(tb, mesh())
	f.register("a/1", gateway("a-ext:1"))
	f.register("b/1", inner())
	return f, f.link("a", "b")
}

// wantLink checks the only link that is listed.
func (c *client) wantLink(tb testing.TB, want *controlplanepb.LinkEntry) {
	tb.Helper()
	wantEntries(tb, c.links(tb, "", ""), want)
}

func TestListLinksFollowsALink(t *testing.T) {
	f, link := twoGroups(t)
	operator := f.operator(t)
	want := &controlplanepb.LinkEntry{
		Id: "b/1||http://a-ext:1|" + link.ID, LinkId: link.ID, SourceNodeId: "b/1", DestEndpoint: "http://a-ext:1",
		ConnConfigData: plainConfig("a-ext:1", link.ID), Status: linkPending, LastUpdated: f.clock.Unix(),
	}
	operator.wantLink(t, want)

	f.reconciled("b/1", dialled(link, "connection refused"))
	want.Status, want.StatusMsg, want.LastUpdated = linkFailed, "connection refused", f.clock.Unix()
	operator.wantLink(t, want)

	f.reconciled("b/1", dialled(link, ""))
	want.Status, want.StatusMsg, want.LastUpdated = linkPending, "", f.clock.Unix()
	operator.wantLink(t, want)

	f.claim("a/1", link)
	want.Status, want.LastUpdated = linkApplied, f.clock.Unix()
	want.Id, want.DestNodeId = "b/1|a/1|http://a-ext:1|"+link.ID, "a/1"
	operator.wantLink(t, want)

	f.setTopology(&slimcppb.Segment{Name: "other"})
	want.Status, want.Deleted, want.LastUpdated = linkDeleted, true, f.clock.Unix()
	want.StatusMsg = f.onlyLink().StatusMessage
	operator.wantLink(t, want)
	if want.StatusMsg == "" {
		t.Error("a deleted link does not say why")
	}

	f.dropped(link)
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_PurgeTombstones{
		PurgeTombstones: &slimcppb.PurgeTombstones{LinkIds: []string{link.ID}},
	}})
	wantEntries(t, operator.links(t, "", ""))
}

func (f *fleet) onlyLink() *fsm.Link {
	f.tb.Helper()
	links := slices.Collect(f.view().Links())
	if len(links) != 1 {
		f.tb.Fatalf("%d links, want 1", len(links))
	}
	return links[0]
}

func TestListLinksOverTLS(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", &slimcppb.ConnectionDetail{
		Endpoint: "0.0.0.0:1", ExternalEndpoint: proto.String("a-ext:1"), TlsRequired: true,
		AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE,
	})
	f.register("b/1")
	got := f.operator(t).links(t, "", "")
	if len(got) != 1 {
		t.Fatalf("%d links, want 1", len(got))
	}
	if want := "https://a-ext:1"; got[0].GetDestEndpoint() != want || got[0].GetId() != "b/1||"+want+"|"+got[0].GetLinkId() {
		t.Errorf("endpoint %q, id %q: want %q", got[0].GetDestEndpoint(), got[0].GetId(), want)
	}
}

func linkIDs(entries []*controlplanepb.LinkEntry) []string {
	var ids []string
	for _, entry := range entries {
		if entry.GetLinkId() == "-" {
			ids = append(ids, entry.GetId())
		} else {
			ids = append(ids, entry.GetSourceNodeId()+">"+entry.GetDestNodeId())
		}
	}
	slices.Sort(ids)
	return ids
}

func TestListLinksFilters(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", gateway("a-ext:1"))
	f.register("b/1")
	f.register("c/1")
	f.register("d/1")
	f.claim("a/1", f.link("a", "b"))
	f.claim("a/1", f.link("a", "c"))
	operator := f.operator(t)
	for _, c := range []struct {
		source, dest string
		want         []string
	}{
		{"", "", []string{"b/1>a/1", "c/1>a/1", "d/1>", "pending|b|c", "pending|b|d", "pending|c|d"}},
		{"b/1", "", []string{"b/1>a/1"}},
		{"", "a/1", []string{"b/1>a/1", "c/1>a/1"}},
		{"c/1", "a/1", []string{"c/1>a/1"}},
		{"c/1", "b/1", nil},
		{"nobody", "", nil},
		{"c", "", []string{"pending|b|c", "pending|c|d"}},
		{"", "c", []string{"pending|b|c", "pending|c|d"}},
		{"c", "b", []string{"pending|b|c"}},
		{"b", "c", []string{"pending|b|c"}},
		{"b", "b", nil},
		{"a", "", nil},
	} {
		if got := linkIDs(operator.links(t, c.source, c.dest)); !slices.Equal(got, c.want) {
			t.Errorf("source %q, destination %q: %q, want %q", c.source, c.dest, got, c.want)
		}
	}
}

func TestUnlinkedPairsSayWhy(t *testing.T) {
	f := newFleet(t, star("hub"))
	for _, id := range []string{"hub/1", "offline/1", "plain/1", "silent/1"} {
		f.register(id)
	}
	operator := f.operator(t)
	want := func(a, b, reason string) *controlplanepb.LinkEntry {
		return &controlplanepb.LinkEntry{
			Id: "pending|" + a + "|" + b, LinkId: "-", SourceNodeId: a, DestNodeId: b, DestEndpoint: "-",
			Status: linkPending, StatusMsg: reason,
		}
	}
	f.lose("offline/1")
	f.silence("silent/1")
	wantEntries(t, operator.links(t, "", ""),
		want("hub", "offline", "group offline has no connected node"),
		want("hub", "plain", "neither group hub nor group plain has a connected node with an external endpoint"),
		want("hub", "silent", "no connected node of group silent answers"),
	)
	f.lose("hub/1")
	wantEntries(t, operator.links(t, "", ""),
		want("hub", "offline", "groups hub and offline have no connected node"),
		want("hub", "plain", "group hub has no connected node"),
		want("hub", "silent", "group hub has no connected node"),
	)
	f.register("hub/1", gateway("hub-ext:1"))
	wantEntries(t, operator.links(t, "offline", "hub"), want("hub", "offline", "group offline has no connected node"))
	if got := linkIDs(operator.links(t, "", "")); !slices.Contains(got, "plain/1>") || slices.Contains(got, "pending|hub|plain") {
		t.Errorf("the linked pair hub, plain is listed as %q", got)
	}
}

// An endpoint of a node that does not answer is not dialled.
func TestASilentGatewayIsNoReasonToHope(t *testing.T) {
	f := newFleet(t, star("hub"))
	f.register("half/1", inner())
	f.register("half/2", gateway("half-ext:1"))
	f.silence("half/2")
	f.register("hub/1", inner())
	got := f.operator(t).links(t, "", "")
	want := "neither group half nor group hub has a connected node with an external endpoint"
	if len(got) != 1 || got[0].GetStatusMsg() != want {
		t.Errorf("%v, want %q", got, want)
	}
}

// A pair whose deleted link its source still holds is linked as far as anybody
// can see; once it is gone, the pair is not.
func TestADeletedLinkStandsForItsPair(t *testing.T) {
	f, link := twoGroups(t)
	f.claim("a/1", link)
	f.setTopology(&slimcppb.Segment{Name: "other"})
	f.lose("a/1")
	f.setTopology(mesh())
	operator := f.operator(t)
	if got, want := linkIDs(operator.links(t, "", "")), []string{"b/1>a/1"}; !slices.Equal(got, want) {
		t.Errorf("while b/1 holds it: %q, want %q", got, want)
	}
	f.dropped(link)
	if got, want := linkIDs(operator.links(t, "", "")), []string{"b/1>a/1", "pending|a|b"}; !slices.Equal(got, want) {
		t.Errorf("when it is gone: %q, want %q", got, want)
	}
}
