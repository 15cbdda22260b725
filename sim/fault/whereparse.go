package fault

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/csilab/csilab/sim/nearest"
)

type tokenKind int

const (
	tokEnd tokenKind = iota
	tokName
	tokText
	tokNumber
	tokSign
)

type token struct {
	kind tokenKind
	text string // of a text without its quotes
	at   int
}

func (t token) String() string {
	switch t.kind {
	case tokEnd:
		return "the end"
	case tokText:
		return "the text " + strconv.Quote(t.text)
	}
	return strconv.Quote(t.text)
}

type whereParser struct {
	text  string
	pos   int
	tok   token
	w     *Where
	depth int
}

func (p *whereParser) wrong(format string, args ...any) error {
	return &WhereError{p.tok.at, fmt.Sprintf(format, args...)}
}

func letter(b byte) bool {
	return b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

// next reads a token.
func (p *whereParser) next() error {
	for p.pos < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.pos]) >= 0 {
		p.pos++
	}
	start := p.pos
	p.tok = token{tokEnd, "", start}
	if start == len(p.text) {
		return nil
	}
	until := func(ok func(byte) bool) string {
		for p.pos < len(p.text) && ok(p.text[p.pos]) {
			p.pos++
		}
		return p.text[start:p.pos]
	}
	switch b := p.text[start]; {
	case letter(b):
		p.tok = token{tokName, until(func(b byte) bool { return letter(b) || digit(b) }), start}
	case digit(b) || b == '-' && start+1 < len(p.text) && digit(p.text[start+1]):
		p.pos++
		t := until(func(b byte) bool { return digit(b) || b == '.' || letter(b) })
		if _, err := strconv.ParseFloat(t, 64); err != nil {
			return &WhereError{start, fmt.Sprintf("%q is no number", t)}
		}
		p.tok = token{tokNumber, t, start}
	case b == '"':
		for p.pos++; p.pos < len(p.text) && p.text[p.pos] != '"'; p.pos++ {
			if p.text[p.pos] == '\\' {
				p.pos++
			}
		}
		if p.pos >= len(p.text) {
			p.pos = len(p.text)
			return &WhereError{start, "a text without its closing quote"}
		}
		p.pos++
		s, err := strconv.Unquote(p.text[start:p.pos])
		if err != nil {
			return &WhereError{start, fmt.Sprintf("%s is no text: what follows a \\ must be one of Go's, and is written \\\\ for itself", p.text[start:p.pos])}
		}
		p.tok = token{tokText, s, start}
	default:
		for _, s := range []string{"&&", "||", "==", "!=", "<=", ">=", "=~", "<", ">", "!", "(", ")", "[", "]", ",", "."} {
			if strings.HasPrefix(p.text[start:], s) {
				p.pos += len(s)
				p.tok = token{tokSign, s, start}
				return nil
			}
		}
		r, _ := utf8.DecodeRuneInString(p.text[start:])
		hint := ""
		switch r {
		case '\'':
			hint = "; texts have double quotes"
		case '=':
			hint = "; equal is =="
		case '&', '|':
			hint = "; and is &&, or is ||"
		}
		return &WhereError{start, fmt.Sprintf("%q can't stand here%s", r, hint)}
	}
	return nil
}

func (p *whereParser) is(sign string) bool { return p.tok.kind == tokSign && p.tok.text == sign }

func (p *whereParser) expect(sign string) error {
	if !p.is(sign) {
		return p.wrong("%s, must be %q", p.tok, sign)
	}
	return p.next()
}

// condition wants x to be something that is true or false.
func condition(x whereNode, at int) error {
	if k := x.kind(); k != kindBool && k != kindAny {
		return &WhereError{at, k.String() + " is no condition: compare it with something"}
	}
	return nil
}

func (p *whereParser) or() (whereNode, error) { return p.chain("||", p.and) }

func (p *whereParser) and() (whereNode, error) { return p.chain("&&", p.not) }

func (p *whereParser) chain(sign string, part func() (whereNode, error)) (whereNode, error) {
	at := p.tok.at
	x, err := part()
	for err == nil && p.is(sign) {
		if err = condition(x, at); err != nil {
			break
		}
		if err = p.next(); err != nil {
			break
		}
		at = p.tok.at
		var y whereNode
		if y, err = part(); err == nil {
			if err = condition(y, at); err == nil {
				x = whereBoth{x, y, sign == "||"}
			}
		}
	}
	return x, err
}

func (p *whereParser) not() (whereNode, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, p.wrong("is nested more than %d deep", maxDepth)
	}
	defer func() { p.depth-- }()
	if !p.is("!") {
		return p.compare()
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	at := p.tok.at
	x, err := p.not()
	if err == nil {
		err = condition(x, at)
	}
	return whereNot{x}, err
}

