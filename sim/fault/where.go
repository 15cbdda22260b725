package fault

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Where is a condition on a call, as text:
//
//	volume =~ "^pvc-" && attempt <= 2
//	node in ["node-1", "node-2"] || !(request.name contains "restored")
//
// Names are hop, op, component, node, volume, snapshot, request (the digest that
// the ledger shows), attempt (which call of its subject it is, from 1) and
// request.FIELD: a member of a request that is JSON, with lists by [number].
// Literals are texts in double quotes, numbers, true, false and lists. Operators
// are == != < <= > >= =~ (regular expression) contains in, ! && || and brackets.
// What a request does not have is equal to nothing but is != to everything.
//
// It is a grammar of our own, of some 200 lines: a condition language as large
// as CEL or expr would outweigh this package, and could not say where in a fault
// file a name is misspelled.
type Where struct {
	text    string
	root    whereNode
	attempt bool
}

// WhereError says what is wrong in a condition. Offset is in bytes of its text.
type WhereError struct {
	Offset int
	Text   string
}

func (e *WhereError) Error() string { return fmt.Sprintf("at character %d: %s", e.Offset+1, e.Text) }

// MustWhere is NewWhere for conditions in Go; it panics where they are wrong.
func MustWhere(text string) *Where {
	w, err := NewWhere(text)
	if err != nil {
		panic(fmt.Sprintf("fault: where %q: %v", text, err))
	}
	return w
}

