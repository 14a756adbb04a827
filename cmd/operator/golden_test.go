package operator

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// dialects names the golden folders and the words before a noun.
var dialects = []struct {
	folder  string
	options Options
	prefix  []string
}{
	{"slim-cp", Options{Dialect: SlimCP}, nil},
	{"slimctl", Options{Dialect: Slimctl}, []string{"controller"}},
}

// TestGolden compares the output of every command with what was reviewed, byte
// for byte: scripts read it. Documents are the same in both dialects.
func TestGolden(t *testing.T) {
	cases := []struct {
		file string
		// slimctlOnly holds what slim-cp has no word for.
		slimctlOnly bool
		// slimCPOnly holds what slimctl does not have.
		slimCPOnly bool
		// no: the answer is no, which is an exit code of its own.
		no        bool
		arguments []string
	}{
		{file: "node-list", arguments: []string{"node", "list"}},
		{file: "connection-list", arguments: []string{"connection", "list", "-n", "alpha/gateway-1"}},
		{file: "route-list", arguments: []string{"route", "list"}},
		{file: "route-list-all", arguments: []string{"route", "list", "-a"}},
		{file: "route-list-node", arguments: []string{"route", "list", "-n", "beta/b"}},
		{file: "link-list", arguments: []string{"link", "list"}},
		{file: "link-list-all", arguments: []string{"link", "list", "--all"}},
		{file: "segment-list", arguments: []string{"segment", "list"}},
		{file: "group-list", arguments: []string{"group", "list"}},
		{file: "domain-list", slimctlOnly: true, arguments: []string{"domain", "list"}},
		{file: "link-add", arguments: []string{"link", "add", "a", "b"}},
		{file: "link-add-segment", arguments: []string{"link", "add", "newcomer", "new one", "-s", "x"}},
		{file: "link-remove", arguments: []string{"link", "remove", "a", "b"}},
		{file: "link-remove-segment", arguments: []string{"link", "remove", "a", "b", "-s", "x"}},
		{file: "segment-add", arguments: []string{"segment", "add", "x"}},
		{file: "segment-remove", arguments: []string{"segment", "remove", "x"}},
		{file: "group-add", arguments: []string{"group", "add", "x", "s3cret"}},
		{file: "group-remove", arguments: []string{"group", "remove", "delta"}},
		{file: "domain-add", slimctlOnly: true, arguments: []string{"domain", "add", "x", "s3cret"}},
		{file: "domain-remove", slimctlOnly: true, arguments: []string{"domain", "remove", "delta"}},
		{file: "explain-link", slimCPOnly: true, arguments: []string{"explain", "link", "a", "b"}},
		{file: "explain-route", slimCPOnly: true, no: true, arguments: []string{"explain", "route", "org/ns/app", "a"}},
		{file: "status", slimCPOnly: true, arguments: []string{"status"}},
		{file: "cluster-status", slimCPOnly: true, arguments: []string{"cluster", "status"}},
		{file: "cluster-init", slimCPOnly: true, arguments: []string{"cluster", "init"}},
		{file: "cluster-join", slimCPOnly: true, arguments: []string{"cluster", "join", "cp-1.example:50053"}},
		{file: "cluster-leave", slimCPOnly: true, arguments: []string{"cluster", "leave"}},
		{file: "cluster-remove", slimCPOnly: true, arguments: []string{"cluster", "remove", "cp-3"}},
		{file: "cluster-promote", slimCPOnly: true, arguments: []string{"cluster", "promote", "cp-3"}},
		{file: "cluster-demote", slimCPOnly: true, arguments: []string{"cluster", "demote", "cp-3"}},
		{file: "cluster-transfer-leader", slimCPOnly: true, arguments: []string{"cluster", "transfer-leader"}},
		{file: "cluster-finalize-upgrade", slimCPOnly: true, arguments: []string{"cluster", "finalize-upgrade"}},
	}
	for _, dialect := range dialects {
		for _, c := range cases {
			if c.slimctlOnly && dialect.options.Dialect != Slimctl || c.slimCPOnly && dialect.options.Dialect != SlimCP {
				continue
			}
			for _, variant := range []struct {
				suffix string
				empty  bool
				output string
			}{
				{".txt", false, "table"},
				{"-empty.txt", true, "table"},
				{".json", false, "json"},
				{".yaml", false, "yaml"},
				{"-empty.json", true, "json"},
			} {
				if variant.empty && !strings.Contains(c.file, "list") {
					continue
				}
				t.Run(dialect.folder+"/"+c.file+variant.suffix, func(t *testing.T) {
					isolate(t)
					arguments := append(append([]string{}, dialect.prefix...), c.arguments...)
					arguments = append(arguments, "--server", serve(t, &stub{empty: variant.empty}), "--output", variant.output)
					got := run(t, dialect.options, arguments...)
					if c.no {
						if got.code != ExitNotConverged || !strings.HasPrefix(got.stderr, "Error: ") {
							t.Fatalf("exit code %d, stderr %q; want %d and an error", got.code, got.stderr, ExitNotConverged)
						}
					} else if got.code != ExitDone || got.stderr != "" {
						t.Fatalf("exit code %d, stderr %q; want %d and nothing", got.code, got.stderr, ExitDone)
					}
					folder := dialect.folder
					if variant.output != "table" {
						folder = "documents"
					}
					compareGolden(t, filepath.Join("testdata", folder, c.file+variant.suffix), got.stdout)
				})
			}
		}
	}
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	path = filepath.Join(packageFolder, path)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output differs from %s\n--- got ---\n%s\n--- want ---\n%s", path, got, want)
	}
}

