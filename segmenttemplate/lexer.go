package segmenttemplate

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	tokenText     tokenKind = iota // outside of tags
	tokenTag                       // {% or {{
	tokenEndTag                    // %} or }}
	tokenName                      // a name or a keyword
	tokenString                    // without its quotes
	tokenNumber                    // digits
	tokenOperator                  // punctuation
	tokenEnd                       // end of input
)

type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) String() string {
	if t.kind == tokenEnd {
		return "end of input"
	}
	return fmt.Sprintf("%.40q", t.text)
}

// SyntaxError is a mistake in a template.
type SyntaxError struct {
	Line int
	Text string
}

// Error is one line.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("syntax error: %s (in segments-template:%d)", e.Text, e.Line)
}

// lexer cuts a template into tokens.
type lexer struct {
	rest   string
	line   int
	tokens []token
	trim   bool // the last tag ended with "-": white space behind it goes
}

// lex returns the tokens of a template, tokenEnd last. A single line break at the end of
// a template is dropped, as in MiniJinja.
func lex(source string) ([]token, error) {
	l := &lexer{rest: strings.TrimSuffix(strings.TrimSuffix(source, "\n"), "\r"), line: 1}
	for l.rest != "" {
		l.text()
		if l.rest == "" {
			break
		}
		if err := l.tag(); err != nil {
			return nil, err
		}
	}
	l.add(tokenEnd, "")
	return l.tokens, nil
}

func (l *lexer) fail(format string, args ...any) error {
	return &SyntaxError{Line: l.line, Text: fmt.Sprintf(format, args...)}
}

func (l *lexer) take(n int) string {
	text := l.rest[:n]
	l.line += strings.Count(text, "\n")
	l.rest = l.rest[n:]
	return text
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: kind, text: text, line: l.line})
}

// text reads up to the next tag or comment.
func (l *lexer) text() {
	end := len(l.rest)
	for at := range len(l.rest) - 1 {
		if l.rest[at] == '{' && strings.IndexByte("{%#", l.rest[at+1]) >= 0 {
			end = at
			break
		}
	}
	text := l.rest[:end]
	if l.trim {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	if strings.HasPrefix(l.rest[min(end+2, len(l.rest)):], "-") {
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	}
	l.trim = false
	if text != "" {
		l.add(tokenText, text)
	}
	l.take(end)
}

// tag reads a tag or a comment.
func (l *lexer) tag() error {
	opening := l.take(2)
	closing := map[string]string{"{{": "}}", "{%": "%}", "{#": "#}"}[opening]
	if opening == "{#" {
		end := strings.Index(l.rest, closing)
		if end < 0 {
			return l.fail("unexpected end of comment")
		}
		l.trim = strings.HasSuffix(l.rest[:end], "-")
		l.take(end + len(closing))
		return nil
	}
	l.add(tokenTag, opening)
	if strings.HasPrefix(l.rest, "-") {
		l.take(1)
	}
	for {
		l.take(len(l.rest) - len(strings.TrimLeftFunc(l.rest, unicode.IsSpace)))
		l.trim = strings.HasPrefix(l.rest, "-"+closing)
		switch {
		case l.rest == "":
			return l.fail("unexpected end of input, expected %s", closing)
		case l.trim, strings.HasPrefix(l.rest, closing):
			l.add(tokenEndTag, closing)
			l.take(strings.Index(l.rest, closing) + len(closing))
			return nil
		}
		if err := l.expressionToken(); err != nil {
			return err
		}
	}
}

func isNameRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
func isDigit(r rune) bool    { return r >= '0' && r <= '9' }

func (l *lexer) expressionToken() error {
	first, size := utf8.DecodeRuneInString(l.rest)
	switch {
	case isDigit(first):
		l.run(tokenNumber, isDigit)
	case isNameRune(first):
		l.run(tokenName, isNameRune)
	case first == '"' || first == '\'':
		return l.stringToken(byte(first))
	case len(l.rest) >= 2 && strings.Contains(" == != <= >= ", " "+l.rest[:2]+" "):
		l.add(tokenOperator, l.take(2))
	case strings.ContainsRune("<>=|.,()[]~", first):
		l.add(tokenOperator, l.take(size))
	default:
		return l.fail("unexpected character %q", first)
	}
	return nil
}

// run reads a token of runes that belong to it.
func (l *lexer) run(kind tokenKind, belongs func(rune) bool) {
	n := strings.IndexFunc(l.rest, func(r rune) bool { return !belongs(r) })
	if n < 0 {
		n = len(l.rest)
	}
	l.add(kind, l.take(n))
}

func (l *lexer) stringToken(quote byte) error {
	escapes := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', '\\': '\\', '"': '"', '\'': '\''}
	var text strings.Builder
	for i := 1; i < len(l.rest); i++ {
		c := l.rest[i]
		switch {
		case c == quote:
			l.add(tokenString, text.String())
			l.take(i + 1)
			return nil
		case c == '\\' && i+1 < len(l.rest):
			i++
			escaped, ok := escapes[l.rest[i]]
			if !ok {
				return l.fail("unknown escape \\%c in a string", l.rest[i])
			}
			text.WriteByte(escaped)
		default:
			text.WriteByte(c)
		}
	}
	return l.fail("unexpected end of string")
}
