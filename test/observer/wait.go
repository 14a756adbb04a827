package observer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// AnyNode is listed as the source of a route that stands for the announcement
// itself.
const AnyNode = "*"

// Eventually looks until the condition holds, and fails the test with its last
// error if it does not in time.
func Eventually(tb testing.TB, what string, condition func(ctx context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), convergence)
	defer cancel()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if last == nil || status.Code(err) != codes.DeadlineExceeded {
			last = err // what the deadline cut short tells nothing
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not within %v: %v", what, convergence, last)
		}
	}
}

// WaitConnected waits until all these nodes, by full id, are connected.
func (o *Observer) WaitConnected(tb testing.TB, ids ...string) {
	tb.Helper()
	Eventually(tb, "connected: "+strings.Join(ids, ", "), func(ctx context.Context) error {
		nodes, err := o.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, id := range ids {
			connected := slices.ContainsFunc(nodes, func(node *controlplanepb.NodeEntry) bool {
				return node.GetId() == id && node.GetStatus() == controlplanepb.NodeStatus_NODE_STATUS_CONNECTED
			})
			if !connected {
				return fmt.Errorf("%s is not connected; listed: %v", id, nodes)
			}
		}
		return nil
	})
}

// WaitDisconnected waits until a node is listed as not connected, or no more.
func (o *Observer) WaitDisconnected(tb testing.TB, id string) {
	tb.Helper()
	Eventually(tb, "not connected: "+id, func(ctx context.Context) error {
		nodes, err := o.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			if node.GetId() == id && node.GetStatus() == controlplanepb.NodeStatus_NODE_STATUS_CONNECTED {
				return fmt.Errorf("listed: %v", node)
			}
		}
		return nil
	})
}

// WaitLink waits until two groups have exactly one live link, which is applied
// and meets the further conditions, and returns it. A link that nobody has
// claimed yet may be between any groups, and counts.
func (o *Observer) WaitLink(tb testing.TB, groupA, groupB string, conditions ...func(*controlplanepb.LinkEntry) error) *controlplanepb.LinkEntry {
	tb.Helper()
	var found *controlplanepb.LinkEntry
	Eventually(tb, fmt.Sprintf("one applied link %s~%s", groupA, groupB), func(ctx context.Context) error {
		links, err := o.Links(ctx)
		if err != nil {
			return err
		}
		links = slices.DeleteFunc(links, func(link *controlplanepb.LinkEntry) bool { return !mayJoin(link, groupA, groupB) })
		if len(links) != 1 {
			return fmt.Errorf("there are %d: %v", len(links), links)
		}
		found = links[0]
		if found.GetStatus() != controlplanepb.LinkStatus_LINK_STATUS_APPLIED || found.GetDestNodeId() == "" {
			return fmt.Errorf("it is not applied: %v", found)
		}
		for _, condition := range conditions {
			if err := condition(found); err != nil {
				return fmt.Errorf("%w: %v", err, found)
			}
		}
		return nil
	})
	return found
}

// WaitNoLink waits until a group has no live link.
func (o *Observer) WaitNoLink(tb testing.TB, group string) {
	tb.Helper()
	Eventually(tb, "no link of group "+group, func(ctx context.Context) error {
		links, err := o.Links(ctx)
		if err != nil {
			return err
		}
		for _, link := range links {
			if Group(link.GetSourceNodeId()) == group || Group(link.GetDestNodeId()) == group {
				return fmt.Errorf("there is %v", link)
			}
		}
		return nil
	})
}

// WaitNoConnection waits until a node itself, asked through the control plane,
// has no connection of a link.
func (o *Observer) WaitNoConnection(tb testing.TB, node, linkID string) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("%s has no connection of link %s", node, linkID), func(ctx context.Context) error {
		connections, err := o.NodeConnections(ctx, node)
		if err != nil {
			return err
		}
		for _, connection := range connections {
			if connection.GetLinkId() == linkID {
				return fmt.Errorf("it lists %v", connection)
			}
		}
		return nil
	})
}

// From is a condition on a link: the node that dials it.
func From(node string) func(*controlplanepb.LinkEntry) error {
	return func(link *controlplanepb.LinkEntry) error {
		if link.GetSourceNodeId() != node {
			return fmt.Errorf("its source is %s, not %s", link.GetSourceNodeId(), node)
		}
		return nil
	}
}

// To is a condition on a link: the node at its accepting end.
func To(node string) func(*controlplanepb.LinkEntry) error {
	return func(link *controlplanepb.LinkEntry) error {
		if link.GetDestNodeId() != node {
			return fmt.Errorf("its destination is %q, not %s", link.GetDestNodeId(), node)
		}
		return nil
	}
}

func mayJoin(link *controlplanepb.LinkEntry, groupA, groupB string) bool {
	source, destination := Group(link.GetSourceNodeId()), Group(link.GetDestNodeId())
	return (source == groupA && (destination == groupB || destination == "")) ||
		(source == groupB && (destination == groupA || destination == ""))
}

// WaitRoute waits until one route from a node (or AnyNode) to an announcer of a
// name is applied, and no other one is listed that is not deleted; it returns
// the route.
func (o *Observer) WaitRoute(tb testing.TB, source, destination, name string) *controlplanepb.RouteEntry {
	tb.Helper()
	var found *controlplanepb.RouteEntry
	Eventually(tb, fmt.Sprintf("one applied route %s -> %s for %s", source, destination, name), func(ctx context.Context) error {
		routes, err := o.Routes(ctx, source, destination)
		if err != nil {
			return err
		}
		routes = slices.DeleteFunc(routes, func(route *controlplanepb.RouteEntry) bool {
			return NameOf(route.GetName()) != name || Deleted(route)
		})
		if len(routes) != 1 {
			return fmt.Errorf("there are %d: %v", len(routes), routes)
		}
		found = routes[0]
		if found.GetStatus() != controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED {
			return fmt.Errorf("it is not applied: %v", found)
		}
		return nil
	})
	return found
}

// WaitDeleted waits until a name has routes, and all of them are deleted.
func (o *Observer) WaitDeleted(tb testing.TB, name string) {
	tb.Helper()
	Eventually(tb, "only deleted routes for "+name, func(ctx context.Context) error {
		routes, err := o.RoutesTo(ctx, name)
		if err != nil {
			return err
		}
		if len(routes) == 0 {
			return errors.New("none is listed")
		}
		for _, route := range routes {
			if !Deleted(route) {
				return fmt.Errorf("listed: %v", route)
			}
		}
		return nil
	})
}

// WaitForgotten waits until a name has no routes, not even deleted ones.
func (o *Observer) WaitForgotten(tb testing.TB, name string) {
	tb.Helper()
	Eventually(tb, "no trace of "+name, func(ctx context.Context) error {
		routes, err := o.RoutesTo(ctx, name)
		if err == nil && len(routes) > 0 {
			err = fmt.Errorf("listed: %v", routes)
		}
		return err
	})
}

// WaitUnlisted waits until a node's own table, read through the control plane,
// lacks a name.
func (o *Observer) WaitUnlisted(tb testing.TB, node, name string) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("%s no longer lists %s", node, name), func(ctx context.Context) error {
		entries, err := o.NodeRoutes(ctx, node)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if NameOf(entry.GetName()) == name {
				return fmt.Errorf("it lists %v", entry)
			}
		}
		return nil
	})
}

// Deleted tells whether a route is listed only to show that it is gone.
func Deleted(route *controlplanepb.RouteEntry) bool {
	return route.GetStatus() == controlplanepb.RouteStatus_ROUTE_STATUS_DELETED
}
