package operator

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// membershipCommands returns the commands about the sets that nodes belong to.
// slimctl has two of them, for each generation of upstream's method names: a
// server from before the rename knows only the older ones.
func (t *tree) membershipCommands() []*cobra.Command {
	group := t.membershipCommand(groupNoun(), controlplanepb.ControlPlaneServiceClient.ListGroups)
	if t.vocabulary.membership == groupNoun() {
		return []*cobra.Command{group}
	}
	return []*cobra.Command{
		t.membershipCommand(domainNoun(), controlplanepb.ControlPlaneServiceClient.ListDomains),
		group,
	}
}

// listMembership is ListDomains or ListGroups.
type listMembership func(
	controlplanepb.ControlPlaneServiceClient, context.Context, *controlplanepb.ListDomainsRequest, ...grpc.CallOption,
) (*controlplanepb.ListDomainsResponse, error)

func (t *tree) membershipCommand(word noun, method listMembership) *cobra.Command {
	return nounCommand(&cobra.Command{
		Use:   word.singular,
		Short: "The " + word.singular + "s that nodes belong to",
	}, listCommand("List the "+word.singular+"s and their nodes", func(command *cobra.Command) error {
		return t.listMembers(command, word, method)
	}))
}

func (t *tree) listMembers(command *cobra.Command, word noun, method listMembership) error {
	var answer *controlplanepb.ListDomainsResponse
	err := t.ask(command, "list "+word.singular+"s", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = method(client, ctx, &controlplanepb.ListDomainsRequest{})
		return err
	})
	if err != nil {
		return err
	}
	entries := answer.GetDomains()
	rows := make([][]string, len(entries))
	for i, entry := range entries {
		members := strings.Join(entry.GetNodes(), ", ")
		if len(entry.GetNodes()) == 0 {
			members = "(no nodes connected)"
		}
		rows[i] = []string{entry.GetDomainName(), members}
	}
	return t.print(command, listing{
		heading: counted(len(entries), word.singular),
		columns: []string{word.heading, "NODES"},
		rows:    rows,
		key:     word.singular + "s",
		entries: messages(entries),
	})
}
