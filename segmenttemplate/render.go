package segmenttemplate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxOutputBytes bounds what a template is rendered to.
	MaxOutputBytes = 8 << 20
	// maxWork bounds a rendering in values that are read and bytes that are made.
	maxWork = 64 << 20
	// workBetweenChecks is how often a renderer checks whether it is to stop.
	workBetweenChecks = 1 << 14
)

var (
	errTooMuchOutput = fmt.Errorf("more than %d MiB of output", MaxOutputBytes>>20)
	errTooMuchWork   = errors.New("too many steps")
)

// valueType is the type of an expression.
type valueType int

const (
	textType    valueType = iota // string
	numberType                   // int
	booleanType                  // bool
	listType                     // []string
)

func (t valueType) String() string {
	return [...]string{"a string", "a number", "a boolean", "a list"}[t]
}

// expression is a part of a template that has a value. eval returns a value of the Go
// type that belongs to its type.
type expression struct {
	valueType
	eval func(r *renderer) (any, error)
}

// statement is a part of a template that writes.
type statement func(r *renderer) error

// renderer renders a template once.
type renderer struct {
	ctx    context.Context
	groups []string
	loops  []loop // under way, the innermost last
	item   string // that select or reject tests
	output strings.Builder
	work   int
}

// loop is a {% for %} under way.
type loop struct {
	items []string
	at    int
}

// Render renders the template for groups. It fails only where a bound is exceeded or
// the context ends.
func (t *Template) Render(ctx context.Context, groups []string) (string, error) {
	r := &renderer{ctx: ctx, groups: groups}
	if err := r.run(t.body); err != nil {
		return "", err
	}
	return r.output.String(), nil
}

// spend counts work.
func (r *renderer) spend(work int) error {
	before := r.work
	if r.work += work; r.work > maxWork {
		return errTooMuchWork
	}
	if before/workBetweenChecks != r.work/workBetweenChecks {
		return r.ctx.Err()
	}
	return nil
}

func (r *renderer) run(body []statement) error {
	for _, s := range body {
		if err := r.spend(1); err != nil {
			return err
		}
		if err := s(r); err != nil {
			return err
		}
	}
	return nil
}

func writeText(text string) statement {
	return func(r *renderer) error {
		if r.output.Len()+len(text) > MaxOutputBytes {
			return errTooMuchOutput
		}
		r.output.WriteString(text)
		return r.spend(len(text))
	}
}

func writeValue(value expression) statement {
	return func(r *renderer) error {
		v, err := value.eval(r)
		if err != nil {
			return err
		}
		return writeText(textOf(v))(r)
	}
}

// textOf returns a value that is not a list as it is written.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	}
	if v == true {
		return "True"
	}
	return "False"
}

func isTrue(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case int:
		return v != 0
	case []string:
		return len(v) > 0
	}
	return v == true
}

// branch is a part of an {% if %}.
type branch struct {
	condition expression
	body      []statement
}

func ifStatement(branches []branch, otherwise []statement) statement {
	return func(r *renderer) error {
		for _, b := range branches {
			v, err := b.condition.eval(r)
			if err != nil {
				return err
			}
			if isTrue(v) {
				return r.run(b.body)
			}
		}
		return r.run(otherwise)
	}
}

// forStatement writes its body for each of the items for which the condition holds.
func forStatement(items, condition expression, body, otherwise []statement) statement {
	return func(r *renderer) error {
		v, err := items.eval(r)
		if err != nil {
			return err
		}
		depth := len(r.loops)
		defer func() { r.loops = r.loops[:depth] }()
		r.loops = append(r.loops, loop{items: v.([]string)})
		if condition.eval != nil {
			if err := r.filterLoop(depth, condition); err != nil {
				return err
			}
		}
		if len(r.loops[depth].items) == 0 {
			r.loops = r.loops[:depth]
			return r.run(otherwise)
		}
		for i := range r.loops[depth].items {
			r.loops[depth].at = i
			if err := r.spend(1); err != nil { // the body may be empty
				return err
			}
			if err := r.run(body); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *renderer) filterLoop(depth int, condition expression) error {
	var kept []string
	for i, item := range r.loops[depth].items {
		r.loops[depth].at = i
		if err := r.spend(wordBytes); err != nil {
			return err
		}
		v, err := condition.eval(r)
		if err != nil {
			return err
		}
		if isTrue(v) {
			kept = append(kept, item)
		}
	}
	r.loops[depth] = loop{items: kept}
	return nil
}

// wordBytes is what an item of a list takes.
const wordBytes = 16

// toJSON encodes a value as MiniJinja's filter does, so that it is safe in YAML.
func toJSON(r *renderer, v any) (any, error) {
	size := 8
	switch v := v.(type) {
	case string:
		size += 6 * len(v)
	case []string:
		for _, item := range v {
			size += 6*len(item) + 3
		}
	}
	if err := r.spend(size); err != nil {
		return nil, err
	}
	if list, ok := v.([]string); ok && list == nil {
		v = []string{}
	}
	encoded, err := json.Marshal(v)
	return strings.ReplaceAll(string(encoded), "'", `\u0027`), err
}
