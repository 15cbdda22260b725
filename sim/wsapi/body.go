package wsapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/array"
)

// decode reads a request's body into a struct. Members are spelled exactly; one
// that the struct has not is refused (INV_INPUT), as is one that is given twice
// (unverified: the code), and one of another type (INV_INPUT_WRONG_TYPE), a null
// too. Pointers tell what was not given.
func decode(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return failed(eof)
	}
	if !json.Valid(raw) {
		return failed(syntax)
	}
	return fill(raw, reflect.ValueOf(into).Elem(), "")
}

// takeAction takes the member action, a number, out of a body: what else there
// may be depends on it. Without one it is nil.
func takeAction(raw []byte) (action *int64, rest []byte, err error) {
	all, err := membersOf(raw)
	if err != nil || all["action"] == nil { // who decodes raw says what is wrong
		return nil, raw, nil
	}
	action = new(int64)
	if err := fill(all["action"], reflect.ValueOf(action).Elem(), "action"); err != nil {
		return nil, nil, err
	}
	delete(all, "action")
	rest, err = json.Marshal(all)
	return action, rest, err
}

// membersOf reads an object. Errors: INV_INPUT_WRONG_TYPE (it is none),
// INV_INPUT (a member is given twice).
func membersOf(raw []byte) (map[string]json.RawMessage, error) {
	none := refuse(array.WrongType, "", "invalid input: wrong type, an object is required")
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, none
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, none
		}
		if _, twice := all[name]; twice {
			return nil, refuse(array.InvalidInput, clip(name), "invalid input: "+clip(name)+" is given twice")
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, none
		}
		all[name] = v
	}
	return all, nil
}

// member of a struct by the name that the API has for it.
func member(t reflect.Type, name string) (int, bool) {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("json") == name {
			return i, true
		}
	}
	return 0, false
}

func fill(raw json.RawMessage, v reflect.Value, name string) error {
	raw = bytes.TrimSpace(raw)
	wrong := func(want string) error {
		return refuse(array.WrongType, name, "invalid input: wrong type, "+want+" is required")
	}
	switch v.Kind() {
	case reflect.Pointer:
		n := reflect.New(v.Type().Elem())
		if err := fill(raw, n.Elem(), name); err != nil {
			return err
		}
		v.Set(n)
	case reflect.Struct:
		if raw[0] != '{' {
			return wrong("an object")
		}
		all, err := membersOf(raw)
		if err != nil {
			return err
		}
		keys := make([]string, 0, len(all))
		for k := range all {
			keys = append(keys, k)
		}
		slices.Sort(keys) // of two wrong members always the same is told
		for _, k := range keys {
			i, ok := member(v.Type(), k)
			if !ok {
				// Unverified: the number; HPE's test server has this one.
				return refuse(array.InvalidInput, clip(k), "invalid input: unknown member")
			}
			if err := fill(all[k], v.Field(i), k); err != nil {
				return err
			}
		}
	case reflect.Slice:
		if raw[0] != '[' {
			return wrong("an array")
		}
		var all []json.RawMessage
		if err := json.Unmarshal(raw, &all); err != nil {
			return wrong("an array")
		}
		s := reflect.MakeSlice(v.Type(), len(all), len(all))
		for i, x := range all {
			if err := fill(x, s.Index(i), name); err != nil {
				return err
			}
		}
		v.Set(s)
	case reflect.String:
		if raw[0] != '"' {
			return wrong("a string")
		}
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return wrong("a string")
		}
		v.SetString(s)
	case reflect.Bool:
		switch string(raw) {
		case "true", "false":
			v.SetBool(raw[0] == 't')
		default:
			return wrong("a boolean")
		}
	case reflect.Int, reflect.Int64:
		if strings.Trim(string(raw), "-0123456789") != "" {
			return wrong("an integer")
		}
		var n int64
		if err := json.Unmarshal(raw, &n); err != nil {
			return refuse(array.ExceedsRange, name, "invalid input: "+clip(string(raw))+" is out of range")
		}
		v.SetInt(n)
	default:
		panic(fmt.Sprintf("wsapi: body has a %s", v.Type())) // a mistake in a struct of this package
	}
	return nil
}

// clip keeps what is told of a request short.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// given is the value of a pointer, or the zero value.
func given[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// required refuses a member that is not there.
func required(ok bool, name string) error {
	if ok {
		return nil
	}
	return refuse(array.MissingRequired, name, "invalid input: missing "+name)
}
