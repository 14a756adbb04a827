package operator

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// everyNode is the source of the rows that show an announced name and no route.
const everyNode = "*"

// nodeIDFlag names the one node whose own tables are asked for.
const nodeIDFlag = "node-id"

func (t *tree) routeCommand() *cobra.Command {
	var (
		nodeID string
		filter filterFlags
	)
	list := listCommand("List the routes of the control plane, or with -n those that one node holds now", func(command *cobra.Command) error {
		if !command.Flags().Changed(nodeIDFlag) {
			return t.listRoutes(command, filter)
		}
		for _, name := range []string{t.vocabulary.originFlag, t.vocabulary.targetFlag, "all"} {
			if command.Flags().Changed(name) {
				return usageErrorf("--%s and --%s exclude each other", nodeIDFlag, name)
			}
		}
		return t.listNodeRoutes(command, nodeID)
	})
	list.Flags().StringVarP(&nodeID, nodeIDFlag, "n", "", "ask this node for its own table")
	filter.define(list.Flags(), t.vocabulary)
	return nounCommand(&cobra.Command{Use: "route", Short: "Routes to application names"}, list)
}

func (t *tree) listRoutes(command *cobra.Command, filter filterFlags) error {
	var routes []*controlplanepb.RouteEntry
	err := t.ask(command, "list routes", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) error {
		stream, err := client.ListRoutes(ctx, &controlplanepb.RouteListRequest{SrcNodeId: filter.origin, DestNodeId: filter.target})
		if err != nil {
			return err
		}
		routes, err = collect(stream)
		return err
	})
	if err != nil {
		return err
	}
	if len(routes) == 0 {
		if err := t.checkFilter(command, "list routes", filter); err != nil {
			return err
		}
	}
	if !filter.all {
		routes = keep(routes, func(route *controlplanepb.RouteEntry) bool {
			return route.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED
		})
	}
	rows := make([][]string, len(routes))
	for i, route := range routes {
		rows[i] = []string{
			route.GetSourceNodeId(),
			orAbsent(route.GetDestNodeId()),
			nameText(route.GetName(), "None"),
			routeStatus(route.GetStatus()),
			orAbsent(route.GetLinkId()),
		}
	}
	return t.print(command, listing{
		heading: t.routesHeading(routes, filter),
		columns: []string{"SOURCE", "DEST_NODE", "ROUTE", "STATUS", "LINK_ID"},
		rows:    rows,
		key:     "routes",
		entries: messages(routes),
	})
}

// routesHeading counts routes as status does: a name over a link at a node, however many
// announce it. Upstream's counts rows, of which each announcer has one.
func (t *tree) routesHeading(routes []*controlplanepb.RouteEntry, filter filterFlags) string {
	rows := fmt.Sprintf("Routes: %d (%s)", len(routes), filter.statuses())
	if !t.vocabulary.ownTables {
		return rows
	}
	type key struct{ node, link, name string }
	found, deleted := map[key]bool{}, 0
	for _, route := range routes {
		switch {
		case route.GetSourceNodeId() == everyNode:
		case route.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_DELETED:
			deleted++
		default:
			found[key{route.GetSourceNodeId(), route.GetLinkId(), nameText(route.GetName(), "")}] = true
		}
	}
	if len(found) == len(routes) {
		return rows
	}
	heading := fmt.Sprintf("Routes: %d (%s)", len(found), filter.statuses())
	if deleted > 0 {
		heading += fmt.Sprintf(", deleted: %d", deleted)
	}
	return heading + fmt.Sprintf(", rows: %d, one for each announcer; SOURCE * is the announcement itself", len(routes))
}

// listNodeRoutes prints one row per route and connection; the heading counts
// routes.
func (t *tree) listNodeRoutes(command *cobra.Command, nodeID string) error {
	var answer *controllerpb.RouteListResponse
	err := t.ask(command, "list routes of "+nodeID, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.ListNodeRoutes(ctx, &controlplanepb.Node{Id: nodeID})
		return err
	})
	if err != nil {
		return err
	}
	routes := answer.GetEntries()
	var rows [][]string
	for _, route := range routes {
		name := nameText(route.GetName(), absent)
		if len(route.GetConnections()) == 0 {
			rows = append(rows, []string{name, absent, absent, absent})
		}
		for _, connection := range route.GetConnections() {
			rows = append(rows, []string{
				name,
				connectionType(connection.GetConnectionType()),
				connectionEndpoint(connection),
				t.orAbsent(optional(connection.LinkId)),
			})
		}
	}
	return t.print(command, listing{
		heading: "Routes for node: " + nodeID + "\n" + counted(len(routes), "route"),
		columns: []string{"ROUTE", "TYPE", "ENDPOINT", "LINK_ID"},
		rows:    rows,
		key:     "routes",
		entries: messages(routes),
	})
}

func routeStatus(status controlplanepb.RouteStatus) string {
	switch status {
	case controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED:
		return "APPLIED"
	case controlplanepb.RouteStatus_ROUTE_STATUS_FAILED:
		return "FAILED"
	case controlplanepb.RouteStatus_ROUTE_STATUS_DELETED:
		return "DELETED"
	case controlplanepb.RouteStatus_ROUTE_STATUS_PENDING:
		return "PENDING"
	default:
		return "UNKNOWN"
	}
}
