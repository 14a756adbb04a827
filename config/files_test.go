package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/config"
)

// The files in testdata say in comments what is to be said about them:
//
//	# error: LINE: KEY: TEXT
//	# warning: LINE: KEY: TEXT
//	# unserved: LINE: KEY: TEXT
//
// Nothing else may be said.
func TestFiles(t *testing.T) {
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///run/agent.sock")
	t.Setenv("PLANE_DIR", "/srv/plane")
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			said := expectations(file, string(data))
			c, err := config.Load(file)
			if (err == nil) != (c != nil) {
				t.Fatalf("Load = %v, %v", c, err)
			}
			if err != nil {
				same(t, "errors", strings.Split(err.Error(), "\n"), said["error"])
				var refused config.Errors
				if errors.As(err, &refused) {
					same(t, "warnings", refused.Warnings(), said["warning"])
				}
				return
			}
			same(t, "errors", nil, said["error"])
			same(t, "warnings", c.Warnings, said["warning"])
			var unserved []string
			for _, p := range c.Unserved() {
				unserved = append(unserved, p.String())
			}
			same(t, "unserved", unserved, said["unserved"])
		})
	}
}

func expectations(file, text string) map[string][]string {
	said := make(map[string][]string)
	for line := range strings.Lines(text) {
		kind, message, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(line, "# "), "\n"), ": ")
		if ok && strings.HasPrefix(line, "# ") {
			said[kind] = append(said[kind], fmt.Sprintf("%s:%s", file, message))
		}
	}
	return said
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n  %s\nwant:\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
