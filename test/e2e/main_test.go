//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/slim-cp/slim-cp/test/process"
)

// binaries is set once, before any test runs.
var binaries process.Binaries

func TestMain(m *testing.M) {
	var err error
	if binaries, err = process.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
