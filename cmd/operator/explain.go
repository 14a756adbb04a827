package operator

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func (t *tree) explainCommand() *cobra.Command {
	link := &cobra.Command{
		Use:   "link GROUP_A GROUP_B",
		Short: "Say why two groups are linked, or what is in the way",
		Args:  exactly("GROUP_A GROUP_B"),
		RunE: func(command *cobra.Command, args []string) error {
			subject := "Link " + pairText(args[0], args[1])
			return t.explain(command, subject, func(ctx context.Context, client slimcppb.ClusterServiceClient) (*slimcppb.Explanation, error) {
				return client.ExplainLink(ctx, &slimcppb.ExplainLinkRequest{GroupA: args[0], GroupB: args[1]})
			})
		},
	}
	route := &cobra.Command{
		Use:   "route NAME GROUP",
		Short: "Say how messages for a name go from a group, or what is in the way",
		Long: "Say how messages for a name go from a group, or what is in the way. NAME is C0/C1/C2 for all instances, " +
			"or C0/C1/C2/ID for one, with ID a UUID or NULL_COMPONENT.",
		Args: exactly("NAME GROUP"),
		RunE: func(command *cobra.Command, args []string) error {
			subject := "Route to " + args[0] + " from group " + args[1]
			return t.explain(command, subject, func(ctx context.Context, client slimcppb.ClusterServiceClient) (*slimcppb.Explanation, error) {
				return client.ExplainRoute(ctx, &slimcppb.ExplainRouteRequest{Name: args[0], Group: args[1]})
			})
		},
	}
	return nounCommand(&cobra.Command{
		Use: "explain", Short: "Why a link or a route exists, or does not",
		Long: "Why a link or a route exists, or does not.\n\nExit codes: 0 it works, 1 no answer, 2 usage, 4 it does not work.",
	}, link, route)
}

func (t *tree) explain(
	command *cobra.Command,
	subject string,
	call func(context.Context, slimcppb.ClusterServiceClient) (*slimcppb.Explanation, error),
) error {
	var answer *slimcppb.Explanation
	err := t.connect(command, "explain", func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = call(ctx, slimcppb.NewClusterServiceClient(connection))
		return err
	})
	if err != nil {
		return err
	}
	verdict := " works"
	if !answer.GetWorks() {
		verdict = " does not work"
	}
	err = t.printMessage(command, indented(subject+verdict, answer.GetLines()), answer)
	if err == nil && !answer.GetWorks() {
		return &notConvergedError{subject + verdict}
	}
	return err
}

// indented puts lines under a heading.
func indented(heading string, lines []string) string {
	var text strings.Builder
	text.WriteString(printable(heading) + "\n")
	for _, line := range lines {
		text.WriteString("  " + printable(line) + "\n")
	}
	return text.String()
}

// pairText names an undirected link of two groups.
func pairText(a, b string) string { return a + "↔" + b }
