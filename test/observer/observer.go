package observer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

const (
	// pollPeriod is the pause between two looks at a control plane.
	pollPeriod = 50 * time.Millisecond
	// callTimeout bounds one look.
	callTimeout = 15 * time.Second
	// convergence bounds the way from a change in the fleet to the state that
	// the control plane should bring it to. It is usually well under a second;
	// a departure adds its grace, and the first retry of a failed link a second.
	convergence = 20 * time.Second
)

// Observer is an operator's connection to one replica.
type Observer struct {
	client controlplanepb.ControlPlaneServiceClient
}

// Dial connects to a northbound endpoint (host:port) until the test ends.
func Dial(tb testing.TB, endpoint string) *Observer {
	tb.Helper()
	// A replica that starts again is found at once, not after gRPC's own back-off
	// of up to two minutes.
	retry := backoff.Config{BaseDelay: pollPeriod, Multiplier: 1, MaxDelay: pollPeriod}
	connection, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := connection.Close(); err != nil {
			tb.Error(err)
		}
	})
	return New(connection)
}

// New observes over a connection of the caller's.
func New(connection grpc.ClientConnInterface) *Observer {
	return &Observer{client: controlplanepb.NewControlPlaneServiceClient(connection)}
}

// API returns the calls themselves, for those who change something.
func (o *Observer) API() controlplanepb.ControlPlaneServiceClient { return o.client }

// Nodes lists all nodes.
func (o *Observer) Nodes(ctx context.Context) ([]*controlplanepb.NodeEntry, error) {
	return collect(ctx, o.client.ListNodes, &controlplanepb.NodeListRequest{})
}

// noLink is listed as the link id of a pair of groups that has no link.
const noLink = "-"

// Links lists all links that are not deleted, without the placeholders for
// group pairs that have none.
func (o *Observer) Links(ctx context.Context) ([]*controlplanepb.LinkEntry, error) {
	return o.links(ctx, func(link *controlplanepb.LinkEntry) bool { return !link.GetDeleted() && link.GetLinkId() != noLink })
}

// Unlinked lists the placeholders for group pairs that have no link. Their
// source and destination are the groups, their status message tells the reason.
func (o *Observer) Unlinked(ctx context.Context) ([]*controlplanepb.LinkEntry, error) {
	return o.links(ctx, func(link *controlplanepb.LinkEntry) bool { return link.GetLinkId() == noLink })
}

func (o *Observer) links(ctx context.Context, wanted func(*controlplanepb.LinkEntry) bool) ([]*controlplanepb.LinkEntry, error) {
	all, err := collect(ctx, o.client.ListLinks, &controlplanepb.LinkListRequest{})
	var links []*controlplanepb.LinkEntry
	for _, link := range all {
		if wanted(link) {
			links = append(links, link)
		}
	}
	return links, err
}

// Routes lists routes in every status; an empty id means any node.
func (o *Observer) Routes(ctx context.Context, source, destination string) ([]*controlplanepb.RouteEntry, error) {
	return collect(ctx, o.client.ListRoutes, &controlplanepb.RouteListRequest{SrcNodeId: source, DestNodeId: destination})
}

// RoutesTo lists the routes for a name ("org/ns/app", every instance) in every
// status.
func (o *Observer) RoutesTo(ctx context.Context, name string) ([]*controlplanepb.RouteEntry, error) {
	all, err := o.Routes(ctx, "", "")
	var routes []*controlplanepb.RouteEntry
	for _, route := range all {
		if NameOf(route.GetName()) == name {
			routes = append(routes, route)
		}
	}
	return routes, err
}

// NodeRoutes asks a node, through the control plane, for its own table.
func (o *Observer) NodeRoutes(ctx context.Context, node string) ([]*controllerpb.RouteEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := o.client.ListNodeRoutes(ctx, &controlplanepb.Node{Id: node})
	return response.GetEntries(), err
}

// NodeConnections asks a node, through the control plane, for its connections.
func (o *Observer) NodeConnections(ctx context.Context, node string) ([]*controllerpb.ConnectionEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := o.client.ListConnections(ctx, &controlplanepb.Node{Id: node})
	return response.GetEntries(), err
}

// Group returns the group of a full node id.
func Group(node string) string {
	group, _, _ := strings.Cut(node, "/")
	return group
}

// NameOf renders a name without its instance id: "org/ns/app".
func NameOf(name *dataplanepb.Name) string {
	text := name.GetStrName()
	return text.GetStrComponent_0() + "/" + text.GetStrComponent_1() + "/" + text.GetStrComponent_2()
}

// InstanceOf renders the instance id of a name, a UUID.
func InstanceOf(name *dataplanepb.Name) string {
	id := name.GetName().GetNameId()
	var raw uuid.UUID
	binary.BigEndian.PutUint64(raw[:8], id.GetId_0())
	binary.BigEndian.PutUint64(raw[8:], id.GetId_1())
	return raw.String()
}

// collect reads a streamed list to its end.
func collect[Request, Entry any](
	ctx context.Context,
	list func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Entry], error),
	request *Request,
) ([]*Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := list(ctx, request)
	if err != nil {
		return nil, err
	}
	var entries []*Entry
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		entries = append(entries, entry)
	}
}
