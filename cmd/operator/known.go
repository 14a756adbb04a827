package operator

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// checkFilter says whether a list is empty because a filter names what nobody knows. It
// is an error, for a script must not take a misspelled name for a node without links;
// slimctl warns, since upstream's answers such a list as any other.
func (t *tree) checkFilter(command *cobra.Command, action string, filter filterFlags) error {
	if filter.origin == "" && filter.target == "" {
		return nil
	}
	var nodes []*controlplanepb.NodeEntry
	err := t.ask(command, action, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) error {
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
	// Pairs of groups without a link are found by their names.
	known := map[string]bool{"": true, everyNode: true}
	for _, node := range nodes {
		known[node.GetId()], known[node.GetDomain()] = true, true
	}
	for _, id := range []string{filter.origin, filter.target} {
		if known[id] {
			continue
		}
		unknown := fmt.Errorf("%s: node %s is not known: see \"node list\"", action, id)
		if t.vocabulary.ownTables {
			return unknown
		}
		fmt.Fprintln(command.ErrOrStderr(), "Warning: "+oneLine(unknown.Error()))
	}
	return nil
}
