// Command slim-cp is the control plane: "serve" runs a replica, the other
// commands ask one.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"

	"github.com/slim-cp/slim-cp/cmd/operator"
	"github.com/slim-cp/slim-cp/logging"
)

// flushTimeout bounds how long the end waits for the reader of what is said last.
const flushTimeout = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// No line may hold up the work, nor the end, for want of a reader: those of the
	// libraries that have loggers of their own neither.
	stderr := logging.NewWriter(os.Stderr)
	log.SetOutput(stderr)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, stderr))
	root := newRoot()
	root.SetErr(stderr)
	code := operator.Execute(ctx, root)
	stop()
	flush(stderr)
	os.Exit(code)
}

// flush ends a writer. What its reader does not take in time is lost: there is nobody
// to be told.
func flush(w *logging.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = w.Close(ctx)
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
