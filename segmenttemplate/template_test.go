package segmenttemplate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func render(source string, groups ...string) (string, error) {
	template, err := Parse(source)
	if err != nil {
		return "", err
	}
	return template.Render(context.Background(), groups)
}

// TestRender has outputs of MiniJinja 2.24.
func TestRender(t *testing.T) {
	for source, want := range map[string]string{
		"plain $group {x}\n": "plain $group {x}",
		"two\n\n":            "two\n",
		"{{ groups|tojson }} {{ []|tojson }} {{ true|tojson }}":                                              `["b","edge-1","edge-2"] [] true`,
		"{% for g in groups %}{{ loop.index }}{{ g }}{% if not loop.last %},{% endif %}{% endfor %}":         "1b,2edge-1,3edge-2",
		"{% for g in groups %}{{ loop.index0 }}{{ loop.first }}{{ loop.length }} {% endfor %}":               "0True3 1False3 2False3 ",
		"{% for g in groups if g is startingwith('edge-') %}{{ loop.index }}{{ g }} {% else %}-{% endfor %}": "1edge-1 2edge-2 ",
		"{% for g in groups if g is startingwith 'x' %}{{ g }}{% else %}none{% endfor %}":                    "none",
		"{% for g in groups %}{% for h in groups if h < g %}{{ h }}<{{ g }} {% endfor %}{% endfor %}":        "b<edge-1 b<edge-2 edge-1<edge-2 ",
		"{% for g in groups %}{{ groups|reject('eq', g)|join('+') }} {% endfor %}":                           "edge-1+edge-2 b+edge-2 b+edge-1 ",
		"{{ groups | select('startingwith', \"edge\") | list | tojson }}":                                    `["edge-1","edge-2"]`,
		"{{ groups|select('in', ['b', 'c'])|length }}{{ groups|reject('endingwith', '1')|join }}":            "1bedge-2",
		"a  {%- if 'b' in groups and not ('c' in groups or false) -%}  b  {%- endif %} c":                    "ab c",
		"{% if 'b' not in groups %}a{% elif groups|length >= 3 %}b{% else %}c{% endif %}":                    "b",
		"{% if groups %}a{% endif %}{% if '' %}b{% else %}c{% endif %}{% if 0 %}d{% endif %}":                "ac",
		"{# {{ none }} #}{{ ('x-' ~ 1 ~ \"\\\"\") | tojson }}":                                               `"x-1\""`,
		`{{ "a'b<>&" | tojson }}`: `"a\u0027b\u003c\u003e\u0026"`,
		"{{ 'a' != 'b' and 1 == 1 and groups|length != 2 }}{{ true == false }}":             "TrueFalse",
		"{{ 'a' is not eq('a') }}{{ 'a' is ne 'b' }}{{ 'ge' in 'edge' }}{{ 'ö' | length }}": "FalseTrueTrue1",
	} {
		if got, err := render(source, "b", "edge-1", "edge-2"); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
}

// TestMistakesAreErrors: wherever they stand, in a condition too, and before there is a
// group.
func TestMistakesAreErrors(t *testing.T) {
	for source, want := range map[string]string{
		"":                               "'segments-template' must not be empty",
		" \n":                            "'segments-template' must not be empty",
		"{% for g in groups %}":          "syntax error: unexpected end of input, expected end of block (in segments-template:1)",
		"\n{{ groups":                    "(in segments-template:2)",
		"{% endif %}":                    `unexpected "endif"`,
		"{% if 1 %}{% endfor %}":         `unexpected "endfor", expected endif`,
		"{% if 1 %}{% 'endif' %}":        `unsupported tag "endif"`,
		"{{ }}":                          `unexpected "}}"`,
		"{{ 1 2 }}":                      "expected end of variable block",
		"{{ 'x }}":                       "end of string",
		"{{ 'x\\q' }}":                   "unknown escape",
		"{{ a ! b }}":                    "unexpected character",
		"{# x":                           "unexpected end of comment",
		"{{ name }}":                     `undefined value: "name"`,
		"{% if name %}x{% endif %}":      "undefined value",
		"{% if 1 or name %}x{% endif %}": `undefined value: "name"`,
		"{% for g in groups if gg == 'x' %}{% endfor %}":               `undefined value: "gg"`,
		"{% for g in groups if loop.first %}{% endfor %}":              `undefined value: "loop"`,
		"{% for g in groups %}{% endfor %}{{ g }}":                     `undefined value: "g"`,
		"{{ name|default('x') }}":                                      "undefined value",
		"{{ groups|first|default('x') }}":                              `unsupported filter "first": supported are join, length, list, reject, select and tojson`,
		"{% for g in groups|select('startingwit', 'a') %}{% endfor %}": `unsupported test "startingwit": supported are endingwith, eq, in, ne and startingwith`,
		"{% for g in groups|select('startingwith') %}{% endfor %}":     `unexpected ")", expected ,`,
		"{% for g in groups if g is startingwith(1) %}{% endfor %}":    "test startingwith of a string with a number is not supported",
		"{% for g in groups if g == 1 %}{% endfor %}":                  "a string == a number is not supported",
		"{% for g in groups if groups and g %}{% endfor %}":            "is not a condition for and",
		"{% for g in 'abc' %}{% endfor %}":                             "a string is not iterable",
		"{% for g in groups recursive %}{% endfor %}":                  `unexpected "recursive"`,
		"{% for loop in groups %}{% endfor %}":                         "loop cannot be the variable",
		"{% include 'x' %}":                                            `unsupported tag "include": supported are for and if`,
		"{% import 'x' as y %}":                                        "unsupported tag",
		"{% macro m() %}{% endmacro %}":                                "unsupported tag",
		"{% set x = 1 %}":                                              "unsupported tag",
		"{{ range(3) }}":                                               "undefined value",
		"{{ lipsum() }}":                                               "undefined value",
		"{{ groups()|length }}":                                        `unexpected "("`,
		"{{ groups|random }}":                                          "unsupported filter",
		"{% for g in groups.x %}":                                      `unexpected "."`,
		"{% for g in groups[0] %}":                                     `unexpected "["`,
		"{% for g in groups %}{{ loop }}{% endfor %}":                  "expected .",
		"{% for g in groups %}{{ loop.depth }}{% endfor %}":            "unsupported value loop.depth",
		"{{ groups }}":                                                 "a list cannot be written",
		"{{ groups ~ 'x' }}":                                           "~ of a list",
		"{{ [1] }}":                                                    "a number is not accepted here, expected a string",
		"{{ 1 < 2 < 3 }}":                                              "expected end of variable block",
		"{{ 99999999999999999999 }}":                                   "too large",
		"{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}": "nested more than 100 deep",
		"{{ " + strings.Repeat("not ", 1000) + "1 }}":                               "nested more than 100 deep",
		"{{ 'x'" + strings.Repeat("|tojson", 1000) + " }}":                          "more than 100 filters",
		strings.Repeat("{% if 1 %}", 1000):                                          "nested more than 100 deep",
		strings.Repeat("x", MaxTemplateBytes+1):                                     "at most 131072 are accepted",
	} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: %v, want %q", source, err, want)
		}
	}
}

