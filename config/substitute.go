package config

import (
	"fmt"
	"maps"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxAliased bounds how many nodes aliases (*name) may add to a file: a few
// lines of aliases of aliases would otherwise fill the memory.
const maxAliased = 100_000

// resolver copies a YAML tree with aliases replaced by what they stand for, and
// references in values by their content.
type resolver struct {
	sources map[string]source
	// spelled holds, for values in which a reference was replaced, what the
	// file says, for messages.
	spelled map[*yaml.Node]string
	fail    func(line int, key, text string)

	open    map[*yaml.Node]bool // anchors that are being copied
	aliased int                 // nodes copied for aliases so far
	full    bool                // aliased has reached its bound
}

// source returns what a reference of one kind stands for.
type source func(argument string) (string, error)

func (r *resolver) resolve(node *yaml.Node) *yaml.Node { return r.copy(node, "", false) }

func (r *resolver) copy(node *yaml.Node, path string, aliased bool) *yaml.Node {
	if aliased {
		r.aliased++
	}
	switch {
	case node.Kind == yaml.AliasNode:
		return r.follow(node, path)
	case node.Kind == yaml.ScalarNode:
		return r.scalar(node, path)
	case node.Anchor != "":
		r.open[node] = true
		defer delete(r.open, node)
	}
	result := *node
	result.Content = make([]*yaml.Node, len(node.Content))
	for i, child := range node.Content {
		switch {
		case node.Kind == yaml.SequenceNode:
			result.Content[i] = r.copy(child, itemPath(path, i), aliased)
		case i%2 == 0:
			result.Content[i] = child // a key is taken as it is
		default:
			result.Content[i] = r.copy(child, keyPath(path, node.Content[i-1].Value), aliased)
		}
	}
	return &result
}

func (r *resolver) follow(node *yaml.Node, path string) *yaml.Node {
	switch {
	case r.full:
		return empty(node)
	case r.aliased >= maxAliased:
		r.full = true
		r.fail(node.Line, path, fmt.Sprintf("aliases stand for more than %d values", maxAliased))
		return empty(node)
	case r.open[node.Alias]:
		r.fail(node.Line, path, fmt.Sprintf("alias *%s stands inside its own anchor", node.Value))
		return empty(node)
	}
	return r.copy(node.Alias, path, true)
}

func empty(node *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: node.Line, Column: node.Column}
}

func (r *resolver) scalar(node *yaml.Node, path string) *yaml.Node {
	if node.ShortTag() != "!!str" || !strings.Contains(node.Value, "${") {
		return node
	}
	result := *node
	result.Value = r.replace(node, path)
	r.spelled[&result] = node.Value
	return &result
}

// replace returns a value with its references replaced. What a reference stands
// for is not searched for references again.
func (r *resolver) replace(node *yaml.Node, path string) string {
	var b strings.Builder
	for rest := node.Value; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String()
		}
		if literal, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(literal + "${")
			rest = after
			continue
		}
		reference, tail, closed := strings.Cut(after, "}")
		if !closed {
			r.fail(node.Line, path, `a reference without its }: accepted: ${env:NAME}, ${file:PATH}, or $${ for a literal ${`)
			return ""
		}
		content, ok := r.lookup(node.Line, path, reference)
		if !ok {
			return ""
		}
		if !isGroupSecret(path) || before != "" || tail != "" || b.Len() > 0 {
			content = strings.TrimRight(content, "\r\n") // the end of a file has no place within a value
		}
		b.WriteString(before + content)
		rest = tail
	}
}

func (r *resolver) lookup(line int, path, reference string) (string, bool) {
	provider, argument, _ := strings.Cut(reference, ":")
	fetch, ok := r.sources[provider]
	if !ok || argument == "" {
		r.fail(line, path, fmt.Sprintf("reference %q: accepted: ${env:NAME}, ${file:PATH}, or $${ for a literal ${", "${"+reference+"}"))
		return "", false
	}
	content, err := fetch(argument)
	if err != nil {
		r.fail(line, path, fmt.Sprintf("reference %q: %v", "${"+reference+"}", err))
		return "", false
	}
	return content, true
}

// newResolver returns a resolver with the given sources of references.
func newResolver(sources map[string]source, fail func(line int, key, text string)) *resolver {
	return &resolver{
		sources: maps.Clone(sources),
		spelled: make(map[*yaml.Node]string),
		fail:    fail,
		open:    make(map[*yaml.Node]bool),
	}
}
