// Command slimctl asks a control plane for its state and changes it, with the
// commands, flags and tables of the upstream tool of that name.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slim-cp/slim-cp/cmd/operator"
)

// version is stamped by the build (-ldflags "-X main.version=...").
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := operator.Execute(ctx, newRoot())
	stop()
	os.Exit(code)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "slimctl",
		Short: "Ask and change a SLIM control plane",
	}
	controller := &cobra.Command{
		Use:     "controller",
		Aliases: []string{"c", "ctrl"},
		Short:   "Talk to the control plane",
	}
	controller.AddCommand(operator.NewCommands(operator.Options{
		Dialect:         operator.Slimctl,
		ConnectionFlags: root.PersistentFlags(),
	})...)
	root.AddCommand(controller, operator.NewConfigCommand())
	operator.AddVersion(root, operator.Version(version))
	return root
}
