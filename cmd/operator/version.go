package operator

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version returns the version of the program: what its build stamped, else what the
// Go tool knows of its module or its commit.
func Version(stamped string) string {
	if stamped != "" {
		return stamped
	}
	build, found := debug.ReadBuildInfo()
	if !found {
		return "unknown"
	}
	return buildVersion(build)
}

func buildVersion(build *debug.BuildInfo) string {
	if text := build.Main.Version; text != "" && text != "(devel)" {
		return text
	}
	revision, suffix := "unknown", ""
	for _, setting := range build.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			suffix = "-dirty"
		}
	}
	return revision + suffix
}

// AddVersion adds the command "version" and the flag --version.
func AddVersion(root *cobra.Command, version string) {
	root.Version = version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := command.OutOrStdout().Write([]byte(root.Name() + " " + version + "\n"))
			return err
		},
	})
}
