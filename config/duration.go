package config

import (
	"math"
	"strings"
	"time"
	"unicode"
)

// durationUnits are upstream's; a year is 365.2422 days.
var durationUnits = map[string]uint64{
	"ns": 1,
	"us": uint64(time.Microsecond),
	"ms": uint64(time.Millisecond),
	"s":  uint64(time.Second),
	"m":  uint64(time.Minute),
	"h":  uint64(time.Hour),
	"d":  24 * uint64(time.Hour),
	"w":  7 * 24 * uint64(time.Hour),
	"y":  31_556_926 * uint64(time.Second),
}

const acceptedDuration = `a duration such as "200ms", "60s" or "1h30m" (units ns, us, ms, s, m, h, d, w, y), or {secs: 60, nanos: 0}`

// parseDuration reads one or more groups of digits and a unit. White space does
// not count. It is false for anything else, and for more than 292 years.
func parseDuration(text string) (time.Duration, bool) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	var total uint64
	for text != "" {
		digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
		letters := strings.IndexAny(text[digits:], "0123456789")
		if letters < 0 {
			letters = len(text) - digits
		}
		unit, known := durationUnits[text[digits:digits+letters]]
		count, ok := parseDigits(text[:digits])
		if !known || !ok || count > (math.MaxInt64-total)/unit {
			return 0, false
		}
		total += count * unit
		text = text[digits+letters:]
		if text == "" {
			return time.Duration(total), true
		}
	}
	return 0, false
}

// parseDigits reads a decimal number that fits a duration.
func parseDigits(digits string) (uint64, bool) {
	var n uint64
	for _, c := range digits {
		if n > math.MaxInt64/10 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, digits != ""
}
