package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit codes of every command. A command with more of them returns errors
// that have a method ExitCode() int.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
	// ExitUnknownOutcome: a change may or may not have been made, or is not complete.
	ExitUnknownOutcome = 3
	// ExitNotConverged: the fleet does not hold what it should, in time.
	ExitNotConverged = 4
)

// Execute runs the command that the arguments name and returns the program's
// exit code. An error is written as one line to the root's error stream; one that
// has several problems to tell (a method Lines) as a line each.
func Execute(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors = true
	root.SilenceUsage = true
	started := false
	prepare(root, &started)

	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitDone
	}
	if !started {
		// cobra's own complaints (unknown command or flag, wrong arguments) all
		// come before the command runs and have no type to tell them by.
		err = &usageError{err}
	}
	for _, line := range warningLines(err) {
		fmt.Fprintln(root.ErrOrStderr(), "Warning: "+oneLine(line))
	}
	for _, line := range errorLines(err) {
		fmt.Fprintln(root.ErrOrStderr(), "Error: "+oneLine(line))
	}
	return ExitCode(err)
}

func errorLines(err error) []string {
	var several interface{ Lines() []string }
	if errors.As(err, &several) {
		return several.Lines()
	}
	return []string{err.Error()}
}

// warningLines are what an error says beside why something failed.
func warningLines(err error) []string {
	var warned interface{ Warnings() []string }
	if errors.As(err, &warned) {
		return warned.Warnings()
	}
	return nil
}

// ExitCode returns the exit code that an error stands for: ExitDone for nil,
// what the error's own ExitCode method says, else ExitFailed.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return ExitFailed
}

// prepare makes every command of the tree say when it begins to run, and every
// command that only holds others fail when it is called itself: a script that
// lost a word must not go on as if it had been served. The root alone prints its
// help.
func prepare(command *cobra.Command, started *bool) {
	if command.HasParent() && command.HasSubCommands() && !command.Runnable() {
		command.RunE = childMissing
		command.Args = cobra.ArbitraryArgs
		command.DisableFlagsInUseLine = true
	}
	if run := command.RunE; run != nil {
		command.RunE = func(command *cobra.Command, args []string) error {
			if err := checkValues(command); err != nil {
				return err
			}
			*started = true
			return run(command, args)
		}
	}
	for _, child := range command.Commands() {
		prepare(child, started)
	}
}

// checkValues refuses flags that were given without a value, as by a script whose
// variable is empty: they must not count as not given.
func checkValues(command *cobra.Command) error {
	var empty []string
	command.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Value.Type() == "string" && flag.Value.String() == "" {
			empty = append(empty, "--"+flag.Name)
		}
	})
	if len(empty) == 0 {
		return nil
	}
	return usageErrorf("%s: the value is empty", strings.Join(empty, ", "))
}

func childMissing(command *cobra.Command, args []string) error {
	var names []string
	for _, child := range command.Commands() {
		names = append(names, child.Name())
	}
	accepted := strings.Join(names, ", ")
	if len(args) > 0 {
		return usageErrorf("unknown command %q for %q; accepted: %s", args[0], command.CommandPath(), accepted)
	}
	return usageErrorf("%q needs one of the commands: %s", command.CommandPath(), accepted)
}

// oneLine joins the lines of a text; servers and parsers may send several.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = printable(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, " ")
}

// usageError is a command that was called wrongly: nothing was attempted.
type usageError struct{ cause error }

func usageErrorf(text string, args ...any) error { return &usageError{fmt.Errorf(text, args...)} }

func (e *usageError) Error() string { return e.cause.Error() }
func (e *usageError) Unwrap() error { return e.cause }
func (e *usageError) ExitCode() int { return ExitUsage }
