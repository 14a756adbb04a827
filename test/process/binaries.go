package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// buildTimeout covers a build with a cold cache on a slow machine.
const buildTimeout = 10 * time.Minute

// Binaries is the folder that holds slim-cp, slimctl and slim-node.
type Binaries string

// Build makes the project's binaries current, in bin/ at the project's root.
func Build() (Binaries, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	folder := filepath.Join(root, "bin")
	build := exec.CommandContext(ctx, "go", "build", "-o", folder+string(filepath.Separator),
		"./cmd/slim-cp", "./cmd/slimctl", "./cmd/slim-node")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
	return Binaries(folder), nil
}

// Path returns where a binary is.
func (b Binaries) Path(name string) string { return filepath.Join(string(b), name) }

// Root returns the project's root: the nearest folder upwards with a go.mod.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for folder := start; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("no go.mod in %s or above", start)
		}
	}
}
