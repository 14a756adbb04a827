// Command maporder fails if code in the named packages iterates over a Go map.
// The order of a map differs between replicas, so code that Apply runs must not
// depend on it. Sorting the keys first is accepted:
//
//	for _, key := range slices.Sorted(maps.Keys(m)) {
//
// and so is a loop whose line, or the one above, says why the order does not
// matter: "// any order: REASON".
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const accepted = "any order: "

func main() {
	found, err := check(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "maporder:", err)
		os.Exit(2)
	}
	for _, finding := range found {
		fmt.Println(finding)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// listed is what "go list" says about a package.
type listed struct {
	Dir        string
	ImportPath string
	Export     string // file with the compiled types
	GoFiles    []string
	DepOnly    bool
}

// check returns one line for each iteration over a map.
func check(patterns []string) ([]string, error) {
	packages, err := list(patterns)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	var found []string
	for _, p := range packages {
		if p.DepOnly {
			continue
		}
		lines, err := checkPackage(files, imports, p)
		if err != nil {
			return nil, err
		}
		found = append(found, lines...)
	}
	return found, nil
}

// list asks the go command for the packages and all that they import.
func list(patterns []string) ([]listed, error) {
	command := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly"}, patterns...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

func checkPackage(files *token.FileSet, imports types.Importer, p listed) ([]string, error) {
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, file)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, files, parsed, info); err != nil {
		return nil, err
	}
	var found []string
	for _, file := range parsed {
		reasons := reasonLines(files, file)
		for _, position := range iterations(file, info) {
			at := files.Position(position)
			if !reasons[at.Line] && !reasons[at.Line-1] {
				found = append(found, fmt.Sprintf("%s:%d: iterates over a map: sort the keys, or write \"// %sREASON\"", at.Filename, at.Line, accepted))
			}
		}
	}
	return found, nil
}

// reasonLines returns the lines whose comment says why the order is no matter.
func reasonLines(files *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if strings.Contains(comment.Text, accepted) {
				lines[files.Position(group.End()).Line] = true
			}
		}
	}
	return lines
}

// iterations returns where a map is ranged over, or its keys or values are
// taken without being sorted at once.
func iterations(file *ast.File, info *types.Info) []token.Pos {
	var found []token.Pos
	sorted := map[ast.Expr]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.RangeStmt:
			if _, isMap := info.TypeOf(node.X).Underlying().(*types.Map); isMap {
				found = append(found, node.Pos())
			}
		case *ast.CallExpr:
			switch name := function(node, info); name {
			case "slices.Sorted", "slices.SortedFunc":
				sorted[node.Args[0]] = true // visited after this, its parent
			case "maps.Keys", "maps.Values", "maps.All":
				if !sorted[node] {
					found = append(found, node.Pos())
				}
			}
		}
		return true
	})
	return found
}

// function returns the package and name of a called package-level function.
func function(call *ast.CallExpr, info *types.Info) string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if f, ok := info.Uses[selector.Sel].(*types.Func); ok && f.Pkg() != nil {
		return f.Pkg().Path() + "." + f.Name()
	}
	return ""
}
