package labfile

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
)

// maxFile is how large a file may be, in bytes.
const maxFile = 1 << 20

// decoder collects what is wrong on the way through a document.
type decoder struct {
	file     string
	problems Problems
	at       map[string]*yaml.Node // by path
}

// Parse reads the content of a file. name is what errors call it. The error is
// Problems.
func Parse(name string, b []byte) (*Lab, error) {
	d := &decoder{file: name, at: map[string]*yaml.Node{}}
	lab := &Lab{}
	d.document(b, lab)
	if len(d.problems) == 0 {
		d.check(lab)
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return nil, d.problems
	}
	return lab, nil
}

func (d *decoder) add(line, column int, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{d.file, max(1, line), max(1, column), path, fmt.Sprintf(format, args...)})
}

// wrong notes a problem at the node of a path, or the nearest one above it.
func (d *decoder) wrong(path, format string, args ...any) {
	for p := path; ; {
		if n := d.at[p]; n != nil {
			d.add(n.Line, n.Column, path, format, args...)
			return
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			d.add(1, 1, path, format, args...)
			return
		}
		p = p[:i]
	}
}

var lineOf = regexp.MustCompile(`line (\d+)`)

func (d *decoder) document(b []byte, lab *Lab) {
	if len(b) > maxFile {
		d.add(1, 1, "", "the file has more than %d bytes", maxFile)
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.add(1, 1, "", "the file is empty; it must begin with apiVersion: %s and kind: %s", APIVersion, Kind)
			return
		}
		line := 1
		if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		d.add(line, 1, "", "no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		d.add(second.Line, second.Column, "", "a second document; allowed is one")
	case !errors.Is(err, io.EOF):
		d.add(1, 1, "", "no YAML behind the first document: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) != 1 {
		d.add(1, 1, "", "the file is empty; it must begin with apiVersion: %s and kind: %s", APIVersion, Kind)
		return
	}
	d.value(doc.Content[0], reflect.ValueOf(lab).Elem(), "", "")
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

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	d.at[path] = n
	is := func(what string) { d.add(n.Line, n.Column, path, "is %s, must be %s", kindOf(n), what) }
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.add(n.Line, n.Column, path, "anchors and aliases are not taken: write it out")
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
			d.add(n.Line, n.Column, path, "has %d items, allowed are %s", c, between(lo, hi, ""))
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
func (d *decoder) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			d.add(key.Line, key.Column, path, "a key is %s, must be a name", kindOf(key))
			continue
		}
		if first, ok := seen[key.Value]; ok {
			d.add(key.Line, key.Column, join(path, key.Value), "given before, in line %d", first)
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

func (d *decoder) object(n *yaml.Node, v reflect.Value, path string) {
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
		d.add(key.Line, key.Column, join(path, key.Value), "unknown field; allowed: %s", strings.Join(names(t), ", "))
	})
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("need") != "" && !given[f.Tag.Get("yaml")] {
			text := "missing"
			if e := f.Tag.Get("enum"); e != "" && !strings.Contains(e, "|") {
				text += "; it must be " + e
			}
			d.add(n.Line, n.Column, join(path, f.Tag.Get("yaml")), "%s", text)
		}
	}
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
	}
	return "a whole number"
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string, tag reflect.StructTag, is func(string)) {
	bad := func() { is(wanted(v, tag)) }
	lo, hi := limits(tag)
	bounds := func(x int64, unit string) bool {
		if lo != nil && x < *lo || hi != nil && x > *hi {
			d.add(n.Line, n.Column, path, "is %s, allowed are %s", n.Value, between(lo, hi, unit))
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
			d.add(n.Line, n.Column, path, "is %s, allowed are %s", n.Value, between(lo, hi, ""))
		} else {
			v.SetUint(x)
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
		if why := form(tag.Get("form"), n.Value); why != "" {
			d.add(n.Line, n.Column, path, "is %q, allowed is %s", n.Value, why)
			return
		}
		if lo != nil && int64(len(n.Value)) < *lo || hi != nil && int64(len(n.Value)) > *hi {
			d.add(n.Line, n.Column, path, "has %d characters, allowed are %s", len(n.Value), between(lo, hi, ""))
			return
		}
		v.SetString(n.Value)
	}
}

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	versionForm = regexp.MustCompile(`^[0-9]{1,5}(\.[0-9]{1,5}){2,3}$`)
	userForm    = regexp.MustCompile(`^[^@\\\s]+@[^@\\\s]+$`)
)

// forms are the forms of texts, as expression and in words.
var forms = map[string]struct {
	re    *regexp.Regexp
	words string
}{
	// Labels of Kubernetes take no more, and zones become labels.
	"name":    {nameForm, "1 to 63 letters, digits, - _ and ., with a letter or digit at both ends"},
	"version": {versionForm, "three or four numbers with dots, e.g. 8.0.3"},
	"user":    {userForm, "name@domain"},

	"object":   {objectForm, "letters, digits, _ and, after the first, - and ."},
	"position": {positionForm, "node:slot:port with nodes 0 to 7, slots 0 to 9, ports 1 to 4, e.g. 0:2:1"},
	"iqn":      {iqnForm, "an iSCSI name, e.g. iqn.1994-05.com.redhat:node-1"},
	"wwpn":     {wwpnForm, "16 hex digits"},
}

// form says what is allowed when a text is not of a form.
func form(kind, text string) string {
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
	if f, ok := forms[kind]; ok && !f.re.MatchString(text) {
		return f.words
	}
	return ""
}
