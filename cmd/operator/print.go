package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// absent stands in a table for a value that is not there.
const absent = "-"

// format is the value of --output.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set accepts the known formats only, so that a wrong one fails before anything
// is asked.
func (f *format) Set(value string) error {
	switch format(value) {
	case formatTable, formatJSON, formatYAML:
		*f = format(value)
		return nil
	default:
		return errors.New("accepted are table, json and yaml")
	}
}

// listing is the answer to a list command, for people and for programs.
type listing struct {
	heading string
	columns []string
	rows    [][]string

	// key and entries make the document: one list under one key.
	key     string
	entries []proto.Message
}

// print writes the listing in the chosen format to standard output, in one
// write: a reader never sees half of an answer that failed.
func (t *tree) print(command *cobra.Command, list listing) error {
	var output bytes.Buffer
	switch t.format {
	case formatTable:
		list.writeTable(&output)
	default:
		document, err := list.json()
		if err == nil && t.format == formatYAML {
			document, err = yamlFromJSON(document)
		}
		if err != nil {
			return fmt.Errorf("encode %s as %s: %w", list.key, t.format, err)
		}
		output.Write(document)
	}
	if _, err := command.OutOrStdout().Write(output.Bytes()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// printMessage writes one answer: as text, or as the document that it is on the
// wire.
func (t *tree) printMessage(command *cobra.Command, text string, message proto.Message) error {
	output := []byte(printableLines(text))
	if t.format != formatTable {
		document, err := jsonOf(message)
		if err == nil && t.format == formatYAML {
			document, err = yamlFromJSON(document)
		}
		if err != nil {
			return fmt.Errorf("encode the answer as %s: %w", t.format, err)
		}
		output = document
	}
	if _, err := command.OutOrStdout().Write(output); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// jsonOf returns a message as an indented document.
func jsonOf(message proto.Message) ([]byte, error) {
	encoded, err := wireNames.Marshal(message)
	if err != nil {
		return nil, err
	}
	var document bytes.Buffer
	if err := json.Indent(&document, encoded, "", "  "); err != nil {
		return nil, err
	}
	document.WriteByte('\n')
	return document.Bytes(), nil
}

// writeTable writes heading, blank line, column names, rule and rows; without
// rows only the heading and the blank line. A width is the longest cell in
// bytes, while cells are padded by characters, the last one too: scripts that
// cut by position depend on upstream doing so.
func (l listing) writeTable(output *bytes.Buffer) {
	output.WriteString(printableLines(l.heading) + "\n\n")
	if len(l.rows) == 0 {
		return
	}
	widths := make([]int, len(l.columns))
	rule := 0
	for i, column := range l.columns {
		widths[i] = len(column)
		for _, row := range l.rows {
			row[i] = printable(row[i])
			widths[i] = max(widths[i], len(row[i]))
		}
		rule += widths[i] + 2
	}
	writeRow(output, l.columns, widths)
	output.WriteString("  " + strings.Repeat("-", rule) + "\n")
	for _, row := range l.rows {
		writeRow(output, row, widths)
	}
}

func writeRow(output *bytes.Buffer, cells []string, widths []int) {
	for i, cell := range cells {
		fmt.Fprintf(output, "  %-*s", widths[i], cell)
	}
	output.WriteByte('\n')
}

// printable escapes what cannot be seen, or changes how the rest is seen: control
// characters, directions of writing, characters without a width, spaces that look like
// another one. Names come from applications and nodes, and none must be able to rewrite
// an operator's screen or to look like another one.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, isHidden) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if isHidden(r) {
			shown.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			shown.WriteRune(r)
		}
	}
	return shown.String()
}

func isHidden(r rune) bool {
	return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// printableLines is printable for a text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	return strings.Join(lines, "\n")
}

// wireNames encodes messages with the names of the wire schema. protojson varies
// its white space between builds on purpose, so the layout is made afresh.
var wireNames = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}

// json returns the indented document.
func (l listing) json() ([]byte, error) {
	entries := make([]json.RawMessage, len(l.entries))
	for i, entry := range l.entries {
		encoded, err := wireNames.Marshal(entry)
		if err != nil {
			return nil, err
		}
		entries[i] = encoded
	}
	document, err := json.MarshalIndent(map[string][]json.RawMessage{l.key: entries}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(document, '\n'), nil
}

// yamlFromJSON returns the same document in YAML, keys sorted.
func yamlFromJSON(document []byte) ([]byte, error) {
	var value any
	if err := json.Unmarshal(document, &value); err != nil {
		return nil, err
	}
	var output bytes.Buffer
	encoder := yaml.NewEncoder(&output)
	encoder.SetIndent(2)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return output.Bytes(), nil
}

// collect reads a stream to its end; it blocks until then.
func collect[T any](stream grpc.ServerStreamingClient[T]) ([]*T, error) {
	var entries []*T
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
}

func messages[M proto.Message](entries []M) []proto.Message {
	converted := make([]proto.Message, len(entries))
	for i, entry := range entries {
		converted[i] = entry
	}
	return converted
}

func keep[T any](entries []T, wanted func(T) bool) []T {
	var kept []T
	for _, entry := range entries {
		if wanted(entry) {
			kept = append(kept, entry)
		}
	}
	return kept
}

// optional returns the value of an optional field; present but empty stays
// empty.
func optional(value *string) string {
	if value == nil {
		return absent
	}
	return *value
}

// orAbsent marks what is empty, where upstream's tables leave a gap.
func (t *tree) orAbsent(value string) string {
	if !t.vocabulary.ownTables {
		return value
	}
	return orAbsent(value)
}

func orAbsent(value string) string {
	if value == "" {
		return absent
	}
	return value
}
