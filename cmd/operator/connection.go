package operator

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func (t *tree) connectionCommand() *cobra.Command {
	var nodeID string
	list := listCommand("List the connections that a node holds now", func(command *cobra.Command) error {
		return t.listConnections(command, nodeID)
	})
	list.Flags().StringVarP(&nodeID, nodeIDFlag, "n", "", "id of the node to ask")
	// The flag was defined just above; the only error is that it does not exist.
	_ = list.MarkFlagRequired(nodeIDFlag)
	return nounCommand(&cobra.Command{
		Use:     "connection",
		Aliases: []string{"conn"},
		Short:   "Connections of a node",
	}, list)
}

func (t *tree) listConnections(command *cobra.Command, nodeID string) error {
	var answer *controllerpb.ConnectionListResponse
	err := t.ask(command, "list connections of "+nodeID, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.ListConnections(ctx, &controlplanepb.Node{Id: nodeID})
		return err
	})
	if err != nil {
		return err
	}
	connections := answer.GetEntries()
	rows := make([][]string, len(connections))
	for i, connection := range connections {
		rows[i] = []string{
			strconv.FormatUint(connection.GetId(), 10),
			connectionType(connection.GetConnectionType()),
			connectionDirection(connection.GetDirection()),
			connectionEndpoint(connection),
			t.orAbsent(optional(connection.LinkId)),
		}
	}
	return t.print(command, listing{
		heading: "Connections for node: " + nodeID + "\n" + counted(len(connections), "connection"),
		columns: []string{"CONN_ID", "TYPE", "DIRECTION", "ENDPOINT", "LINK_ID"},
		rows:    rows,
		key:     "connections",
		entries: messages(connections),
	})
}

// connectionEndpoint names the other end: an application, or a node.
func connectionEndpoint(connection *controllerpb.ConnectionEntry) string {
	if connection.GetConnectionType() == controllerpb.ConnectionType_CONNECTION_TYPE_EDGE {
		return "APP"
	}
	return optional(connection.PeerNodeId)
}

func connectionType(kind controllerpb.ConnectionType) string {
	switch kind {
	case controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE:
		return "Remote"
	case controllerpb.ConnectionType_CONNECTION_TYPE_PEER:
		return "Peer"
	case controllerpb.ConnectionType_CONNECTION_TYPE_EDGE:
		return "Edge"
	default:
		return "Local"
	}
}

func connectionDirection(direction controllerpb.ConnectionDirection) string {
	if direction == controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING {
		return "Incoming"
	}
	return "Outgoing"
}
