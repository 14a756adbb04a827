// Command slim-node runs simulated SLIM data-plane nodes against a control plane
// and checks, from what the nodes hold, where messages between them arrive.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "slim-node: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "slim-node",
		Short:         "Simulated SLIM data-plane nodes",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newFleetCommand(), newCtlCommand())
	return root
}