// NewWhere reads a condition. Errors are *WhereError.
func NewWhere(text string) (*Where, error) {
	p := &whereParser{text: text, w: &Where{text: text}}
	if len(text) > maxWhere {
		return nil, &WhereError{maxWhere, fmt.Sprintf("has %d characters, allowed are %d", len(text), maxWhere)}
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	n, err := p.or()
	if err == nil && p.tok.kind != tokEnd {
		err = p.wrong("%s is too much; allowed are &&, || and the end", p.tok)
	}
	if err == nil && n.kind() != kindBool && n.kind() != kindAny {
		err = &WhereError{0, "is no condition: compare it with something"}
	}
	if err != nil {
		return nil, err
	}
	p.w.root = n
	return p.w, nil
}

const (
	maxWhere = 4096
	maxDepth = 64
)

func (w *Where) String() string {
	if w == nil {
		return ""
	}
	return w.text
}

func (w *Where) asksAttempt() bool { return w != nil && w.attempt }

// Holds says whether the condition is true of a call that is the attempt-th of
// its subject. A nil condition is true.
func (w *Where) Holds(c Call, attempt int) bool { return w.holds(c, attempt) }

func (w *Where) holds(c Call, attempt int) bool {
	if w == nil {
		return true
	}
	b, _ := w.root.eval(&whereCall{Call: c, attempt: attempt}).(bool)
	return b
}

// whereCall is what names stand for.
type whereCall struct {
	Call
	attempt int
	request any // decoded on first use
	decoded bool
}

// names of a call, with those that are numbers.
var whereNames = map[string]func(*whereCall) any{
	"hop":       func(c *whereCall) any { return string(c.Hop) },
	"op":        func(c *whereCall) any { return c.Op },
	"component": func(c *whereCall) any { return c.Component },
	"node":      func(c *whereCall) any { return c.Node },
	"volume":    func(c *whereCall) any { return c.Volume },
	"snapshot":  func(c *whereCall) any { return c.Snapshot },
	"request":   func(c *whereCall) any { return c.Request },
	"attempt":   func(c *whereCall) any { return float64(c.attempt) },
}

// WhereNames lists the names that a condition may use.
func WhereNames() []string {
	var out []string
	for n := range whereNames {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

type valueKind int

const (
	kindAny valueKind = iota // known when it is looked at
	kindText
	kindNumber
	kindBool
	kindList
)

func (k valueKind) String() string {
	return [...]string{"a member of the request", "a text", "a number", "true or false", "a list"}[k]
}

// whereNode is a part of a condition. eval gives a string, float64, bool, []any,
// or nil for what is not there.
type whereNode interface {
	eval(*whereCall) any
	kind() valueKind
}

type whereLiteral struct {
	value any
	is    valueKind
}

func (n whereLiteral) eval(*whereCall) any { return n.value }
func (n whereLiteral) kind() valueKind     { return n.is }

type whereName struct {
	get func(*whereCall) any
	is  valueKind
}

func (n whereName) eval(c *whereCall) any { return n.get(c) }
func (n whereName) kind() valueKind       { return n.is }

// whereField is request.a.b[0].
type whereField []any // string or int

func (n whereField) kind() valueKind { return kindAny }

func (n whereField) eval(c *whereCall) any {
	if !c.decoded {
		c.request, c.decoded = decodeRequest(c.Request), true
	}
	v := c.request
	for _, step := range n {
		switch s := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[s]
		case int:
			l, _ := v.([]any)
			if s >= len(l) {
				return nil
			}
			v = l[s]
		}
	}
	if _, ok := v.(map[string]any); ok {
		return nil // an object is no value
	}
	return v
}

type whereNot struct{ x whereNode }

func (n whereNot) kind() valueKind { return kindBool }
func (n whereNot) eval(c *whereCall) any {
	b, _ := n.x.eval(c).(bool)
	return !b
}

type whereBoth struct {
	x, y whereNode
	or   bool
}

func (n whereBoth) kind() valueKind { return kindBool }
func (n whereBoth) eval(c *whereCall) any {
	x, _ := n.x.eval(c).(bool)
	if x == n.or {
		return x
	}
	y, _ := n.y.eval(c).(bool)
	return y
}

type whereCompare struct {
	op   string
	x, y whereNode
	re   *regexp.Regexp
}

func (n whereCompare) kind() valueKind { return kindBool }
func (n whereCompare) eval(c *whereCall) any {
	x, y := n.x.eval(c), n.y.eval(c)
	switch n.op {
	case "==":
		return same(x, y)
	case "!=":
		return !same(x, y)
	case "=~":
		s, ok := asText(x)
		return ok && n.re.MatchString(s)
	case "contains":
		if l, ok := x.([]any); ok {
			return slices.ContainsFunc(l, func(v any) bool { return same(v, y) })
		}
		s, ok := asText(x)
		t, ok2 := asText(y)
		return ok && ok2 && strings.Contains(s, t)
	case "in":
		l, _ := y.([]any)
		return slices.ContainsFunc(l, func(v any) bool { return same(x, v) })
	}
	a, ok := asNumber(x)
	b, ok2 := asNumber(y)
	if !ok || !ok2 {
		return false
	}
	switch d := cmp.Compare(a, b); n.op {
	case "<":
		return d < 0
	case "<=":
		return d <= 0
	case ">":
		return d > 0
	}
	return cmp.Compare(a, b) >= 0
}

// same compares two values. JSON of protocol buffers has long numbers as texts,
// so a text and a number are the same when they are so as numbers.
func same(x, y any) bool {
	if x == nil || y == nil {
		return false
	}
	switch a := x.(type) {
	case bool:
		b, ok := y.(bool)
		return ok && a == b
	case string:
		if b, ok := y.(string); ok {
			return a == b
		}
	case []any:
		return false
	}
	a, ok := asNumber(x)
	b, ok2 := asNumber(y)
	return ok && ok2 && a == b
}

func asNumber(v any) (float64, bool) {
	switch x := v.(type) {
	case float64:
		return x, true
	case string:
		f, err := strconv.ParseFloat(x, 64)
		return f, err == nil
	}
	return 0, false
}

func asText(v any) (string, bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64), true
	}
	return "", false
}

// decodeRequest reads the JSON in a digest: what stands before it is passed
// over, and of one that was cut the part that is there counts.
func decodeRequest(digest string) any {
	i := strings.IndexAny(digest, "{[")
	if i < 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(digest[i:]))
	v, _ := decodePart(d, 0)
	return v
}

func decodePart(d *json.Decoder, depth int) (v any, whole bool) {
	t, err := d.Token()
	if err != nil || depth > maxDepth {
		return nil, false
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			key, err := d.Token()
			name, ok := key.(string)
			if err != nil || !ok {
				return m, false
			}
			v, whole := decodePart(d, depth+1)
			if v != nil {
				m[name] = v
			}
			if !whole {
				return m, false
			}
		}
		_, err := d.Token()
		return m, err == nil
	case json.Delim('['):
		l := []any{}
		for d.More() {
			v, whole := decodePart(d, depth+1)
			if v != nil || whole {
				l = append(l, v)
			}
			if !whole {
				return l, false
			}
		}
		_, err := d.Token()
		return l, err == nil
	}
	return t, true
}
