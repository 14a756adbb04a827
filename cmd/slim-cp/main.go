// Command slim-cp is the control plane: "serve" runs a replica, the other
// commands ask one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slim-cp/slim-cp/cmd/operator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := operator.Execute(ctx, newRoot())
	stop()
	os.Exit(code)
}

func newRoot() *cobra.Command {
	var file string
	root := &cobra.Command{
		Use:   "slim-cp",
		Short: "A highly available control plane for SLIM",
		Long: "A highly available control plane for SLIM.\n\n" +
			"Exit codes: 0 done, 1 failed or no answer, 2 wrong command line, 3 a change may or may not have been made or is not complete, " +
			"4 not converged (status). Those of serve: slim-cp serve --help.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cmd.Help()
			}
			return serve(cmd.Context(), file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	// The older control plane had no sub-commands: "-c FILE" alone serves.
	root.Flags().StringVarP(&file, "config", "c", "", "serve with this configuration file")
	root.AddCommand(newServe())
	root.AddCommand(operator.NewCommands(operator.Options{
		Dialect: operator.SlimCP,
		Offline: []*cobra.Command{newRecover()},
	})...)
	operator.AddVersion(root, versionText())
	return root
}

func newServe() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "serve",
		Short: "Run a replica until SIGTERM",
		Long: "Run a replica until SIGTERM. Without --config the file ./config.yaml is used if it exists, " +
			"and the defaults if not.\n\n" +
			"Exit codes: 0 stopped, 1 did not start, 2 usage, 10 removed from the cluster, 11 the store failed, 12 the log needs a newer version.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	command.Flags().StringVarP(&file, "config", "c", "", "configuration file")
	return command
}
