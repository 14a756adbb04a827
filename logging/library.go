package logging

import "github.com/hashicorp/go-hclog"

// Library returns a logger for a library that cannot know what an operator must act
// on: its errors are warnings, and each message of levels has the level that is given
// there.
func Library(logger hclog.Logger, levels map[string]hclog.Level) hclog.Logger {
	return library{Logger: logger, levels: levels}
}

type library struct {
	hclog.Logger
	levels map[string]hclog.Level
}

func (l library) Log(level hclog.Level, message string, args ...any) {
	if mapped, ok := l.levels[message]; ok {
		level = mapped
	}
	l.Logger.Log(min(level, hclog.Warn), message, args...)
}

func (l library) Info(message string, args ...any)  { l.Log(hclog.Info, message, args...) }
func (l library) Warn(message string, args ...any)  { l.Log(hclog.Warn, message, args...) }
func (l library) Error(message string, args ...any) { l.Log(hclog.Error, message, args...) }

func (l library) With(args ...any) hclog.Logger {
	return library{Logger: l.Logger.With(args...), levels: l.levels}
}

func (l library) Named(name string) hclog.Logger {
	return library{Logger: l.Logger.Named(name), levels: l.levels}
}

func (l library) ResetNamed(name string) hclog.Logger {
	return library{Logger: l.Logger.ResetNamed(name), levels: l.levels}
}
