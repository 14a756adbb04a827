package operator

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// parseDuration reads upstream's duration text: groups of digits and a unit (ns,
// us, ms, s, m, h, d, w, y), white space anywhere, nothing negative or
// fractional. A year is 31,556,926 s.
func parseDuration(text string) (time.Duration, error) {
	rest := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	malformed := fmt.Errorf("duration %q: accepted are texts like 15s, 200ms or 1m30s", text)
	if rest == "" {
		return 0, malformed
	}
	var total time.Duration
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		count, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil {
			return 0, malformed
		}
		rest = rest[digits:]
		letters := strings.IndexAny(rest, "0123456789")
		if letters < 0 {
			letters = len(rest)
		}
		unit := durationUnit(rest[:letters])
		if unit == 0 || count > int64((1<<63-1-total)/unit) {
			return 0, malformed
		}
		total += time.Duration(count) * unit
		rest = rest[letters:]
	}
	return total, nil
}

// durationUnit returns zero for an unknown unit.
func durationUnit(name string) time.Duration {
	switch name {
	case "ns":
		return time.Nanosecond
	case "us":
		return time.Microsecond
	case "ms":
		return time.Millisecond
	case "s":
		return time.Second
	case "m":
		return time.Minute
	case "h":
		return time.Hour
	case "d":
		return 24 * time.Hour
	case "w":
		return 7 * 24 * time.Hour
	case "y":
		return 31_556_926 * time.Second
	default:
		return 0
	}
}