func manyGroups(n int) []string {
	groups := make([]string, n)
	for i := range groups {
		groups[i] = fmt.Sprintf("group-%05d", i)
	}
	return groups
}

// TestRenderingIsBounded: in steps, in output, and in what it makes on the way.
func TestRenderingIsBounded(t *testing.T) {
	const open, end = "{% for g in groups %}", "{% endfor %}"
	nested := strings.Repeat(open, 4) + "%s" + strings.Repeat(end, 4)
	joined := "groups"
	for range 5 {
		joined = "[groups|join(" + joined + "|join), groups|join]"
	}
	for source, want := range map[string]error{
		strings.Replace(nested, "%s", "", 1):                                                                                      errTooMuchWork, // empty bodies
		strings.Replace(nested, "%s", "{{ groups|join }}", 1):                                                                     errTooMuchOutput,
		strings.Replace(nested, "%s", "{% if groups|join == '' %}{% endif %}", 1):                                                 errTooMuchWork,
		strings.Repeat("{% for g in groups if true %}", 4) + strings.Repeat(end, 4):                                               errTooMuchWork,
		open + open + "{{ groups|select('ne', g)|length }}" + end + end:                                                           errTooMuchWork,
		"{{ " + joined + "|length }}":                                                                                             errTooMuchWork,
		open + "{% if '" + strings.Repeat("x", 100_000) + "' in g ~ g %}{% endif %}" + end + strings.Replace(nested, "%s", "", 1): errTooMuchWork,
	} {
		if _, err := render(source, manyGroups(3000)...); !errors.Is(err, want) {
			t.Errorf("%.80s: %v, want %v", source, err, want)
		}
	}
}

