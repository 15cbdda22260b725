// Package yamlfile reads YAML files strictly into structs: a field that is
// unknown, given twice or of the wrong type is an error, and all errors are told
// at once, each with file, line, column and what is allowed there. JSON Schema and
// documentation are made from the same structs.
//
// The tags of their fields say what a file may hold:
//
//	yaml      name
//	doc       what it is, for the documentation
//	default   what it is when it is left out, for the documentation
//	need      must be given
//	enum      allowed values, joined by |
//	min, max  of a number, a size in bytes, the items of a list or the characters of a text
//	form      name of a form that the decoder knows, or address or ip
//	unit      duration or size (in bytes), of an int64
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/nearest"
)

// MaxFile is how large a file may be, in bytes.
const MaxFile = 1 << 20

// Form is what texts look like, as an expression and in words.
type Form struct {
	RE    *regexp.Regexp
	Words string
}

// Custom is a field that reads itself. Path is where it stands in the file.
type Custom interface {
	DecodeYAML(d *Decoder, n *yaml.Node, path string)
}

// Decoder collects what is wrong on the way through a document.
type Decoder struct {
	file     string
	forms    map[string]Form
	problems Problems
	at       map[string]*yaml.Node // by path
}

// NewDecoder returns a decoder; file is what errors call the file.
func NewDecoder(file string, forms map[string]Form) *Decoder {
	return &Decoder{file: file, forms: forms, at: map[string]*yaml.Node{}}
}

// Failed says whether something was wrong so far.
func (d *Decoder) Failed() bool { return len(d.problems) > 0 }

// FailedAt says whether something was wrong at a path or in it.
func (d *Decoder) FailedAt(path string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Path, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Err is what was wrong, by place: Problems, or nil.
func (d *Decoder) Err() error {
	if len(d.problems) == 0 {
		return nil
	}
	d.problems.Sort()
	return d.problems
}

// At is the node of a path, or nil.
func (d *Decoder) At(path string) *yaml.Node { return d.at[path] }

// Add notes a problem. Line and column are from 1.
func (d *Decoder) Add(line, column int, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{d.file, max(1, line), max(1, column), path, fmt.Sprintf(format, args...)})
}

// Wrong notes a problem at the node of a path, or the nearest one above it.
func (d *Decoder) Wrong(path, format string, args ...any) {
	for p := path; ; {
		if n := d.at[p]; n != nil {
			d.Add(n.Line, n.Column, path, format, args...)
			return
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			d.Add(1, 1, path, format, args...)
			return
		}
		p = p[:i]
	}
}

var lineOf = regexp.MustCompile(`line (\d+)`)

// Document reads a file's content into a struct.
func (d *Decoder) Document(b []byte, into any) {
	version, kind := headOf(into)
	if len(b) > MaxFile {
		d.Add(1, 1, "", "the file has more than %d bytes", MaxFile)
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.Add(1, 1, "", "the file is empty; it must begin with apiVersion: %s and kind: %s", version, kind)
			return
		}
		line := 1
		if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		d.Add(line, 1, "", "no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		d.Add(second.Line, second.Column, "", "a second document; allowed is one")
	case !errors.Is(err, io.EOF):
		d.Add(1, 1, "", "no YAML behind the first document: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) != 1 {
		d.Add(1, 1, "", "the file is empty; it must begin with apiVersion: %s and kind: %s", version, kind)
		return
	}
	d.Value(doc.Content[0], into, "")
}

// headOf is what apiVersion and kind of a file must be.
func headOf(into any) (version, kind string) {
	t := reflect.TypeOf(into).Elem()
	for i := range t.NumField() {
		switch f := t.Field(i); f.Tag.Get("yaml") {
		case "apiVersion":
			version = f.Tag.Get("enum")
		case "kind":
			kind = f.Tag.Get("enum")
		}
	}
	return version, kind
}

// Value reads a node into what into points to; path is where it stands.
func (d *Decoder) Value(n *yaml.Node, into any, path string) {
	d.value(n, reflect.ValueOf(into).Elem(), path, "")
}

// kinds of nodes in words.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return "the text " + strconv.Quote(n.Value)
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return n.Value
	}
	return n.ShortTag() + " " + strconv.Quote(n.Value)
}

