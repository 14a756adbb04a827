package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// list decodes the elements of a list; null is an empty one.
func (v value) list(accepted string, each decode) {
	switch {
	case v.isNull():
	case v.node.Kind != yaml.SequenceNode:
		v.refuse(accepted, false)
	default:
		for i, node := range v.node.Content {
			each(value{v.decoder, node, itemPath(v.path, i)})
		}
	}
}

// ignore accepts anything.
func ignore(value) {}

// optional accepts null for a key that is not there.
func optional(inner decode) decode {
	return func(v value) {
		if !v.isNull() {
			inner(v)
		}
	}
}

// str decodes a string that is not empty.
func str(to *string, accepted string) decode {
	return func(v value) {
		if text, ok := v.text(); ok && text != "" {
			*to = text
			return
		}
		v.refuse(accepted, true)
	}
}

// anyStr decodes a string, also an empty one.
func anyStr(to *string) decode {
	return func(v value) {
		text, ok := v.text()
		if !ok {
			v.refuse("a string; put it into quotes", true)
			return
		}
		*to = text
	}
}

// secret decodes a string that no message shows.
func secret(to *Secret) decode {
	return func(v value) {
		text, ok := v.text()
		if !ok || text == "" {
			v.refuse("a string; put it into quotes", false)
			return
		}
		*to = Secret(text)
	}
}

// strs decodes a list of strings.
func strs(to *[]string) decode {
	return func(v value) {
		list := []string{}
		v.list("a list of strings", func(item value) {
			var text string
			anyStr(&text)(item)
			list = append(list, text)
		})
		*to = list
	}
}

// boolean decodes true or false.
func boolean(to *bool) decode {
	return func(v value) {
		switch {
		case v.node.Kind != yaml.ScalarNode:
		case strings.EqualFold(v.node.Value, "true"):
			*to = true
			return
		case strings.EqualFold(v.node.Value, "false"):
			*to = false
			return
		}
		v.refuse("true, false", true)
	}
}

// integer decodes a whole number within bounds. Quotes do not matter, so that
// a number may come from a reference.
func integer[T int | uint32 | uint64](to *T, low, high int64) decode {
	return func(v value) {
		n, err := strconv.ParseInt(v.node.Value, 10, 64)
		if v.node.Kind != yaml.ScalarNode || err != nil || n < low || n > high {
			v.refuse(fmt.Sprintf("a whole number from %d to %d", low, high), true)
			return
		}
		*to = T(n)
	}
}

// choice decodes one of some words.
func choice[T ~string | uint16](to *T, words map[string]T) decode {
	return func(v value) {
		text, _ := v.text()
		if chosen, ok := words[text]; ok {
			*to = chosen
			return
		}
		v.refuse(strings.Join(slices.Sorted(maps.Keys(words)), ", "), true)
	}
}

// duration decodes a duration in upstream's grammar or as seconds and
// nanoseconds. Negative ones do not exist in either.
func duration(to *time.Duration) decode {
	return func(v value) {
		if v.node.Kind == yaml.MappingNode {
			secondsAndNanos(v, to)
			return
		}
		text, ok := v.text()
		if d, valid := parseDuration(text); ok && valid {
			*to = d
			return
		}
		v.refuse(acceptedDuration, true)
	}
}

func secondsAndNanos(v value, to *time.Duration) {
	const maxSeconds = math.MaxInt64/int64(time.Second) - 1
	var seconds, nanos uint64
	found := v.object(fields{
		"secs":  integer(&seconds, 0, maxSeconds),
		"nanos": integer(&nanos, 0, int64(time.Second)-1),
	})
	found.require("secs", "whole seconds")
	*to = time.Duration(seconds)*time.Second + time.Duration(nanos)
}

// endpoint decodes an address to listen on and refuses one that is taken.
func endpoint(to *Endpoint) decode {
	return func(v value) {
		text, _ := v.text()
		parsed, ok := parseEndpoint(text)
		if !ok {
			v.refuse(acceptedEndpoint, true)
			return
		}
		*to = parsed
		v.claim(parsed)
	}
}

// claim notes an endpoint as used by the key at v.
func (v value) claim(e Endpoint) {
	identity, ok := e.identity()
	if !ok {
		return
	}
	first, taken := v.endpoints[identity]
	if !taken {
		v.endpoints[identity] = v.problem("")
		return
	}
	where := "the default"
	if first.Line > 0 {
		where = fmt.Sprintf("line %d", first.Line)
	}
	v.fail(fmt.Sprintf("value %q: the same endpoint as %s (%s): accepted: each endpoint once", e.String(), first.Key, where))
}
