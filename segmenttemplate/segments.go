package segmenttemplate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// Timeout bounds a rendering.
	Timeout = time.Second
	// maxEntries bounds the entries of the YAML, which cost far more than their text.
	maxEntries = 100_000
	// maxErrorBytes bounds the text of an error.
	maxErrorBytes = 500
)

// Segments renders a template for groups, which must be in order, and reads the result.
// It takes a second at most, or until the context ends. The error is one line.
func Segments(ctx context.Context, source string, groups []string) ([]*slimcppb.Segment, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	template, err := Parse(source)
	var text string
	if err == nil {
		text, err = template.Render(ctx, groups)
	}
	if err != nil {
		return nil, oneLine("failed to render segments-template", err)
	}
	segments, err := parseSegments(ctx, text)
	if ctx.Err() != nil {
		return nil, oneLine("failed to render segments-template", ctx.Err())
	}
	if err != nil {
		return nil, oneLine("segments-template rendered invalid YAML", err)
	}
	return segments, nil
}

// oneLine puts what an error belongs to in front, in one line of bounded length.
func oneLine(prefix string, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "..."
	}
	return &renderError{text: prefix + ": " + text, cause: err}
}

// renderError has a text that is fit for people, and the cause for programs.
type renderError struct {
	text  string
	cause error
}

func (e *renderError) Error() string { return e.text }
func (e *renderError) Unwrap() error { return e.cause }

// contextReader reads until the context ends, so that a parser does, too.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// parseSegments reads what a template was rendered to: a list of segments, or nothing.
func parseSegments(ctx context.Context, text string) ([]*slimcppb.Segment, error) {
	if strings.Count(text, ",")+strings.Count(text, "\n")+strings.Count(text, "- ") > maxEntries {
		return nil, fmt.Errorf("more than %d entries", maxEntries)
	}
	stream := yaml.NewDecoder(contextReader{ctx, strings.NewReader(text)})
	var document, second yaml.Node
	switch err := stream.Decode(&document); {
	case errors.Is(err, io.EOF): // nothing but white space and comments
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := stream.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if root := document.Content[0]; root.ShortTag() != "!!null" {
		return list(root, "segments", parseSegment)
	}
	return nil, nil
}

func wrong(node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", node.Line, fmt.Sprintf(format, args...))
}

// list reads the items of a list. Null, which is what a loop leaves that wrote nothing,
// is an empty one.
func list[T any](node *yaml.Node, what string, item func(*yaml.Node) (T, error)) ([]T, error) {
	if node.ShortTag() == "!!null" {
		return nil, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, wrong(node, "expected a list of %s", what)
	}
	var items []T
	for _, child := range node.Content {
		read, err := item(child)
		if err != nil {
			return nil, err
		}
		items = append(items, read)
	}
	return items, nil
}

// name reads a string. What looks like a date is one, too.
func name(node *yaml.Node) (string, error) {
	if tag := node.ShortTag(); node.Kind != yaml.ScalarNode || tag != "!!str" && tag != "!!timestamp" {
		return "", wrong(node, "expected a string: names like this one need quotes, as the filter tojson writes them")
	}
	return node.Value, nil
}

// object reads the values of a map in which every key must be there once. name and group
// stand for domain where that is a key.
func object(node *yaml.Node, keys ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, wrong(node, "expected a map with %s", strings.Join(keys, " and "))
	}
	found := make(map[string]*yaml.Node, len(keys))
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i].Value
		if (key == "name" || key == "group") && slices.Contains(keys, "domain") {
			key = "domain"
		}
		switch {
		case !slices.Contains(keys, key):
			return nil, wrong(node.Content[i], "unknown field %.40q, expected %s", key, strings.Join(keys, " and "))
		case found[key] != nil:
			return nil, wrong(node.Content[i], "duplicate field '%s'", key)
		}
		found[key] = node.Content[i+1]
	}
	for _, key := range keys {
		if found[key] == nil {
			return nil, wrong(node, "missing field '%s'", key)
		}
	}
	return found, nil
}

func parseSegment(node *yaml.Node) (*slimcppb.Segment, error) {
	found, err := object(node, "name", "links")
	if err != nil {
		return nil, err
	}
	segment := &slimcppb.Segment{}
	if segment.Name, err = name(found["name"]); err != nil {
		return nil, err
	}
	segment.Links, err = list(found["links"], "links", parseAdjacency)
	return segment, err
}

func parseAdjacency(node *yaml.Node) (*slimcppb.Adjacency, error) {
	found, err := object(node, "domain", "neighbors")
	if err != nil {
		return nil, err
	}
	adjacency := &slimcppb.Adjacency{}
	if adjacency.Group, err = name(found["domain"]); err != nil {
		return nil, err
	}
	adjacency.Neighbors, err = list(found["neighbors"], "neighbors", name)
	return adjacency, err
}
