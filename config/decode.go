package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// decoder collects what there is to say about one file.
type decoder struct {
	file     string
	spelled  map[*yaml.Node]string // see resolver
	problems []Problem
	warnings []Problem
	unserved []Problem

	// Old keys for logging are a warning, but among the problems of a file that
	// is refused for its other old keys: so they are all named at once.
	oldLogging []Problem
	refused    bool // for an old key

	endpoints map[string]Problem // where each endpoint was seen first
}

// value is a node of the file and the path of keys that leads to it.
type value struct {
	*decoder
	node *yaml.Node
	path string
}

// decode reads a value into some place of the configuration.
type decode func(value)

// fields are the known keys of an object.
type fields map[string]decode

func keyPath(path, key string) string {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func itemPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func (v value) problem(text string) Problem {
	return Problem{File: v.file, Line: v.node.Line, Key: v.path, Text: text}
}

func (v value) fail(text string) { v.problems = append(v.problems, v.problem(text)) }
func (v value) warn(text string) { v.warnings = append(v.warnings, v.problem(text)) }

// refuse says what stands there and what may. Text that is not a single word or
// number may be a secret in the wrong place and is shown only if shown is set.
func (v value) refuse(accepted string, shown bool) {
	v.problems = append(v.problems, v.refusal(accepted, shown))
}

func (v value) refusal(accepted string, shown bool) Problem {
	what := "a list"
	switch {
	case v.node.Kind == yaml.MappingNode:
		what = "a map"
	case v.isNull():
		what = "no value"
	case v.node.Kind == yaml.ScalarNode && shown:
		what = "value " + v.show()
	case v.node.Kind == yaml.ScalarNode:
		what = "a single value"
	}
	return v.problem(what + ": accepted: " + accepted)
}

// show returns a scalar as it is written in the file.
func (v value) show() string {
	text, ok := v.spelled[v.node]
	if !ok {
		text = v.node.Value
	}
	const enough = 80
	if len(text) > enough {
		end := enough
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strconv.Quote(text)
}

func (v value) isNull() bool {
	return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null"
}

// text returns the scalar's text, false if it is not a string.
func (v value) text() (string, bool) {
	tag := v.node.ShortTag()
	return v.node.Value, v.node.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!timestamp")
}

// object is what was found in a map.
type object struct {
	value
	keys   map[string]value
	order  []string // the keys as the file has them
	faults []Problem
	valid  bool // it is a map
	old    bool // it has keys of the Go era: what is missing follows from that
}

// object decodes a map. Keys that are not in the table are warned about, or an
// error where something would be missing without a word: see unknownKeyIsFatal.
func (v value) object(known fields) object { return v.decodeObject(known, false) }

// strictObject decodes a map in which unknown keys are an error.
func (v value) strictObject(known fields) object { return v.decodeObject(known, true) }

func (v value) decodeObject(known fields, strict bool) object {
	o := v.readObject()
	v.problems = append(v.problems, o.faults...)
	for _, key := range o.order {
		child := o.keys[key]
		decodeKey, ok := known[key]
		switch {
		case ok:
			decodeKey(child)
		case child.reportOld():
		case strict || v.unknownKeyIsFatal(key, known):
			child.fail("unknown key: accepted: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ") + didYouMean(key, known))
		default:
			child.warn("unknown key, ignored" + didYouMean(key, known))
		}
	}
	return o
}

// readObject reads the keys of a map without decoding their values.
func (v value) readObject() object {
	o := object{value: v, keys: make(map[string]value), valid: v.node.Kind == yaml.MappingNode}
	if !o.valid {
		o.faults = append(o.faults, v.refusal("a map", false))
		return o
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key, node := v.node.Content[i], v.node.Content[i+1]
		child := value{v.decoder, atLine(node, key.Line), keyPath(v.path, key.Value)}
		child.keepSpelling(node)
		first, twice := o.keys[key.Value]
		switch {
		case key.ShortTag() == "!!merge":
			o.faults = append(o.faults, child.problem("merged keys are not read: write them out"))
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			child.path = v.path
			o.faults = append(o.faults, child.problem("a key that is no word: accepted: words as keys"))
		case twice:
			text := fmt.Sprintf("the key is there twice, first on line %d", first.node.Line)
			o.faults = append(o.faults, child.problem(text))
		default:
			o.keys[key.Value] = child
			o.order = append(o.order, key.Value)
			o.old = o.old || refusedOldKey(child.path)
		}
	}
	return o
}

// atLine returns the node with its key's line: that of a map or a list on the
// lines below, or of a value that an alias put there, would lead astray.
func atLine(node *yaml.Node, line int) *yaml.Node {
	result := *node
	result.Line = line
	return &result
}

func (v value) keepSpelling(original *yaml.Node) {
	if text, ok := v.spelled[original]; ok {
		v.spelled[v.node] = text
	}
}

func (o object) has(key string) bool {
	_, ok := o.keys[key]
	return ok
}

// given reports whether the key is there with a value that is not null.
func (o object) given(key string) bool { return o.has(key) && !o.keys[key].isNull() }

// failAt adds a problem at a key that need not be there.
func (o object) failAt(key, text string) {
	p := o.problem(text)
	p.Key = keyPath(o.path, key)
	if o.has(key) {
		p.Line = o.keys[key].node.Line
	}
	o.problems = append(o.problems, p)
}

// require adds a problem if a key is missing from a map that has no other fault.
func (o object) require(key, accepted string) {
	if o.valid && !o.old && !o.has(key) {
		o.failAt(key, "missing: accepted: "+accepted)
	}
}

// variant decodes a map whose other keys depend on the value of its key "type",
// which it returns, empty after a problem.
func (v value) variant(kinds map[string]fields) (string, object) {
	head := v.readObject()
	accepted := strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
	tag, tagged := head.keys["type"]
	switch {
	case !head.valid:
		v.refuse("a map with the key type: "+accepted, false)
		return "", head
	case !tagged:
		v.problems = append(v.problems, head.faults...)
		for _, key := range head.order {
			head.keys[key].reportOld()
		}
		head.require("type", accepted)
		return "", head
	}
	kind, _ := tag.text()
	known, ok := kinds[kind]
	if !ok {
		tag.refuse(accepted, true)
		return "", head
	}
	table := fields{"type": ignore}
	maps.Copy(table, known)
	return kind, v.object(table)
}
