package operator

import (
	"fmt"
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// announced is a control plane with three names that two nodes announce each, a route
// of each name at both ends of a link, and one more over another link.
type announced struct{ stub }

func (*announced) ListRoutes(_ *controlplanepb.RouteListRequest, stream controlplanepb.ControlPlaneService_ListRoutesServer) error {
	const applied = controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED
	for _, source := range []string{"*", "a/1", "b/1"} {
		for i := range 6 {
			row := &controlplanepb.RouteEntry{
				SourceNodeId: source, DestNodeId: fmt.Sprint("c/", i%2), Name: name("org", "ns", fmt.Sprint("app-", i/2), nil), Status: applied,
			}
			if source != "*" {
				row.LinkId = "link"
			}
			if err := stream.Send(row); err != nil {
				return err
			}
		}
	}
	for _, row := range []*controlplanepb.RouteEntry{
		{SourceNodeId: "b/1", DestNodeId: "c/0", Name: name("org", "ns", "app-0", nil), Status: applied, LinkId: "another link"},
		{SourceNodeId: "a/1", DestNodeId: "c/0", Name: name("org", "ns", "gone", nil), Status: controlplanepb.RouteStatus_ROUTE_STATUS_DELETED},
	} {
		if err := stream.Send(row); err != nil {
			return err
		}
	}
	return nil
}

func (*announced) ListLinks(_ *controlplanepb.LinkListRequest, stream controlplanepb.ControlPlaneService_ListLinksServer) error {
	for _, link := range []*controlplanepb.LinkEntry{
		{LinkId: "1", SourceNodeId: "a/1", DestNodeId: "b/1", Status: controlplanepb.LinkStatus_LINK_STATUS_APPLIED},
		{LinkId: "2", SourceNodeId: "a/1", Status: controlplanepb.LinkStatus_LINK_STATUS_PENDING},
		{LinkId: "3", SourceNodeId: "a/1", Deleted: true},
		{LinkId: "-", SourceNodeId: "a", DestNodeId: "d", Status: controlplanepb.LinkStatus_LINK_STATUS_PENDING},
		{LinkId: "-", SourceNodeId: "b", DestNodeId: "d", Status: controlplanepb.LinkStatus_LINK_STATUS_PENDING},
	} {
		if err := stream.Send(link); err != nil {
			return err
		}
	}
	return nil
}

// The first line of a list has the number that status has. Upstream's counts rows.
func TestListsCountAsStatusDoes(t *testing.T) {
	isolate(t)
	address := serve(t, &announced{})
	for line, want := range map[string][2]string{
		"route list":       {"Routes: 7 (applied only), rows: 19, one for each announcer; SOURCE * is the announcement itself", "Routes: 19 (applied only)"},
		"route list --all": {"Routes: 7 (all statuses), deleted: 1, rows: 20, one for each announcer; SOURCE * is the announcement itself", "Routes: 20 (all statuses)"},
		"link list":        {"Links: 1 (applied only)", "Links: 1 (applied only)"},
		"link list --all":  {"Links: 2 (all statuses), deleted: 1, pairs of groups without a link: 2", "Links: 5 (all statuses)"},
		"node list":        {"4 node(s) registered, 1 connected", "4 node(s) registered"},
	} {
		for i, options := range []Options{{}, {Dialect: Slimctl}} {
			arguments := append(strings.Fields(line), "--server", address)
			if options.Dialect == Slimctl {
				arguments = append([]string{"controller"}, arguments...)
			}
			got := run(t, options, arguments...)
			if heading, _, _ := strings.Cut(got.stdout, "\n"); heading != want[i] {
				t.Errorf("%v begins with %q, want %q", arguments[:2], heading, want[i])
			}
		}
	}
}

// A gap in a table is no value for a program that cuts it into columns.
func TestTablesHaveNoGaps(t *testing.T) {
	isolate(t)
	got := run(t, Options{}, "link", "list", "--all", "--server", serve(t, &announced{}))
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	for _, row := range lines[4:] {
		if cells := strings.Fields(row); len(cells) != 5 {
			t.Errorf("row %q has %d values", row, len(cells))
		}
	}
}
