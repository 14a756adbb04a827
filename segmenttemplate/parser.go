package segmenttemplate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxTemplateBytes bounds a template.
	MaxTemplateBytes = 128 << 10
	// maxDepth bounds how deep tags and expressions nest.
	maxDepth = 100
)

// Template is a template that was read. It may be rendered any number of times, by
// several goroutines.
type Template struct{ body []statement }

// Parse reads a template and checks all of it. The error is one line.
func Parse(source string) (*Template, error) {
	switch {
	case strings.TrimSpace(source) == "":
		return nil, errors.New("'segments-template' must not be empty")
	case len(source) > MaxTemplateBytes:
		return nil, fmt.Errorf("'segments-template' has %d bytes, at most %d are accepted", len(source), MaxTemplateBytes)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.block()
	if err == nil && p.peek().kind != tokenEnd {
		err = p.fail("unexpected %s", p.tokens[p.at+1])
	}
	if err != nil {
		return nil, err
	}
	return &Template{body: body}, nil
}

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  []string // names of the variables of the loops around
	// inCondition: the condition of a {% for %} is read, in which loop is not known.
	inCondition bool
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return &SyntaxError{Line: p.peek().line, Text: fmt.Sprintf(format, args...)}
}

// is reports whether a word or an operator comes next, and takes it if it does.
func (p *parser) is(text string) bool {
	t := p.peek()
	if t.text != text || t.kind != tokenName && t.kind != tokenOperator {
		return false
	}
	p.at++
	return true
}

func (p *parser) want(text string) error {
	if !p.is(text) {
		return p.fail("unexpected %s, expected %s", p.peek(), text)
	}
	return nil
}

func (p *parser) wantKind(kind tokenKind, what string) (token, error) {
	if p.peek().kind != kind {
		return token{}, p.fail("unexpected %s, expected %s", p.peek(), what)
	}
	return p.next(), nil
}

// enter bounds recursion; leave ends what enter began.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail("nested more than %d deep", maxDepth)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// block reads statements up to the end of the template, or to a tag that ends or
// continues a block.
func (p *parser) block() ([]statement, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var body []statement
	for {
		var s statement
		var err error
		switch t := p.peek(); {
		case t.kind == tokenText:
			s = writeText(p.next().text)
		case t.text == "{{":
			s, err = p.value()
		case t.kind == tokenEnd || slices.Contains([]string{"else", "elif", "endif", "endfor"}, p.peekTag()):
			return body, nil
		default:
			s, err = p.tag()
		}
		if err != nil {
			return nil, err
		}
		body = append(body, s)
	}
}

func (p *parser) value() (statement, error) {
	p.next()
	value, err := p.expression()
	if err == nil && value.valueType == listType && p.peek().kind == tokenEndTag {
		err = p.fail("a list cannot be written: use the filter join or tojson")
	}
	if err == nil {
		_, err = p.wantKind(tokenEndTag, "end of variable block")
	}
	return writeValue(value), err
}

func (p *parser) tag() (statement, error) {
	p.next()
	switch {
	case p.is("if"):
		return p.ifTag()
	case p.is("for"):
		return p.forTag()
	}
	return nil, p.fail("unsupported tag %s: supported are for and if", p.peek())
}

func (p *parser) endTag() error {
	_, err := p.wantKind(tokenEndTag, "end of block")
	return err
}

// peekTag returns the name of the tag that comes next, "" if none does.
func (p *parser) peekTag() string {
	if t := p.peek(); t.kind == tokenTag && t.text == "{%" && p.tokens[p.at+1].kind == tokenName {
		return p.tokens[p.at+1].text
	}
	return ""
}

// isTag reports whether a tag comes next, and takes its beginning if it does.
func (p *parser) isTag(name string) bool {
	if p.peekTag() != name {
		return false
	}
	p.at += 2
	return true
}

// closing reads the tag that ends a block.
func (p *parser) closing(name string) error {
	if p.isTag(name) {
		return p.endTag()
	}
	if p.peek().kind == tokenEnd {
		return p.fail("unexpected end of input, expected end of block")
	}
	return p.fail("unexpected %s, expected %s", p.tokens[p.at+1], name)
}

// body reads the rest of a tag and what it begins.
func (p *parser) body() ([]statement, error) {
	if err := p.endTag(); err != nil {
		return nil, err
	}
	return p.block()
}

func (p *parser) ifTag() (statement, error) {
	var branches []branch
	var otherwise []statement
	for more := true; more; more = p.isTag("elif") {
		condition, err := p.expression()
		if err != nil {
			return nil, err
		}
		body, err := p.body()
		if err != nil {
			return nil, err
		}
		branches = append(branches, branch{condition: condition, body: body})
	}
	if p.isTag("else") {
		var err error
		if otherwise, err = p.body(); err != nil {
			return nil, err
		}
	}
	return ifStatement(branches, otherwise), p.closing("endif")
}

func (p *parser) forTag() (statement, error) {
	name, err := p.wantKind(tokenName, "a name")
	if err != nil {
		return nil, err
	}
	if name.text == "loop" {
		return nil, p.fail("loop cannot be the variable of a for")
	}
	if err := p.want("in"); err != nil {
		return nil, err
	}
	items, err := p.expression()
	if err != nil {
		return nil, err
	}
	if items.valueType != listType {
		return nil, p.fail("%s is not iterable, only a list is", items.valueType)
	}
	var condition expression
	p.loops = append(p.loops, name.text)
	if p.is("if") {
		p.inCondition = true
		condition, err = p.expression()
		p.inCondition = false
	}
	if err != nil {
		return nil, err
	}
	body, err := p.body()
	p.loops = p.loops[:len(p.loops)-1]
	if err != nil {
		return nil, err
	}
	var otherwise []statement
	if p.isTag("else") {
		if otherwise, err = p.body(); err != nil {
			return nil, err
		}
	}
	return forStatement(items, condition, body, otherwise), p.closing("endfor")
}