func (d *Decoder) value(n *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	d.at[path] = n
	is := func(what string) { d.Add(n.Line, n.Column, path, "is %s, must be %s", kindOf(n), what) }
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.Add(n.Line, n.Column, path, "anchors and aliases are not taken: write it out")
		return
	}
	if c, ok := v.Addr().Interface().(Custom); ok {
		c.DecodeYAML(d, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path, tag)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			is("a mapping with " + strings.Join(names(v.Type()), ", "))
			return
		}
		d.object(n, v, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			is("a list")
			return
		}
		lo, hi := limits(tag)
		if v.Type().Elem().Kind() == reflect.String { // they are of the items then
			lo, hi = nil, nil
		}
		if c := int64(len(n.Content)); lo != nil && c < *lo || hi != nil && c > *hi {
			d.Add(n.Line, n.Column, path, "has %d items, allowed are %s", c, between(lo, hi, ""))
		}
		out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.value(item, out.Index(i), fmt.Sprintf("%s[%d]", path, i), tag)
		}
		v.Set(out)
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			is("a mapping")
			return
		}
		out := reflect.MakeMap(v.Type())
		d.pairs(n, path, func(key, value *yaml.Node) {
			x := reflect.New(v.Type().Elem()).Elem()
			d.value(value, x, join(path, key.Value), tag)
			out.SetMapIndex(reflect.ValueOf(key.Value), x)
		})
		v.Set(out)
	default:
		if n.Kind != yaml.ScalarNode {
			is(wanted(v, tag))
			return
		}
		d.scalar(n, v, path, tag, is)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// pairs goes through a mapping; a key that comes twice is taken once.
func (d *Decoder) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			d.Add(key.Line, key.Column, path, "a key is %s, must be a name", kindOf(key))
			continue
		}
		if first, ok := seen[key.Value]; ok {
			d.Add(key.Line, key.Column, join(path, key.Value), "given before, in line %d", first)
			continue
		}
		seen[key.Value] = key.Line
		each(key, value)
	}
}

func names(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		out = append(out, t.Field(i).Tag.Get("yaml"))
	}
	return out
}

func (d *Decoder) object(n *yaml.Node, v reflect.Value, path string) {
	t := v.Type()
	given := map[string]bool{}
	d.pairs(n, path, func(key, value *yaml.Node) {
		given[key.Value] = true
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("yaml") == key.Value {
				d.value(value, v.Field(i), join(path, key.Value), f.Tag)
				return
			}
		}
		d.Add(key.Line, key.Column, join(path, key.Value), "unknown field; allowed: %s%s", strings.Join(names(t), ", "), meant(key.Value, names(t)))
	})
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("need") != "" && !given[f.Tag.Get("yaml")] {
			text := "missing"
			if e := f.Tag.Get("enum"); e != "" && !strings.Contains(e, "|") {
				text += "; it must be " + e
			}
			d.Add(n.Line, n.Column, join(path, f.Tag.Get("yaml")), "%s", text)
		}
	}
}

// meant is which name may have been meant, where one is near.
func meant(name string, allowed []string) string {
	if s := nearest.Name(name, allowed); strings.Contains(s, "did you mean") {
		return s
	}
	return ""
}

// limits are min and max of a field.
func limits(tag reflect.StructTag) (lo, hi *int64) {
	get := func(key string) *int64 {
		if n, err := strconv.ParseInt(tag.Get(key), 10, 64); err == nil {
			return &n
		}
		return nil
	}
	return get("min"), get("max")
}

func between(lo, hi *int64, unit string) string {
	show := func(n int64) string {
		switch unit {
		case "duration":
			return time.Duration(n).String()
		case "size":
			return resource.NewQuantity(n, resource.BinarySI).String()
		}
		return strconv.FormatInt(n, 10)
	}
	switch {
	case lo == nil:
		return "up to " + show(*hi)
	case hi == nil:
		return show(*lo) + " and more"
	}
	return show(*lo) + " to " + show(*hi)
}

