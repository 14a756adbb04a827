package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file, whatever is in it, yields a configuration that a replica can work
// with or errors of one line each, and no panic. References are answered here:
// fuzzing must not open any file that it happens to name.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	echo := func(argument string) (string, error) { return argument, nil }
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse("x.yaml", data, map[string]source{"env": echo, "file": echo})
		if err != nil {
			checkErrors(t, err)
			return
		}
		if len(c.Northbound) == 0 || len(c.Southbound) == 0 || c.Reconciler.Workers < 1 || c.Limits.MaxMessageSize <= 0 {
			t.Errorf("cannot work with %+v", c)
		}
		for _, warning := range c.Warnings {
			if strings.Contains(warning, "\n") {
				t.Errorf("warning on several lines: %q", warning)
			}
		}
	})
}

func checkErrors(t *testing.T, err error) {
	var problems Errors
	if !errors.As(err, &problems) || len(problems) == 0 {
		t.Fatalf("%T: %v", err, err)
	}
	for _, p := range problems {
		if strings.Contains(p.String(), "\n") || p.Text == "" {
			t.Errorf("not one line: %q", p.String())
		}
	}
}
