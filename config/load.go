package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileSize bounds a configuration file and what a reference stands for.
const maxFileSize = 16 * mebibyte

// Load reads a configuration file. The error wraps that of the file system, or
// is Errors.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read config file: %w", err)
	}
	return Parse(path, []byte(data))
}

// Parse reads a configuration from the content of a file. The name is that of
// the file, for messages. It reads the environment and the files that
// references name. The error is Errors.
func Parse(name string, data []byte) (*Config, error) {
	return parse(name, data, map[string]source{"env": readEnvironment, "file": readFile})
}

func readEnvironment(name string) (string, error) {
	content, ok := os.LookupEnv(name)
	if !ok {
		return "", errors.New("the environment variable is not set")
	}
	return content, nil
}

// readFile returns a file's content as it is, with the end of its last line.
func readFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxFileSize {
		return "", fmt.Errorf("%s is larger than %d MiB", path, maxFileSize/mebibyte)
	}
	return string(data), nil
}

func parse(name string, data []byte, sources map[string]source) (*Config, error) {
	d := &decoder{file: name, endpoints: make(map[string]Problem)}
	config := Default()
	root, err := d.readTree(data, sources)
	if err != nil {
		return nil, err
	}
	if !(value{d, root, ""}).isNull() {
		value{d, root, ""}.config(config)
	}
	if d.refused {
		d.problems = append(d.problems, d.oldLogging...)
	} else {
		d.warnings = append(d.warnings, d.oldLogging...)
	}
	if len(d.problems) > 0 {
		return nil, d.refusal()
	}
	config.Warnings = lines(inOrderOfLines(d.warnings))
	config.unserved = inOrderOfLines(d.unserved)
	return config, nil
}

// refusal is everything there is to say about a file that is refused: a warning may
// name its reason, and who mends the errors wants to see it at once.
func (d *decoder) refusal() Errors {
	all := d.problems
	for _, warning := range d.warnings {
		warning.Warning = true
		all = append(all, warning)
	}
	return inOrderOfLines(all)
}

func inOrderOfLines(problems []Problem) Errors {
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return problems
}

// readTree returns the file's tree with aliases and references replaced. An
// empty file is null.
func (d *decoder) readTree(data []byte, sources map[string]source) (*yaml.Node, error) {
	var document, second yaml.Node
	stream := yaml.NewDecoder(bytes.NewReader(data))
	switch err := stream.Decode(&document); {
	case errors.Is(err, io.EOF):
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}, nil
	case err != nil:
		return nil, Errors{d.syntaxProblem(err)}
	}
	switch err := stream.Decode(&second); {
	case err == nil:
		return nil, Errors{{File: d.file, Line: second.Line, Text: "a second document: accepted: one document in a file"}}
	case !errors.Is(err, io.EOF):
		return nil, Errors{d.syntaxProblem(err)}
	}
	r := newResolver(sources, func(line int, key, text string) {
		d.problems = append(d.problems, Problem{File: d.file, Line: line, Key: key, Text: text})
	})
	root := r.resolve(document.Content[0])
	d.spelled = r.spelled
	if len(d.problems) > 0 {
		return nil, inOrderOfLines(d.problems)
	}
	return root, nil
}

// syntaxProblem takes the line out of the YAML library's message, which offers
// it in no other form: "yaml: line 3: did not find expected key".
func (d *decoder) syntaxProblem(err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{File: d.file}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, message, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(number); err == nil {
				p.Line, text = line, message
			}
		}
	}
	p.Text = "not YAML: " + text
	return p
}