// wanted says what a scalar field takes.
func wanted(v reflect.Value, tag reflect.StructTag) string {
	switch tag.Get("unit") {
	case "duration":
		return "a duration, e.g. 1.5s or 30m"
	case "size":
		return "a size, e.g. 500Gi"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		if e := tag.Get("enum"); e != "" {
			return "one of " + strings.ReplaceAll(e, "|", ", ")
		}
		return "a text"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

func (d *Decoder) scalar(n *yaml.Node, v reflect.Value, path string, tag reflect.StructTag, is func(string)) {
	bad := func() { is(wanted(v, tag)) }
	lo, hi := limits(tag)
	bounds := func(x int64, unit string) bool {
		if lo != nil && x < *lo || hi != nil && x > *hi {
			d.Add(n.Line, n.Column, path, "is %s, allowed are %s", n.Value, between(lo, hi, unit))
			return false
		}
		return true
	}
	switch unit := tag.Get("unit"); unit {
	case "duration":
		x, err := time.ParseDuration(n.Value)
		if n.ShortTag() != "!!str" && n.Value != "0" || err != nil {
			bad()
		} else if bounds(int64(x), unit) {
			v.SetInt(int64(x))
		}
		return
	case "size":
		q, err := resource.ParseQuantity(n.Value)
		x, exact := q.AsInt64()
		if t := n.ShortTag(); t != "!!str" && t != "!!int" || err != nil || !exact {
			bad()
		} else if bounds(x, unit) {
			v.SetInt(x)
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		if n.ShortTag() != "!!bool" || n.Value != "true" && n.Value != "false" {
			bad()
			return
		}
		v.SetBool(n.Value == "true")
	case reflect.Int, reflect.Int64:
		var x int64
		if n.ShortTag() != "!!int" || n.Decode(&x) != nil || x != int64(int(x)) {
			bad()
		} else if bounds(x, "") {
			v.SetInt(x)
		}
	case reflect.Uint64:
		var x uint64
		if n.ShortTag() != "!!int" || n.Decode(&x) != nil {
			bad()
		} else if lo != nil && x < uint64(*lo) {
			d.Add(n.Line, n.Column, path, "is %s, allowed are %s", n.Value, between(lo, hi, ""))
		} else {
			v.SetUint(x)
		}
	case reflect.Float64:
		var x float64
		if t := n.ShortTag(); t != "!!int" && t != "!!float" || n.Decode(&x) != nil {
			bad()
		} else {
			v.SetFloat(x)
		}
	case reflect.String:
		if n.ShortTag() != "!!str" {
			if tag.Get("enum") == "" && n.ShortTag() != "!!null" {
				is("a text: put it in quotes")
			} else {
				bad()
			}
			return
		}
		if e := tag.Get("enum"); e != "" && !slices.Contains(strings.Split(e, "|"), n.Value) {
			bad()
			return
		}
		if why := d.form(tag.Get("form"), n.Value); why != "" {
			d.Add(n.Line, n.Column, path, "is %q, allowed is %s", n.Value, why)
			return
		}
		if lo != nil && int64(len(n.Value)) < *lo || hi != nil && int64(len(n.Value)) > *hi {
			d.Add(n.Line, n.Column, path, "has %d characters, allowed are %s", len(n.Value), between(lo, hi, ""))
			return
		}
		v.SetString(n.Value)
	}
}

// form says what is allowed when a text is not of a form.
func (d *Decoder) form(kind, text string) string {
	if kind == "address" {
		host, port, err := net.SplitHostPort(text)
		if p, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || p > 65535 {
			return "HOST:PORT, e.g. 127.0.0.1:8989; port 0 picks a free one"
		}
		return ""
	}
	if kind == "ip" && net.ParseIP(text) == nil {
		return "an IP address, e.g. 192.0.2.10"
	}
	if f, ok := d.forms[kind]; ok && !f.RE.MatchString(text) {
		return f.Words
	}
	return ""
}