func (p *whereParser) compare() (whereNode, error) {
	x, err := p.operand()
	if err != nil {
		return nil, err
	}
	op := p.tok
	switch {
	case op.kind == tokSign && strings.Contains(" == != < <= > >= =~ ", " "+op.text+" "):
	case op.kind == tokName && (op.text == "contains" || op.text == "in"):
	case op.kind == tokName:
		return nil, p.wrong("unknown operator %q%s", op.text, nearest.Name(op.text, []string{"contains", "in"}))
	default:
		return x, nil
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	at := p.tok.at
	y, err := p.operand()
	if err != nil {
		return nil, err
	}
	n := whereCompare{op: op.text, x: x, y: y}
	xk, yk := x.kind(), y.kind()
	bad := func(format string, args ...any) (whereNode, error) {
		return nil, &WhereError{at, fmt.Sprintf(format, args...)}
	}
	switch op.text {
	case "=~":
		l, ok := y.(whereLiteral)
		s, text := l.value.(string)
		if !ok || !text {
			return bad("behind =~ must be a regular expression in quotes")
		}
		if n.re, err = regexp.Compile(s); err != nil {
			return bad("%v", err)
		}
		if xk != kindText && xk != kindAny {
			return bad("=~ is for texts, not for %s", xk)
		}
	case "in":
		if yk != kindList && yk != kindAny {
			return bad("behind in must be a list, e.g. [\"node-1\", \"node-2\"], not %s", yk)
		}
	case "contains":
		if xk != kindText && xk != kindAny {
			return bad("contains is for texts and lists of the request, not for %s", xk)
		}
	case "==", "!=":
		if xk != yk && xk != kindAny && yk != kindAny {
			return bad("%s and %s are never equal", xk, yk)
		}
		if xk == kindList || yk == kindList {
			return bad("a list is compared with in")
		}
	default:
		for _, k := range []valueKind{xk, yk} {
			if k != kindNumber && k != kindAny {
				return bad("%s is for numbers, not for %s", op.text, k)
			}
		}
	}
	return n, nil
}

func (p *whereParser) operand() (whereNode, error) {
	t := p.tok
	if err := p.next(); err != nil {
		return nil, err
	}
	switch {
	case t.kind == tokText:
		return whereLiteral{t.text, kindText}, nil
	case t.kind == tokNumber:
		f, _ := strconv.ParseFloat(t.text, 64) // next has checked it
		return whereLiteral{f, kindNumber}, nil
	case t.kind == tokSign && t.text == "(":
		x, err := p.or()
		if err != nil {
			return nil, err
		}
		return x, p.expect(")")
	case t.kind == tokSign && t.text == "[":
		list := []any{}
		for !p.is("]") {
			if len(list) > 0 {
				if err := p.expect(","); err != nil {
					return nil, err
				}
			}
			at := p.tok
			x, err := p.operand()
			if err != nil {
				return nil, err
			}
			l, ok := x.(whereLiteral)
			if !ok || l.is == kindList {
				return nil, &WhereError{at.at, fmt.Sprintf("%s can't stand in a list; texts and numbers can", at)}
			}
			list = append(list, l.value)
		}
		return whereLiteral{list, kindList}, p.next()
	case t.kind == tokName:
		return p.name(t)
	}
	return nil, &WhereError{t.at, fmt.Sprintf("%s, must be a name, a text, a number or a list", t)}
}

func (p *whereParser) name(t token) (whereNode, error) {
	if t.text == "true" || t.text == "false" {
		return whereLiteral{t.text == "true", kindBool}, nil
	}
	get, ok := whereNames[t.text]
	if !ok {
		return nil, &WhereError{t.at, fmt.Sprintf("unknown name %q%s", t.text, nearest.Name(t.text, WhereNames()))}
	}
	if !p.is(".") && !p.is("[") {
		k := kindText
		if t.text == "attempt" {
			k, p.w.attempt = kindNumber, true
		}
		return whereName{get, k}, nil
	}
	if t.text != "request" {
		return nil, p.wrong("%s has no members; request has", t.text)
	}
	var f whereField
	for p.is(".") || p.is("[") {
		member := p.is(".")
		if err := p.next(); err != nil {
			return nil, err
		}
		switch {
		case member && (p.tok.kind == tokName || p.tok.kind == tokText):
			f = append(f, p.tok.text)
		case !member && p.tok.kind == tokNumber:
			i, err := strconv.Atoi(p.tok.text)
			if err != nil || i < 0 {
				return nil, p.wrong("%s is no place in a list; it counts from 0", p.tok)
			}
			f = append(f, i)
		default:
			return nil, p.wrong("%s, must be the name of a member, or its number in []", p.tok)
		}
		if err := p.next(); err != nil {
			return nil, err
		}
		if !member {
			if err := p.expect("]"); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}
