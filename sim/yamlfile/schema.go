package yamlfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Schemed is a field that has a schema of its own.
type Schemed interface {
	JSONSchema(forms map[string]Form) map[string]any
}

// Worded is a field whose documentation says in words what it holds.
type Worded interface{ ValueWords() string }

// Schema is the format of a struct as JSON Schema (draft 2020-12), for editors.
func Schema(of any, title string, forms map[string]Form) []byte {
	s := SchemaOf(of, forms)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // of plain maps
	}
	return append(b, '\n')
}

// SchemaOf is the schema of a struct without a head.
func SchemaOf(of any, forms map[string]Form) map[string]any {
	return schemer(forms).of(reflect.TypeOf(of), "")
}

type schemer map[string]Form

func (forms schemer) of(t reflect.Type, tag reflect.StructTag) map[string]any {
	if x, ok := reflect.New(t).Interface().(Schemed); ok {
		return x.JSONSchema(forms)
	}
	s := map[string]any{}
	lo, hi := limits(tag)
	set := func(min, max string) {
		if lo != nil {
			s[min] = *lo
		}
		if hi != nil {
			s[max] = *hi
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return forms.of(t.Elem(), tag)
	case reflect.Struct:
		s["type"], s["additionalProperties"] = "object", false
		props, need := map[string]any{}, []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			p := forms.of(f.Type, f.Tag)
			p["description"] = f.Tag.Get("doc")
			if d := f.Tag.Get("default"); d != "" {
				p["description"] = fmt.Sprintf("%s (default: %s)", f.Tag.Get("doc"), d)
			}
			props[f.Tag.Get("yaml")] = p
			if f.Tag.Get("need") != "" {
				need = append(need, f.Tag.Get("yaml"))
			}
		}
		s["properties"] = props
		if len(need) > 0 {
			s["required"] = need
		}
	case reflect.Slice:
		s["type"] = "array"
		if t.Elem().Kind() != reflect.String {
			set("minItems", "maxItems")
			tag = ""
		}
		s["items"] = forms.of(t.Elem(), tag)
	case reflect.Map:
		s["type"], s["additionalProperties"] = "object", forms.of(t.Elem(), tag)
	case reflect.Bool:
		s["type"] = "boolean"
	case reflect.Float64:
		s["type"] = "number"
	case reflect.String:
		s["type"] = "string"
		set("minLength", "maxLength")
		if e := tag.Get("enum"); e != "" {
			s["enum"] = strings.Split(e, "|")
		}
		if f, ok := forms[tag.Get("form")]; ok {
			s["pattern"] = f.RE.String()
		}
		if tag.Get("form") == "address" {
			s["pattern"] = `^.+:[0-9]+$`
		}
	default:
		switch tag.Get("unit") {
		case "duration":
			s["type"], s["pattern"] = "string", `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
			if lo != nil && *lo == 0 {
				return map[string]any{"anyOf": []any{s, map[string]any{"const": 0}}}
			}
		case "size":
			s["type"], s["pattern"] = []string{"string", "integer"}, `^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$`
		default:
			s["type"] = "integer"
			set("minimum", "maximum")
		}
	}
	return s
}

// Markdown is a table of the fields of a struct, and of each that is in it.
func Markdown(of any) string {
	var b strings.Builder
	done := map[reflect.Type]bool{}
	var write func(t reflect.Type, title string)
	write = func(t reflect.Type, title string) {
		if done[t] {
			return
		}
		done[t] = true
		fmt.Fprintf(&b, "### %s\n\n", title)
		fieldTable(&b, t)
		type next struct {
			t     reflect.Type
			title string
		}
		var after []next
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Tag.Get("yaml")
			if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
				in := title + "." + name
				if title == "the file" {
					in = name
				}
				after = append(after, next{f.Type.Elem(), in})
			}
		}
		b.WriteString("\n")
		for _, n := range after {
			write(n.t, n.title)
		}
	}
	write(reflect.TypeOf(of), "the file")
	return strings.TrimSuffix(b.String(), "\n")
}

// FieldTable is a table of the fields of one struct.
func FieldTable(of any) string {
	var b strings.Builder
	fieldTable(&b, reflect.TypeOf(of))
	return b.String()
}

func fieldTable(b *strings.Builder, t reflect.Type) {
	b.WriteString("| field | value | default | |\n|---|---|---|---|\n")
	for i := range t.NumField() {
		f := t.Field(i)
		name, def := f.Tag.Get("yaml"), f.Tag.Get("default")
		if f.Tag.Get("need") != "" {
			def = "must be given"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, kindWords(f), strings.ReplaceAll(def, "|", "\\|"), strings.ReplaceAll(f.Tag.Get("doc"), "|", "\\|"))
	}
}

func kindWords(f reflect.StructField) string {
	t := f.Type
	if w, ok := reflect.New(t).Interface().(Worded); ok {
		return w.ValueWords()
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	lo, hi := limits(f.Tag)
	bounds := ""
	if lo != nil || hi != nil {
		bounds = ", " + between(lo, hi, f.Tag.Get("unit"))
	}
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		if hi != nil {
			return fmt.Sprintf("list, up to %d", *hi)
		}
		return "list"
	case t.Kind() == reflect.Slice && f.Tag.Get("enum") != "":
		return "list of " + strings.ReplaceAll(f.Tag.Get("enum"), "|", ", ")
	case t.Kind() == reflect.Slice:
		return "list of texts"
	case t.Kind() == reflect.Map:
		return "duration by name"
	case f.Tag.Get("unit") != "":
		return f.Tag.Get("unit") + bounds
	case f.Tag.Get("enum") != "":
		return strings.ReplaceAll(f.Tag.Get("enum"), "|", ", ")
	case f.Tag.Get("form") != "":
		return f.Tag.Get("form")
	case t.Kind() == reflect.Bool:
		return "true, false"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Float64:
		return "number"
	}
	return "number" + bounds
}

// Words says what a field takes, e.g. "duration, 0s and more".
func Words(f reflect.StructField) string { return kindWords(f) }
