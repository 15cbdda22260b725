package labfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Schema is the format as JSON Schema (draft 2020-12), for editors. What it
// can't say, such as names that must exist, Parse checks.
func Schema() []byte {
	s := schemaOf(reflect.TypeFor[Lab](), "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "csilab lab.yaml, " + APIVersion
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // of plain maps
	}
	return append(b, '\n')
}

func schemaOf(t reflect.Type, tag reflect.StructTag) map[string]any {
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
		return schemaOf(t.Elem(), tag)
	case reflect.Struct:
		s["type"], s["additionalProperties"] = "object", false
		props, need := map[string]any{}, []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			p := schemaOf(f.Type, f.Tag)
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
		s["items"] = schemaOf(t.Elem(), tag)
	case reflect.Map:
		s["type"], s["additionalProperties"] = "object", schemaOf(t.Elem(), tag)
	case reflect.Bool:
		s["type"] = "boolean"
	case reflect.String:
		s["type"] = "string"
		set("minLength", "maxLength")
		if e := tag.Get("enum"); e != "" {
			s["enum"] = strings.Split(e, "|")
		}
		if f, ok := forms[tag.Get("form")]; ok {
			s["pattern"] = f.re.String()
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

// Markdown is a table of the fields of each type, for docs/lab-yaml.md.
func Markdown() string {
	var b strings.Builder
	done := map[reflect.Type]bool{}
	var write func(t reflect.Type, title string)
	write = func(t reflect.Type, title string) {
		if done[t] {
			return
		}
		done[t] = true
		fmt.Fprintf(&b, "### %s\n\n| field | value | default | |\n|---|---|---|---|\n", title)
		type next struct {
			t     reflect.Type
			title string
		}
		var after []next
		for i := range t.NumField() {
			f := t.Field(i)
			name, def := f.Tag.Get("yaml"), f.Tag.Get("default")
			if f.Tag.Get("need") != "" {
				def = "must be given"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, kindWords(f), strings.ReplaceAll(def, "|", "\\|"), strings.ReplaceAll(f.Tag.Get("doc"), "|", "\\|"))
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
	write(reflect.TypeFor[Lab](), "the file")
	return strings.TrimSuffix(b.String(), "\n")
}

func kindWords(f reflect.StructField) string {
	t := f.Type
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
	}
	return "number" + bounds
}
