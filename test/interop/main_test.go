//go:build interop

package interop_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// binaries is set once, before any test runs.
var binaries process.Binaries

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// prepare builds what is tested, and looks for what comes from elsewhere.
func prepare() (err error) {
	flag.Parse()
	for release := range strings.SplitSeq(*releases, ",") {
		places := map[string]string{
			"2": filepath.Join("node_modules", "@agntcy", "slim-bindings"),
			"3": filepath.Join("venv", "bin", "python"),
		}
		place, ok := places[release]
		if !ok {
			return fmt.Errorf("-releases %q: want 2, 3 or 2,3", *releases)
		}
		if _, err := os.Stat(place); err != nil {
			return fmt.Errorf("%w: run \"make interop\", which installs it", err)
		}
	}
	binaries, err = process.Build()
	return err
}
