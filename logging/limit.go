package logging

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// repeatBurst lines of a kind are logged at once, then one for each repeatPeriod.
	repeatBurst  = 5
	repeatPeriod = time.Minute
	// maxKinds bounds the kinds that are told apart. Beyond it the lines of one place
	// are one kind, whomever they are about: peers may come under any name.
	maxKinds = 1024
)

// subjects are the keys whose values say whom or what a line is about. All others,
// such as an error, may differ each time, and make no line another one.
var subjects = map[string]bool{
	"address": true, "candidate": true, "endpoint": true, "file": true, "from": true, "group": true, "id": true, "kind": true,
	"link": true, "listener": true, "name": true, "node": true, "path": true, "peer": true, "problem": true, "removed": true,
	"replica": true, "route": true, "server-id": true, "target": true,
}

// Limit returns a logger whose lines of at least this level are limited by kind: by
// the place that logs, and what it logs about. The next line of a kind says in
// left_out how many were not logged.
func Limit(logger hclog.Logger, least hclog.Level) hclog.Logger {
	return LimitTo(logger, least, repeatBurst)
}

// LimitTo is Limit for another number of lines of a kind that are logged at once.
func LimitTo(logger hclog.Logger, least hclog.Level, burst int) hclog.Logger {
	return limited{Logger: logger, least: least, repeats: &repeats{burst: burst, kinds: map[string]*kind{}, swept: time.Now()}}
}

type limited struct {
	hclog.Logger
	least   hclog.Level
	repeats *repeats
}

func (l limited) Log(level hclog.Level, message string, args ...any) {
	if level < l.least {
		l.Logger.Log(level, message, args...)
		return
	}
	if level < l.GetLevel() {
		return // what is not logged anyway is not left out
	}
	place := l.Name() + ": " + message
	logged, leftOut, ended := l.repeats.note(level, place, about(l.ImpliedArgs())+about(args), time.Now())
	if leftOut > 0 {
		args = append(slices.Clip(args), "left_out", leftOut)
	}
	if logged {
		l.Logger.Log(level, message, args...)
	}
	for _, kind := range ended {
		l.Logger.Log(kind.level, "lines were left out", "line", hclog.Quote(kind.place), "left_out", kind.leftOut)
	}
}

func (l limited) Info(message string, args ...any)  { l.Log(hclog.Info, message, args...) }
func (l limited) Warn(message string, args ...any)  { l.Log(hclog.Warn, message, args...) }
func (l limited) Error(message string, args ...any) { l.Log(hclog.Error, message, args...) }

func (l limited) With(args ...any) hclog.Logger {
	l.Logger = l.Logger.With(args...)
	return l
}

func (l limited) Named(name string) hclog.Logger {
	l.Logger = l.Logger.Named(name)
	return l
}

func (l limited) ResetNamed(name string) hclog.Logger {
	l.Logger = l.Logger.ResetNamed(name)
	return l
}

// about renders the pairs that say what a line is about.
func about(args []any) string {
	var text strings.Builder
	for i := 0; i+1 < len(args); i += 2 {
		if key, ok := args[i].(string); ok && subjects[key] {
			fmt.Fprintf(&text, " %s=%.256v", key, args[i+1])
		}
	}
	return text.String()
}

// repeats counts the lines of each kind.
type repeats struct {
	burst int

	mu    sync.Mutex
	kinds map[string]*kind
	swept time.Time
}

type kind struct {
	level   hclog.Level
	place   string
	begun   time.Time // the period
	logged  int       // in it
	leftOut int       // and not told yet
}

// note counts a line. It reports whether the line is to be logged, how many of its
// kind were left out before it, and which kinds have ended.
func (r *repeats) note(level hclog.Level, place, about string, now time.Time) (logged bool, leftOut int, ended []kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := place + about
	k := r.kinds[name]
	if k == nil {
		if len(r.kinds) >= maxKinds {
			name = place
		}
		if k = r.kinds[name]; k == nil {
			k = &kind{level: level, place: place, begun: now}
			r.kinds[name] = k
		}
	}
	if now.Sub(k.begun) >= repeatPeriod {
		leftOut = k.leftOut
		*k = kind{level: level, place: place, begun: now}
		if leftOut > 0 {
			k.logged = r.burst - 1 // it goes on
		}
	}
	if k.logged < r.burst {
		k.logged++
		logged = true
	} else {
		k.leftOut++
	}
	return logged, leftOut, r.sweep(now)
}

// sweep forgets the kinds of which no line came for a while, once in each period.
func (r *repeats) sweep(now time.Time) (ended []kind) {
	if now.Sub(r.swept) < repeatPeriod {
		return nil
	}
	r.swept = now
	for name, k := range r.kinds {
		if now.Sub(k.begun) < 2*repeatPeriod {
			continue
		}
		if k.leftOut > 0 {
			ended = append(ended, *k)
		}
		delete(r.kinds, name)
	}
	slices.SortFunc(ended, func(a, b kind) int { return strings.Compare(a.place, b.place) })
	return ended
}
