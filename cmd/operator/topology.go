package operator

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/cmd/operator/fleetconfig"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func (t *tree) topologyCommand() *cobra.Command {
	var file string
	apply := &cobra.Command{
		Use:   "apply",
		Short: "Make the fleet configuration of a file the active one",
		Long: "Make the fleet configuration of a replica's configuration file the active one, for all replicas and without a restart: " +
			"topology, enforced connection settings, registration credentials and the waits around sessions. " +
			"The rest of the file is checked and not used.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.applyTopology(command, file) },
	}
	apply.Flags().StringVarP(&file, configFlag, "c", "", "configuration `file`")
	// The flag was defined just above; the only error is that it does not exist.
	_ = apply.MarkFlagRequired(configFlag)
	return nounCommand(&cobra.Command{Use: "topology", Short: "The topology that a file gives"}, apply)
}

func (t *tree) applyTopology(command *cobra.Command, file string) error {
	wanted, warnings, err := fleetconfig.Load(file)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		fmt.Fprintln(command.ErrOrStderr(), "Warning: "+oneLine(warning))
	}
	var answer *slimcppb.ApplyFleetConfigResponse
	err = t.changeOn(command, "apply "+file, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = slimcppb.NewClusterServiceClient(connection).ApplyFleetConfig(ctx, &slimcppb.ApplyFleetConfigRequest{Config: wanted})
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