// packageFolder is where the tests start; each of them then moves to a folder of
// its own.
var packageFolder = func() string {
	folder, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return folder
}()

// TestTableShape holds the rules of the tables where the golden files only hold
// examples.
func TestTableShape(t *testing.T) {
	isolate(t)
	got := run(t, Options{Dialect: Slimctl}, "c", "route", "ls", "-a", "--server", serve(t, &stub{}))
	lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
	if lines[0] != "Routes: 6 (all statuses)" || lines[1] != "" {
		t.Fatalf("heading is %q, %q", lines[0], lines[1])
	}
	table := lines[2:]
	if want := len(table[0]); len(table[1]) != want+2 {
		t.Errorf("rule is %d bytes long, the header %d; want two more than the header", len(table[1]), want)
	}
	if strings.Trim(table[1], "-") != "  " {
		t.Errorf("rule %q: want two spaces and dashes", table[1])
	}
	for _, row := range append(table[:1:1], table[2:]...) {
		if !strings.HasPrefix(row, "  ") || len(row) != len(table[0]) {
			t.Errorf("row %q: want two leading spaces and %d bytes", row, len(table[0]))
		}
	}
}

func TestControlCharactersStayOffTheScreen(t *testing.T) {
	list := listing{heading: "of \u202eb", columns: []string{"NODE_ID"}, rows: [][]string{{"a\x1b[2Jb\nc"}}}
	var output bytes.Buffer
	list.writeTable(&output)
	if strings.ContainsAny(output.String(), "\x1b\u202e") || strings.Count(output.String(), "\n") != 5 {
		t.Errorf("table is %q", output.String())
	}
}

// Two names that look alike on the screen are told apart.
func TestHiddenCharactersAreShown(t *testing.T) {
	for text, want := range map[string]string{
		"node-1":              "node-1",
		"узел naïve 節点":       "узел naïve 節点",
		"a\u202eb":            `a\u202eb`, // from right to left
		"a\u2066b\u2069":      `a\u2066b\u2069`,
		"a\u061cb":            `a\u061cb`,
		"a\u200bb":            `a\u200bb`, // without a width
		"a\u200db":            `a\u200db`,
		"\ufeffa":             `\ufeffa`,
		"a\u00adb":            `a\u00adb`,
		"a\ufe0fb":            `a\ufe0fb`,
		"a\u034fb":            `a\u034fb`,
		"a\u3164b":            `a\u3164b`,
		"a\u00a0b":            `a\u00a0b`, // spaces like another one
		"a\u3000b":            `a\u3000b`,
		"a\u2028b":            `a\u2028b`, // ends of lines
		"a\x1bb\tc\u0085d\nx": `a\x1bb\tc\u0085d\nx`,
		"a\U000e0041b":        `a\U000e0041b`, // tags
		"a\xffb":              "a\ufffdb",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// No command lets one through, whoever it comes from.
func TestNoCommandShowsHiddenCharacters(t *testing.T) {
	isolate(t)
	const hidden = "x\u202ey"
	address := serve(t, &hostile{name: hidden})
	for _, line := range []string{
		"node list", "route list --all", "link list --all", "group list", "segment list",
		"connection list -n NAME", "route list -n NAME", "status", "explain link a b", "explain route a/b/c NAME", "cluster status",
		"link add a NAME", "link remove a NAME", "segment add NAME", "segment remove NAME", "group add NAME s3cret", "group remove NAME",
		"cluster promote NAME", "cluster demote NAME", "cluster remove NAME", "cluster transfer-leader NAME", "cluster join NAME",
		"link list --origin nobody" + hidden,
	} {
		arguments := strings.Fields(strings.ReplaceAll(line, "NAME", hidden))
		got := run(t, Options{}, append(arguments, "--server", address)...)
		if strings.Contains(got.stdout+got.stderr, "\u202e") {
			t.Errorf("%s prints %q", line, got.stdout+got.stderr)
		}
		if !strings.Contains(got.stdout+got.stderr, `\u202e`) && !strings.HasPrefix(line, "explain link") {
			t.Errorf("%s does not show the name: %q", line, got.stdout+got.stderr)
		}
	}
}

// TestInstanceText: only all ones in both halves, or no id, mean no instance.
func TestInstanceText(t *testing.T) {
	const ones = math.MaxUint64
	for _, c := range []struct {
		id   *dataplanepb.NameId
		want string
	}{
		{nil, "NULL_COMPONENT"},
		{&dataplanepb.NameId{Id_0: ones, Id_1: ones}, "NULL_COMPONENT"},
		{&dataplanepb.NameId{Id_0: ones, Id_1: 1}, "ffffffff-ffff-ffff-0000-000000000001"},
		{&dataplanepb.NameId{Id_0: 1, Id_1: ones}, "00000000-0000-0001-ffff-ffffffffffff"},
		{&dataplanepb.NameId{}, "00000000-0000-0000-0000-000000000000"},
	} {
		if got := nameText(name("a", "b", "c", c.id), absent); got != "a/b/c/"+c.want {
			t.Errorf("name with id %v is %s, want a/b/c/%s", c.id, got, c.want)
		}
	}
}
