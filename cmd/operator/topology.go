package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cmd/operator/fleetconfig"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// topologyApply are the flags of "topology apply".
type topologyApply struct {
	file          string
	force, dryRun bool
}

func (t *tree) topologyCommand() *cobra.Command {
	var flags topologyApply
	apply := &cobra.Command{
		Use:   "apply",
		Short: "Make the fleet configuration of a file the active one",
		Long: "Make the fleet configuration of a replica's configuration file the active one, for all replicas and without a restart: " +
			"topology, enforced connection settings, registration credentials and the waits around sessions. " +
			"The rest of the file is checked and not used.\n\n" +
			"What will change is printed first. Without --force a file is refused that would end the authentication of a group with nodes, " +
			"remove the whole topology, or remove ten links or more and more than half of them.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.applyTopology(command, flags) },
	}
	apply.Flags().StringVarP(&flags.file, configFlag, "c", "", "configuration `file`")
	apply.Flags().BoolVar(&flags.force, "force", false, "also end authentication and remove the topology or most links")
	apply.Flags().BoolVar(&flags.dryRun, "dry-run", false, "only print what would change; exit code 1 if that needs --force")
	// The flag was defined just above; the only error is that it does not exist.
	_ = apply.MarkFlagRequired(configFlag)
	return nounCommand(&cobra.Command{Use: "topology", Short: "The topology that a file gives"}, apply)
}

func (t *tree) applyTopology(command *cobra.Command, flags topologyApply) error {
	wanted, warnings, err := fleetconfig.Load(flags.file)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		fmt.Fprintln(command.ErrOrStderr(), "Warning: "+oneLine(warning))
	}
	preview, err := t.previewTopology(command, flags, wanted)
	if err != nil || flags.dryRun {
		return err
	}
	if changes := preview.GetChanges(); t.format == formatTable && len(changes) > 0 {
		fmt.Fprint(command.OutOrStdout(), indented("Fleet configuration changes:", changes))
	}
	var answer *slimcppb.ApplyFleetConfigResponse
	err = t.changeOn(command, "apply "+flags.file, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = slimcppb.NewClusterServiceClient(connection).ApplyFleetConfig(ctx,
			&slimcppb.ApplyFleetConfigRequest{Config: wanted, Force: flags.force})
		return err
	})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Fleet configuration applied at index %d\n", answer.GetIndex())
	if !answer.GetChanged() {
		text = "Fleet configuration is active already\n"
	}
	return t.printMessage(command, text, answer)
}

// previewTopology asks what a fleet configuration would change. For a dry run it
// prints the answer. An older replica cannot tell.
func (t *tree) previewTopology(command *cobra.Command, flags topologyApply, wanted *slimcppb.FleetConfig) (*slimcppb.PreviewFleetConfigResponse, error) {
	var answer *slimcppb.PreviewFleetConfigResponse
	older := false
	err := t.connect(command, "compare "+flags.file, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = slimcppb.NewClusterServiceClient(connection).PreviewFleetConfig(ctx, &slimcppb.PreviewFleetConfigRequest{Config: wanted})
		if older = status.Code(err) == codes.Unimplemented && !flags.dryRun; older {
			return nil
		}
		return err
	})
	if err != nil || older || !flags.dryRun {
		return answer, err
	}
	text := "Fleet configuration is active already\n"
	if answer.GetChanged() {
		text = indented(fmt.Sprintf("Fleet configuration would change (compared at index %d):", answer.GetIndex()), answer.GetChanges())
	}
	if err := t.printMessage(command, text, answer); err != nil {
		return nil, err
	}
	if losses := answer.GetLosses(); len(losses) > 0 && !flags.force {
		return nil, fmt.Errorf("%s needs --force: %s", flags.file, strings.Join(losses, "; "))
	}
	return answer, nil
}
