package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/logging"
)

// defaultFile is read if no file is named and it exists.
const defaultFile = "config.yaml"

// Exit codes of serve, beside those that all commands share.
const (
	exitRemoved       = 10
	exitStoreFailed   = 11
	exitUnknownSchema = 12
)

// exitError carries an exit code of serve.
type exitError struct {
	err  error
	code int
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }

func withExitCode(err error) error {
	switch {
	case errors.Is(err, cluster.ErrRemoved):
		return &exitError{err: err, code: exitRemoved}
	case errors.Is(err, cluster.ErrUnknownSchema):
		return &exitError{err: err, code: exitUnknownSchema}
	case errors.Is(err, cluster.ErrStoreFailed):
		return &exitError{err: err, code: exitStoreFailed}
	}
	return err
}

// serve runs a replica until the context ends. What is written to stderr must not
// wait for its reader.
func serve(ctx context.Context, file string, stdout, stderr io.Writer) error {
	read := func() (*config.Config, error) { return load(file) }
	settings, err := read()
	if err != nil {
		return err
	}
	defer keepHeapFloor()()
	// From here on SIGHUP does not end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	// Nor does a reader of its output that goes away.
	signal.Ignore(syscall.SIGPIPE)
	output := logging.NewWriter(stdout)
	defer flush(output)
	logger := newLogger(settings.Tracing, stderr)
	for _, warning := range settings.Warnings {
		logger.Warn(warning)
	}
	if err := checkOldDatabase(settings.Database); err != nil {
		return err
	}
	return withExitCode(run(ctx, settings, read, hangups, logger, output))
}

// load reads a configuration file, "" being the default one, and refuses one that
// asks for what this version does not serve.
func load(file string) (*config.Config, error) {
	settings, err := config.Load(cmp.Or(file, defaultFile))
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return config.Default(), nil
	}
	if err != nil {
		return nil, err
	}
	if problems := settings.Unserved(); len(problems) > 0 {
		return nil, config.Errors(problems)
	}
	return settings, nil
}

// checkOldDatabase refuses to start empty beside the database of an older
// control plane: its topology and secrets would seem lost.
func checkOldDatabase(database config.Database) error {
	if database.SQLitePath == "" {
		return nil
	}
	if _, err := os.Stat(database.SQLitePath); err != nil {
		return nil // there is none, or it cannot be read as one
	}
	if _, err := os.Stat(database.Path); err == nil {
		return nil
	}
	return fmt.Errorf("database.path: %s holds an older control plane's database, which this version cannot read, and %s does not exist: "+
		"move %s away to start empty", database.SQLitePath, database.Path, filepath.Base(database.SQLitePath))
}

func newLogger(tracing config.Tracing, stderr io.Writer) hclog.Logger {
	// What a loop repeats must not fill the disk, nor hide everything else.
	return logging.Limit(hclog.New(&hclog.LoggerOptions{
		Name:       "slim-cp",
		Level:      hclog.LevelFromString(tracing.LogLevel),
		Output:     stderr,
		TimeFormat: time.RFC3339Nano,
		TimeFn:     time.Now,
	}), hclog.Warn)
}
