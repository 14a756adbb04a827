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
	// Warning: the file is not refused for it.
	Warning bool
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

// Errors are the reasons why a file is refused, and the warnings about it, in the
// order of its lines. At least one is not a warning.
type Errors []Problem

// Error returns one line for each reason.
func (e Errors) Error() string { return strings.Join(e.Lines(), "\n") }

// Lines returns the reasons, a line each.
func (e Errors) Lines() []string { return e.lines(false) }

// Warnings returns the warnings, a line each.
func (e Errors) Warnings() []string { return e.lines(true) }

func (e Errors) lines(warnings bool) []string {
	var list []string
	for _, p := range e {
		if p.Warning == warnings {
			list = append(list, p.String())
		}
	}
	return list
}

func lines(problems []Problem) []string {
	var list []string
	for _, p := range problems {
		list = append(list, p.String())
	}
	return list
}
