package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/nearest"
)

func typeOf(o store.Object) reflect.Type { return reflect.TypeOf(o).Elem() }

var (
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	quantity    = reflect.TypeFor[resource.Quantity]()
	// hugeExponent: comparing 1e9999999 takes seconds, and larger ones for ever.
	hugeExponent = regexp.MustCompile(`[eE][+-]?0*[0-9]{3,}$`)
)

// finding is what is wrong with a field of a document.
type finding struct {
	field string // its path; "" for the document
	text  string // begins with the path where it is not in it anyway
}

// check says where a decoded JSON value does not fit a Go type, and takes out of it
// what does not. Fields are matched with their case, as an API server does.
func check(v any, t reflect.Type, path string) []finding {
	if v == nil {
		return nil // null is "not set" everywhere
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	problem := func(format string, args ...any) []finding {
		return []finding{{path, prefix(path) + fmt.Sprintf(format, args...)}}
	}
	if t == quantity {
		text := fmt.Sprint(v)
		if len(text) > 64 || hugeExponent.MatchString(text) {
			return problem("Invalid value: %.64q: out of range", text)
		}
	}
	if reflect.PointerTo(t).Implements(unmarshaler) { // quantities, times, int-or-string
		j, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(j, reflect.New(t).Interface())
		}
		if err != nil {
			return problem("Invalid value: %s: %v", j, err)
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return problem("Invalid value: expected an object, got %s", describe(v))
		}
		known := fields(t)
		var out []finding
		for _, k := range slices.Sorted(maps.Keys(m)) {
			sub := k
			if path != "" {
				sub = path + "." + k
			}
			ft, ok := known[k]
			if !ok {
				delete(m, k)
				out = append(out, finding{sub, fmt.Sprintf("unknown field %q%s", sub, meant(k, known))})
				continue
			}
			found := check(m[k], ft, sub)
			if about(found, sub) {
				delete(m, k)
			}
			out = append(out, found...)
		}
		return out
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return problem("Invalid value: expected an object, got %s", describe(v))
		}
		var out []finding
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if t.Elem().Kind() == reflect.String && m[k] == nil {
				continue
			}
			sub := path + "." + k
			if strings.ContainsAny(k, "./[]") {
				sub = path + "[" + k + "]"
			}
			found := check(m[k], t.Elem(), sub)
			if about(found, sub) {
				delete(m, k)
			}
			out = append(out, found...)
		}
		return out
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 { // base64
			j, err := json.Marshal(v)
			if err == nil {
				err = json.Unmarshal(j, new([]byte))
			}
			if err != nil {
				return problem("Invalid value: expected base64 text: %v", err)
			}
			return nil
		}
		l, ok := v.([]any)
		if !ok {
			return problem("Invalid value: expected a list, got %s", describe(v))
		}
		var out []finding
		for i, e := range l {
			sub := fmt.Sprintf("%s[%d]", path, i)
			found := check(e, t.Elem(), sub)
			if about(found, sub) {
				l[i] = nil // the others keep their places
			}
			out = append(out, found...)
		}
		return out
	case reflect.String:
		if _, ok := v.(string); !ok {
			return problem("Invalid value: expected a string, got %s", describe(v))
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return problem("Invalid value: expected true or false, got %s", describe(v))
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			return problem("Invalid value: expected an integer, got %s", describe(v))
		}
		if _, err := strconv.ParseInt(n.String(), 10, t.Bits()); err != nil {
			return problem("Invalid value: %s: expected an integer of %d bits", n, t.Bits())
		}
	case reflect.Float32, reflect.Float64:
		if _, ok := v.(json.Number); !ok {
			return problem("Invalid value: expected a number, got %s", describe(v))
		}
	}
	return nil
}

// about says whether one of the findings is of the value at a path itself.
func about(found []finding, path string) bool {
	return slices.ContainsFunc(found, func(f finding) bool { return f.field == path })
}

// meant names the field that an unknown one may have meant; "" where none is near.
func meant(field string, known map[string]reflect.Type) string {
	if text := nearest.Name(field, slices.Collect(maps.Keys(known))); strings.Contains(text, "did you mean") {
		return text
	}
	return ""
}

// fields are the JSON names of a struct's fields, those of inlined structs too.
func fields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == "-" || !f.IsExported():
		case tag == "" && (f.Anonymous || strings.Contains(opts, "inline")):
			ft := f.Type
			for ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct {
				maps.Copy(out, fields(ft))
			}
		case tag != "":
			out[tag] = f.Type
		default:
			out[f.Name] = f.Type
		}
	}
	return out
}

// describe says what a JSON value is.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the string %q", v)
	case json.Number:
		return "the number " + v.String()
	case bool:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	}
	return "an object"
}
