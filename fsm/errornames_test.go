package fsm

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// declaredErrors reads the names of the package's exported errors from its source.
func declaredErrors(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if values, ok := node.(*ast.ValueSpec); ok {
				for _, name := range values.Names {
					if strings.HasPrefix(name.Name, "Err") {
						declared = append(declared, name.Name)
					}
				}
			}
			return true
		})
	}
	return declared
}

var wordEnd = regexp.MustCompile("([a-z])([A-Z])")

// nameOf turns ErrNoSecret into no_secret.
func nameOf(identifier string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(strings.TrimPrefix(identifier, "Err"), "${1}_$2"))
}

// Every error of the package has a name, made from its identifier, so that none
// can be forgotten.
func TestEveryErrorHasAName(t *testing.T) {
	named := map[string]bool{}
	for _, known := range errorNames() {
		if named[known.name] {
			t.Errorf("%q names two errors", known.name)
		}
		named[known.name] = true
	}
	declared := declaredErrors(t)
	for _, identifier := range declared {
		name := nameOf(identifier)
		if !named[name] {
			t.Errorf("%s has no name: errorNames lacks %q", identifier, name)
		}
		delete(named, name)
	}
	for name := range named {
		t.Errorf("%q names no error of the package", name)
	}
	if len(declared) < 20 {
		t.Errorf("only %d errors were found in the source", len(declared))
	}
}

func TestAnErrorTravelsByItsName(t *testing.T) {
	for _, known := range errorNames() {
		wrapped := fmt.Errorf("%w: group %q", known.err, "a")
		got := NamedError(ErrorName(wrapped), wrapped.Error())
		if !errors.Is(got, known.err) || got.Error() != wrapped.Error() {
			t.Errorf("%v arrives as %v", wrapped, got)
		}
		for _, other := range errorNames() {
			if other.name != known.name && errors.Is(got, other.err) {
				t.Errorf("%v arrives as %v too", wrapped, other.err)
			}
		}
	}
	equal(t, "no error's name", ErrorName(nil), "")
	equal(t, "no name's error", NamedError("", ""), nil)
	equal(t, "a foreign error's name", ErrorName(errors.New("disk full")), "other")
	equal(t, "a foreign error", NamedError("other", "disk full").Error(), "disk full")
	newer := NamedError("made_by_a_newer_version", "no such thing")
	equal(t, "an unknown name's text", newer.Error(), "no such thing")
	equal(t, "an unknown name passed on", ErrorName(newer), "other")
}
