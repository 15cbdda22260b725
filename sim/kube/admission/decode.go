// Package admission is what an API server does with a user's manifest before
// it stores anything: strict decoding, defaults, validation, and the built-in
// admission plugins that concern storage. Messages are those of k8s v1.37.2,
// so that a mistake reads as on a cluster.
package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/csilab/csilab/sim/kube/store"
)

// DecodeError says what is wrong with one document of a file.
type DecodeError struct {
	File string
	// Document counts from 1; Line is where it starts, from 1.
	Document, Line int
	// Object is kind and name as far as they could be read.
	Object string
	// Problems are "<field path>: <what is wrong>", at least one.
	Problems []string
}

func (e *DecodeError) Error() string {
	o := ""
	if e.Object != "" {
		o = " " + e.Object + ":"
	}
	return fmt.Sprintf("%s: document %d (line %d):%s %s", e.File, e.Document, e.Line, o, strings.Join(e.Problems, "; "))
}

// Decode reads the documents of a YAML or JSON file. It accepts the kinds that
// the store knows, and v1 List of them. Unknown and duplicate fields, wrong
// types and malformed quantities are errors, as with kubectl's
// --validate=strict: the error joins one *DecodeError per bad document, and no
// object is returned then. Empty documents are skipped; a file without any
// object gives none and no error.
func Decode(file string, data []byte) ([]store.Object, error) {
	var out []store.Object
	var errs []error
	for i, d := range split(data) {
		objects, object, problems := decodeDocument(d)
		if len(problems) > 0 {
			errs = append(errs, &DecodeError{File: file, Document: i + 1, Line: d.line, Object: object, Problems: problems})
		}
		out = append(out, objects...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

type document struct {
	line int
	text []byte
}

// split cuts a stream at its "---" lines. What stands behind the dashes on
// the same line belongs to the document.
func split(data []byte) []document {
	docs := []document{{line: 1}}
	line := 0
	for len(data) > 0 {
		line++
		l := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			l = data[:i+1]
		}
		data = data[len(l):]
		if rest, ok := bytes.CutPrefix(l, []byte("---")); ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0]))) {
			docs = append(docs, document{line: line})
			l = append([]byte("   "), rest...)
		}
		d := &docs[len(docs)-1]
		d.text = append(d.text, l...)
	}
	return slices.DeleteFunc(docs, func(d document) bool { return empty(d.text) })
}

// empty says whether a document holds comments and blanks only.
func empty(text []byte) bool {
	for l := range bytes.Lines(text) {
		if l = bytes.TrimSpace(l); len(l) > 0 && l[0] != '#' {
			return false
		}
	}
	return true
}

func decodeDocument(d document) (objects []store.Object, object string, problems []string) {
	// Blank lines in front make the parser's line numbers those of the file.
	text := append(bytes.Repeat([]byte("\n"), d.line-1), d.text...)
	j, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, "", []string{strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "error converting YAML to JSON: ")}
	}
	dec := json.NewDecoder(bytes.NewReader(j))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, "", []string{err.Error()}
	}
	if v == nil {
		return nil, "", nil
	}
	return decodeValue(v, "")
}

// decodeValue turns one object, or a List, into objects; path is where it stands.
func decodeValue(v any, path string) (objects []store.Object, object string, problems []string) {
	at := func(field string) string {
		if path == "" {
			return field
		}
		return path + "." + field
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, "", []string{fmt.Sprintf("%sexpected an object, got %s", prefix(path), describe(v))}
	}
	apiVersion, ok1 := m["apiVersion"].(string)
	kind, ok2 := m["kind"].(string)
	if !ok1 || apiVersion == "" {
		problems = append(problems, at("apiVersion")+": Required value: a string such as \"v1\"")
	}
	if !ok2 || kind == "" {
		problems = append(problems, at("kind")+": Required value: a string such as \"PersistentVolumeClaim\"")
	}
	object = name(kind, m)
	if len(problems) > 0 {
		return nil, object, problems
	}
	if apiVersion == "v1" && kind == "List" {
		items, ok := m["items"].([]any)
		if !ok && m["items"] != nil {
			return nil, object, []string{at("items") + ": expected a list, got " + describe(m["items"])}
		}
		for i, it := range items {
			o, sub, p := decodeValue(it, fmt.Sprintf("%s[%d]", at("items"), i))
			objects = append(objects, o...)
			for _, msg := range p {
				if sub != "" {
					msg = sub + ": " + msg
				}
				problems = append(problems, msg)
			}
		}
		return objects, object, problems
	}
	o := store.NewObject(apiVersion, kind)
	if o == nil {
		return nil, object, []string{fmt.Sprintf("no matches for kind %q in version %q; supported are %s", kind, apiVersion, strings.Join(store.Kinds(), ", "))}
	}
	if problems = check(m, typeOf(o), path); len(problems) > 0 {
		return nil, object, problems
	}
	j, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(j, o)
	}
	if err != nil {
		return nil, object, []string{prefix(path) + err.Error()}
	}
	return []store.Object{o}, object, nil
}

func prefix(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}

// name is how an object is called in a message.
func name(kind string, m map[string]any) string {
	md, _ := m["metadata"].(map[string]any)
	n, _ := md["name"].(string)
	if n == "" {
		n, _ = md["generateName"].(string)
	}
	if ns, _ := md["namespace"].(string); ns != "" {
		n = ns + "/" + n
	}
	if kind == "" || n == "" {
		return kind + n
	}
	return fmt.Sprintf("%s %q", kind, n)
}
