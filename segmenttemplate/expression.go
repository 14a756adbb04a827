package segmenttemplate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// expression reads an expression: words with "or" between them, down to single values.
func (p *parser) expression() (expression, error) {
	if err := p.enter(); err != nil {
		return expression{}, err
	}
	defer p.leave()
	return p.logical("or", func() (expression, error) { return p.logical("and", p.not) })
}

// logical reads conditions with "and" or "or" between them. Jinja's result would be one
// of the operands, which is the same only for booleans.
func (p *parser) logical(operator string, operand func() (expression, error)) (expression, error) {
	first, err := operand()
	if err != nil || !p.is(operator) {
		return first, err
	}
	operands := []expression{first}
	for more := true; more; more = p.is(operator) {
		next, err := operand()
		if err != nil {
			return next, err
		}
		operands = append(operands, next)
	}
	for _, o := range operands {
		if o.valueType != booleanType {
			return o, p.fail("%s is not a condition for %s: compare it with something", o.valueType, operator)
		}
	}
	return boolean(func(r *renderer) (bool, error) {
		for _, o := range operands {
			v, err := o.eval(r)
			if err != nil || v == (operator == "or") {
				return operator == "or", err
			}
		}
		return operator == "and", nil
	}), nil
}

// boolean is an expression of that type, one step of work.
func boolean(eval func(r *renderer) (bool, error)) expression {
	return expression{booleanType, func(r *renderer) (any, error) {
		if err := r.spend(1); err != nil {
			return nil, err
		}
		return eval(r)
	}}
}

func (p *parser) not() (expression, error) {
	if !p.is("not") {
		return p.comparison()
	}
	if err := p.enter(); err != nil {
		return expression{}, err
	}
	defer p.leave()
	operand, err := p.not()
	return negate(operand), err
}

func negate(operand expression) expression {
	return boolean(func(r *renderer) (bool, error) {
		v, err := operand.eval(r)
		return !isTrue(v), err
	})
}

// comparison reads a value, or two that are compared.
func (p *parser) comparison() (expression, error) {
	left, err := p.concat()
	if err != nil {
		return left, err
	}
	negated := p.peek().text == "not" && p.peek().kind == tokenName && p.tokens[p.at+1].text == "in"
	if negated {
		p.at++
	}
	for _, operator := range []string{"==", "!=", "<=", ">=", "<", ">", "in"} {
		if !p.is(operator) {
			continue
		}
		right, err := p.concat()
		if err != nil {
			return right, err
		}
		result, err := p.compared(operator, left, right)
		if negated {
			result = negate(result)
		}
		return result, err
	}
	return left, nil
}

// compared compares values of one type, or looks for a string.
func (p *parser) compared(operator string, left, right expression) (expression, error) {
	switch {
	case operator == "in" && left.valueType == textType && right.valueType == listType:
		return both(left, right, func(r *renderer, a string, b []string) (bool, error) {
			return slices.Contains(b, a), r.spend(len(b))
		}), nil
	case operator == "in" && left.valueType == textType && right.valueType == textType:
		return both(left, right, func(r *renderer, a, b string) (bool, error) {
			return strings.Contains(b, a), r.spend(len(b) / wordBytes)
		}), nil
	case operator == "in", left.valueType != right.valueType, left.valueType == listType:
	case left.valueType == textType:
		return both(left, right, func(r *renderer, a, b string) (bool, error) {
			return ordered(operator, cmp.Compare(a, b)), r.spend(min(len(a), len(b)) / wordBytes)
		}), nil
	case left.valueType == numberType:
		return both(left, right, func(_ *renderer, a, b int) (bool, error) { return ordered(operator, cmp.Compare(a, b)), nil }), nil
	case operator == "==":
		return both(left, right, func(_ *renderer, a, b bool) (bool, error) { return a == b, nil }), nil
	case operator == "!=":
		return both(left, right, func(_ *renderer, a, b bool) (bool, error) { return a != b, nil }), nil
	}
	return expression{}, p.fail("%s %s %s is not supported", left.valueType, operator, right.valueType)
}

