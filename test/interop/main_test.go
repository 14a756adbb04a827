//go:build interop

package interop_test

import (
	"fmt"
	"os"
	"path/filepath"
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

func prepare() (err error) {
	bindings := filepath.Join("node_modules", "@agntcy", "slim-bindings")
	if _, err := os.Stat(bindings); err != nil {
		return fmt.Errorf("%w: run \"npm install\" in test/interop, or \"make interop\"", err)
	}
	binaries, err = process.Build()
	return err
}
