// Command slimctl asks a control plane for its state and changes it, with the
// commands, flags and tables of the upstream tool of that name.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
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
	version := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(command.OutOrStdout(), versionText())
			return err
		},
	}
	root.AddCommand(controller, version)
	return root
}

// versionText reads what the Go tool stamped into the binary.
func versionText() string {
	words := []string{"slimctl"}
	build, found := debug.ReadBuildInfo()
	if !found {
		return words[0]
	}
	words = append(words, build.Main.Version)
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			words = append(words, setting.Value)
		}
	}
	return strings.Join(append(words, build.GoVersion), " ")
}