func ordered(operator string, order int) bool {
	switch operator {
	case "==":
		return order == 0
	case "!=":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

// both is a boolean of two values, whose types the parser has checked.
func both[A, B any](left, right expression, of func(*renderer, A, B) (bool, error)) expression {
	return boolean(func(r *renderer) (bool, error) {
		a, err := left.eval(r)
		if err != nil {
			return false, err
		}
		b, err := right.eval(r)
		if err != nil {
			return false, err
		}
		return of(r, a.(A), b.(B))
	})
}

// concat reads values with "~" between them.
func (p *parser) concat() (expression, error) {
	first, err := p.filtered()
	if err != nil || !p.is("~") {
		return first, err
	}
	parts := []expression{first}
	for more := true; more; more = p.is("~") {
		part, err := p.filtered()
		if err != nil {
			return part, err
		}
		parts = append(parts, part)
	}
	for _, part := range parts {
		if part.valueType == listType {
			return part, p.fail("~ of a list is not supported")
		}
	}
	return expression{textType, func(r *renderer) (any, error) {
		var joined strings.Builder
		for _, part := range parts {
			v, err := part.eval(r)
			if err != nil {
				return nil, err
			}
			text := textOf(v)
			if err := r.spend(len(text)); err != nil {
				return nil, err
			}
			joined.WriteString(text)
		}
		return joined.String(), nil
	}}, nil
}

// filtered reads a value and the filters and tests behind it.
func (p *parser) filtered() (expression, error) {
	value, err := p.primary()
	for length := 0; err == nil; length++ {
		switch {
		case length > maxDepth:
			return value, p.fail("more than %d filters", maxDepth)
		case p.is("|"):
			value, err = p.filter(value)
		case p.is("is"):
			negated := p.is("not")
			if value, err = p.isTest(value); negated {
				value = negate(value)
			}
		default:
			return value, nil
		}
	}
	return value, err
}

func (p *parser) filter(of expression) (expression, error) {
	name, err := p.wantKind(tokenName, "a filter")
	if err != nil {
		return of, err
	}
	switch list := of.valueType == listType; {
	case name.text == "tojson":
		return derived(of, textType, toJSON), nil
	case name.text == "length" && list:
		return derived(of, numberType, func(_ *renderer, v any) (any, error) { return len(v.([]string)), nil }), nil
	case name.text == "length" && of.valueType == textType:
		return derived(of, numberType, func(r *renderer, v any) (any, error) {
			text := v.(string)
			return utf8.RuneCountInString(text), r.spend(len(text) / wordBytes)
		}), nil
	case name.text == "list" && list:
		return of, nil
	case name.text == "join" && list:
		return p.join(of)
	case (name.text == "select" || name.text == "reject") && list:
		return p.selected(of, name.text == "select")
	case slices.Contains([]string{"join", "length", "list", "reject", "select"}, name.text):
		return of, p.fail("filter %s of %s is not supported", name.text, of.valueType)
	}
	return of, p.fail("unsupported filter %.40q: supported are join, length, list, reject, select and tojson", name.text)
}

// derived makes one value of another.
func derived(of expression, to valueType, change func(*renderer, any) (any, error)) expression {
	return expression{to, func(r *renderer) (any, error) {
		v, err := of.eval(r)
		if err != nil {
			return nil, err
		}
		return change(r, v)
	}}
}

func (p *parser) join(of expression) (expression, error) {
	separator := constant(textType, "")
	if p.is("(") {
		var err error
		if separator, err = p.argument(textType); err != nil {
			return of, err
		}
		if err := p.want(")"); err != nil {
			return of, err
		}
	}
	return derived(of, textType, func(r *renderer, v any) (any, error) {
		items := v.([]string)
		between, err := separator.eval(r)
		if err != nil {
			return nil, err
		}
		size := len(items) * (len(between.(string)) + 1)
		for _, item := range items {
			size += len(item)
		}
		if err := r.spend(size); err != nil {
			return nil, err
		}
		return strings.Join(items, between.(string)), nil
	}), nil
}

// selected reads the test of a select or reject, and keeps the items that pass it or
// do not.
func (p *parser) selected(of expression, wanted bool) (expression, error) {
	if err := p.want("("); err != nil {
		return of, err
	}
	name, err := p.wantKind(tokenString, "the name of a test")
	if err != nil {
		return of, err
	}
	if err := p.want(","); err != nil {
		return of, err
	}
	argument, err := p.argument(textType, listType)
	if err != nil {
		return of, err
	}
	item := expression{textType, func(r *renderer) (any, error) { return r.item, r.spend(1) }}
	passes, err := p.test(name.text, item, argument)
	if err != nil {
		return of, err
	}
	return derived(of, listType, func(r *renderer, v any) (any, error) {
		defer func(outer string) { r.item = outer }(r.item)
		var kept []string
		for _, item := range v.([]string) {
			r.item = item
			passed, err := passes.eval(r)
			if err != nil {
				return nil, err
			}
			if passed != wanted {
				continue
			}
			if err := r.spend(wordBytes); err != nil {
				return nil, err
			}
			kept = append(kept, item)
		}
		return kept, nil
	}), p.want(")")
}

// isTest reads the test of an "is". Its argument may stand without parentheses.
func (p *parser) isTest(of expression) (expression, error) {
	name, err := p.wantKind(tokenName, "a test")
	if err != nil {
		return of, err
	}
	if !p.is("(") {
		argument, err := p.primary()
		if err != nil {
			return of, err
		}
		return p.test(name.text, of, argument)
	}
	argument, err := p.argument(textType, numberType, booleanType, listType)
	if err != nil {
		return of, err
	}
	result, err := p.test(name.text, of, argument)
	if err != nil {
		return of, err
	}
	return result, p.want(")")
}

func (p *parser) test(name string, of, argument expression) (expression, error) {
	texts := of.valueType == textType && argument.valueType == textType
	switch {
	case name == "startingwith" && texts:
		return both(of, argument, func(_ *renderer, a, b string) (bool, error) { return strings.HasPrefix(a, b), nil }), nil
	case name == "endingwith" && texts:
		return both(of, argument, func(_ *renderer, a, b string) (bool, error) { return strings.HasSuffix(a, b), nil }), nil
	case name == "eq":
		return p.compared("==", of, argument)
	case name == "ne":
		return p.compared("!=", of, argument)
	case name == "in":
		return p.compared("in", of, argument)
	case name == "startingwith" || name == "endingwith":
		return of, p.fail("test %s of %s with %s is not supported", name, of.valueType, argument.valueType)
	}
	return of, p.fail("unsupported test %.40q: supported are endingwith, eq, in, ne and startingwith", name)
}

// argument reads an expression of one of the types.
func (p *parser) argument(accepted ...valueType) (expression, error) {
	value, err := p.expression()
	if err == nil && !slices.Contains(accepted, value.valueType) {
		err = p.fail("%s is not accepted here, expected %s", value.valueType, accepted[0])
	}
	return value, err
}

func constant(of valueType, v any) expression {
	return expression{of, func(r *renderer) (any, error) { return v, r.spend(1) }}
}

func (p *parser) primary() (expression, error) {
	t := p.peek()
	switch {
	case t.kind == tokenString:
		p.next()
		return constant(textType, t.text), nil
	case t.kind == tokenNumber:
		n, err := strconv.Atoi(t.text)
		if err != nil {
			return expression{}, p.fail("number %.20s is too large", t.text)
		}
		p.next()
		return constant(numberType, n), nil
	case t.kind == tokenName:
		return p.variable()
	case p.is("("):
		inner, err := p.expression()
		if err != nil {
			return inner, err
		}
		return inner, p.want(")")
	case p.is("["):
		return p.list()
	}
	return expression{}, p.fail("unexpected %s", t)
}

// list reads a list of strings.
func (p *parser) list() (expression, error) {
	var items []expression
	for !p.is("]") {
		if len(items) > 0 {
			if err := p.want(","); err != nil {
				return expression{}, err
			}
		}
		item, err := p.argument(textType)
		if err != nil {
			return item, err
		}
		items = append(items, item)
	}
	return expression{listType, func(r *renderer) (any, error) {
		if err := r.spend(wordBytes * len(items)); err != nil {
			return nil, err
		}
		list := make([]string, len(items))
		for i, item := range items {
			v, err := item.eval(r)
			if err != nil {
				return nil, err
			}
			list[i] = v.(string)
		}
		return list, nil
	}}, nil
}

// variable reads the name of a value.
func (p *parser) variable() (expression, error) {
	name := p.next().text
	for i := len(p.loops) - 1; i >= 0; i-- {
		if p.loops[i] == name {
			return expression{textType, func(r *renderer) (any, error) {
				return r.loops[i].items[r.loops[i].at], r.spend(1)
			}}, nil
		}
	}
	switch name {
	case "groups":
		return expression{listType, func(r *renderer) (any, error) { return r.groups, r.spend(1) }}, nil
	case "true", "True":
		return constant(booleanType, true), nil
	case "false", "False":
		return constant(booleanType, false), nil
	case "loop":
		if len(p.loops) > 0 && !p.inCondition {
			return p.loopVariable()
		}
	}
	p.at--
	return expression{}, p.fail("undefined value: %.40q: known are groups and the variables of loops", name)
}

func (p *parser) loopVariable() (expression, error) {
	if err := p.want("."); err != nil {
		return expression{}, err
	}
	name, err := p.wantKind(tokenName, "a name")
	if err != nil {
		return expression{}, err
	}
	at := len(p.loops) - 1
	number := func(of func(l loop) int) (expression, error) {
		return expression{numberType, func(r *renderer) (any, error) { return of(r.loops[at]), r.spend(1) }}, nil
	}
	switch name.text {
	case "index":
		return number(func(l loop) int { return l.at + 1 })
	case "index0":
		return number(func(l loop) int { return l.at })
	case "length":
		return number(func(l loop) int { return len(l.items) })
	case "first":
		return boolean(func(r *renderer) (bool, error) { return r.loops[at].at == 0, nil }), nil
	case "last":
		return boolean(func(r *renderer) (bool, error) { return r.loops[at].at == len(r.loops[at].items)-1, nil }), nil
	}
	return expression{}, p.fail("unsupported value loop.%.40s: supported are first, index, index0, last and length", name.text)
}
