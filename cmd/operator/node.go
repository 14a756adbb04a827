package operator

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func (t *tree) nodeCommand() *cobra.Command {
	return nounCommand(&cobra.Command{
		Use:     "node",
		Aliases: []string{"n", "nodes", "instance"},
		Short:   "Data-plane nodes known to the control plane",
	}, listCommand("List the nodes", t.listNodes))
}

func (t *tree) listNodes(command *cobra.Command) error {
	var nodes []*controlplanepb.NodeEntry
	err := t.ask(command, "list nodes", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) error {
		stream, err := client.ListNodes(ctx, &controlplanepb.NodeListRequest{})
		if err != nil {
			return err
		}
		nodes, err = collect(stream)
		return err
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(nodes))
	connected := 0
	for i, node := range nodes {
		if node.GetStatus() == controlplanepb.NodeStatus_NODE_STATUS_CONNECTED {
			connected++
		}
		endpoint, public := nodeEndpoints(node)
		rows[i] = []string{node.GetId(), t.orAbsent(node.GetDomain()), nodeStatus(node.GetStatus()), t.orAbsent(endpoint), t.orAbsent(public)}
	}
	heading := counted(len(nodes), "node") + " registered"
	if t.vocabulary.ownTables && connected < len(nodes) {
		heading += fmt.Sprintf(", %d connected", connected)
	}
	return t.print(command, listing{
		heading: heading,
		columns: []string{"NODE_ID", t.vocabulary.membership.heading, "STATUS", "ENDPOINT", "PUBLIC_ENDPOINT"},
		rows:    rows,
		key:     "nodes",
		entries: messages(nodes),
	})
}

// nodeEndpoints returns the endpoints of a node's first connection detail. A
// public endpoint that is present but empty stays empty.
func nodeEndpoints(node *controlplanepb.NodeEntry) (endpoint, public string) {
	details := node.GetConnections()
	if len(details) == 0 {
		return absent, absent
	}
	first := details[0]
	if first.ExternalEndpoint == nil {
		return first.GetEndpoint(), absent
	}
	return first.GetEndpoint(), first.GetExternalEndpoint()
}

func nodeStatus(status controlplanepb.NodeStatus) string {
	switch status {
	case controlplanepb.NodeStatus_NODE_STATUS_CONNECTED:
		return "Connected"
	case controlplanepb.NodeStatus_NODE_STATUS_NOT_CONNECTED:
		return "NotConnected"
	default:
		return "Unknown"
	}
}
