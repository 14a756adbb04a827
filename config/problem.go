package config

import (
	"fmt"
	"strings"
)

// Problem is a place in a configuration file and what is to be said about it.
type Problem struct {
	File string
	Line int    // from 1; 0 if the file does not say it in any line
	Key  string // path of the key, for example southbound[1].tls.source; may be empty
	Text string
}

// String returns the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Text)
	return b.String()
}

// Errors are the reasons why a file is refused, in the order of its lines.
type Errors []Problem

// Error returns one line per problem.
func (e Errors) Error() string { return strings.Join(lines(e), "\n") }

// Lines returns the problems, a line each.
func (e Errors) Lines() []string { return lines(e) }

func lines(problems []Problem) []string {
	var list []string
	for _, p := range problems {
		list = append(list, p.String())
	}
	return list
}
