package operator

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exactly accepts as many arguments as names has words, of which those in brackets
// may be left out. It names the one that is missing, and shows no argument: one may
// be a secret.
func exactly(names string) cobra.PositionalArgs {
	words := strings.Fields(names)
	return func(command *cobra.Command, args []string) error {
		switch {
		case len(args) < len(words) && !strings.HasPrefix(words[len(args)], "["):
			return fmt.Errorf("%s is missing: %s %s", words[len(args)], command.CommandPath(), names)
		case len(args) > len(words):
			return fmt.Errorf("%d arguments are too many: %s %s", len(args), command.CommandPath(), names)
		}
		return nil
	}
}
