// Package docs_test checks what the documentation says of the code.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	architectureMap = "architecture-map.md"
	failureMap      = "failures.md"
)

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z0-9][A-Za-z0-9]*`)
	// testFunction is the declaration of one.
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	// unfinished are words of a part that nobody has built.
	unfinished = regexp.MustCompile(`(?i)not yet|todo|missing|later`)
	// failureRow is a row about a public failure, with its id and its last column.
	failureRow = regexp.MustCompile(`^\| (B-\d+) \|.*\|([^|]*)\|$`)
)

// testFunctions returns the names of all test functions of the module, whatever
// build tags they need.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestArchitectureMapNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(architectureMap)
	if err != nil {
		t.Fatal(err)
	}
	exists := testFunctions(t)
	for at, line := range strings.Split(string(text), "\n") {
		names := testName.FindAllString(line, -1)
		for _, name := range names {
			if !exists[name] {
				t.Errorf("%s:%d: there is no test %s", architectureMap, at+1, name)
			}
		}
		if word := unfinished.FindString(line); word != "" {
			t.Errorf("%s:%d: %q: a part is there, or the line says which work owns it", architectureMap, at+1, word)
		}
		if row := strings.HasPrefix(line, "| ") && !strings.Contains(line, "| Shown by |"); row && len(names) == 0 {
			t.Errorf("%s:%d: no test shows this part", architectureMap, at+1)
		}
	}
}

func TestFailuresNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(failureMap)
	if err != nil {
		t.Fatal(err)
	}
	exists := testFunctions(t)
	seen := map[string]bool{}
	for at, line := range strings.Split(string(text), "\n") {
		row := failureRow.FindStringSubmatch(line)
		if row == nil {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| Id |") {
				t.Errorf("%s:%d: a row without an id", failureMap, at+1)
			}
			continue
		}
		if seen[row[1]] {
			t.Errorf("%s:%d: %s is there twice", failureMap, at+1, row[1])
		}
		seen[row[1]] = true
		names := testName.FindAllString(row[2], -1)
		if len(names) == 0 && !strings.Contains(line, "comes with the security work") {
			t.Errorf("%s:%d: no test shows this remedy", failureMap, at+1)
		}
		for _, name := range names {
			if !exists[name] {
				t.Errorf("%s:%d: there is no test %s", failureMap, at+1, name)
			}
		}
	}
	if len(seen) == 0 {
		t.Errorf("%s has no rows", failureMap)
	}
}
