package operator

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestVersions(t *testing.T) {
	if got := Version("v1.2.3-4-gabc"); got != "v1.2.3-4-gabc" {
		t.Errorf("the stamped version is %q", got)
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123abcd"}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, c := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v1.2.3", []debug.BuildSetting{revision}, "v1.2.3"},
		{"(devel)", []debug.BuildSetting{revision}, "0123abcd"},
		{"", []debug.BuildSetting{modified, revision}, "0123abcd-dirty"},
		{"(devel)", nil, "unknown"},
	} {
		build := &debug.BuildInfo{Main: debug.Module{Version: c.module}, Settings: c.settings}
		if got := buildVersion(build); got != c.want {
			t.Errorf("%s with %v is %q, want %q", c.module, c.settings, got, c.want)
		}
	}
}

func TestVersionCommand(t *testing.T) {
	for _, word := range []string{"version", "--version"} {
		var output strings.Builder
		root := &cobra.Command{Use: "slim-cp"}
		AddVersion(root, "v1")
		root.SetOut(&output)
		root.SetArgs([]string{word})
		if code := Execute(t.Context(), root); code != ExitDone || output.String() != "slim-cp v1\n" {
			t.Errorf("%s: exit code %d, %q", word, code, output.String())
		}
	}
}