func TestRenderingCanBeAbandoned(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	const loops = 3
	source := strings.Repeat("{% for g in groups %}", loops) + strings.Repeat("{% endfor %}", loops)
	if _, err := Segments(ended, source, manyGroups(300)); !errors.Is(err, context.Canceled) {
		t.Errorf("while it is rendered: %v", err)
	}
	if _, err := Segments(ended, "[]", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("while its output is read: %v", err)
	}
}

// TestDocumentedTemplates are of the kinds that upstream's documentation shows.
func TestDocumentedTemplates(t *testing.T) {
	for source, want := range map[string]string{
		`
{% for group in groups %}
- name: {{ ("segment-" ~ group) | tojson }}
  links:
    - domain: platform
      neighbors: [{{ group | tojson }}]
{% endfor %}
`: `[name:"segment-a: [x]" links:{group:"platform" neighbors:"a: [x]"} name:"segment-team-b" links:{group:"platform" neighbors:"team-b"}]`,
		`
- name: team
  links:
{% for group in groups %}
{% if group is startingwith("team-") %}
    - name: {{ group }}
      neighbors: [hub]
{% endif %}
{% endfor %}
`: `[name:"team" links:{group:"team-b" neighbors:"hub"}]`,
		"{% for group in groups %}{% if group == 'x' %}- name: s\n{% endif %}{% endfor %}":                 "[]",
		"- name: team\n  links:\n{% for group in groups if group == 'x' %}\n    - domain: y\n{% endfor %}": `[name:"team"]`,
	} {
		segments, err := Segments(t.Context(), source, []string{"a: [x]", "team-b"})
		if got := strings.ReplaceAll(fmt.Sprint(segments), "  ", " "); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", source, got, err, want)
		}
	}
}

func TestParseSegments(t *testing.T) {
	for source, want := range map[string]string{
		"# nothing":              "[]",
		"[]":                     "[]",
		"- {name: s, links: []}": `[name:"s"]`,
		"- name: s\n  links:\n  - {domain: a, neighbors: [b, '*']}":    `[name:"s" links:{group:"a" neighbors:"b" neighbors:"*"}]`,
		"- name: s\n  links:\n  - {name: a, neighbors: [$domain]}":     `[name:"s" links:{group:"a" neighbors:"$domain"}]`,
		"- name: 2026-01-02\n  links:\n  - {domain: a, neighbors: []}": `[name:"2026-01-02" links:{group:"a"}]`,
		"x: 1":                            "line 1: expected a list of segments",
		"- {name: s}":                     "line 1: missing field 'links'",
		"- {name: s, links: [], more: 1}": `unknown field "more", expected name and links`,
		"- {name: 1, links: []}":          "expected a string",
		"- {name: s, links: [{domain: a, name: b, neighbors: []}]}": "duplicate field 'domain'",
		"- {name: s, links: [{domain: a, neighbors: b}]}":           "expected a list of neighbors",
		"- {name: s, links: [{domain: 7, neighbors: [b]}]}":         "expected a string",
		"- &a {name: s, links: []}\n- *a":                           "expected a map",
		"a: b: c":                                                   "yaml:",
		"[]\n---\n[]":                                               "more than one document",
		"[{% for g in [" + strings.Repeat("'',", 400) + "''] %}" + strings.Repeat("a,", 300) + "{% endfor %}]": "more than 100000 entries",
		strings.Repeat("[", 20_000): "exceeded max depth",
	} {
		segments, err := Segments(t.Context(), source, []string{"a"})
		got := strings.ReplaceAll(fmt.Sprint(segments), "  ", " ")
		if err == nil && got != want {
			t.Errorf("%.60s: %s, want %s", source, got, want)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "segments-template rendered invalid YAML: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %v, want %s", source, err, want)
		}
	}
}

// FuzzRender: whatever text is read, it ends in output or in an error of one line.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		"{% for g in groups if g is startingwith('edge-') %}{{ loop.index ~ g | tojson }}{% else %}{# x #}{% endfor %}",
		"{%- if groups|select('in', ['a', \"b\\n\"])|length >= 1 and not (true or 'a' in 'b') -%}[]{% elif 1 %}- a: b{% endif %}",
		"- name: s\n  links:\n  - {domain: {{ groups|join(',') }}, neighbors: {{ groups|tojson }}}",
		"{{ groups|reject('eq', groups|join)|list|tojson", "{%", "{{-", "{#-#}", "{% for", "{% if 1 %}{% else %}{% else %}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, source string) {
		_, err := Segments(t.Context(), source, []string{"", "a", "b: [", "edge-1"})
		if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 2*maxErrorBytes) {
			t.Errorf("%q: %q", source, err)
		}
	})
}
