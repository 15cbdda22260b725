// Package admission is what an API server does with a user's manifest before
// it stores anything: strict decoding, defaults, validation, and the built-in
// admission plugins that concern storage. Messages are those of k8s v1.37.2,
// so that a mistake reads as on a cluster.
package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/csilab/csilab/sim/kube/store"
)

// Manifest is an object of a file, and where it stands there.
type Manifest struct {
	Object store.Object
	place
}

// Read reads the documents of a YAML or JSON file. It accepts the kinds that the
// store knows, and v1 List of them. Unknown and duplicate fields, wrong types and
// malformed quantities are errors, as with kubectl's --validate=strict: the error
// is Problems, of all documents. Beside it are the objects, also those with fields
// that could not be read, without these: an API server may refuse more of them.
// Empty documents are skipped; a file without any object gives none and no error.
func Read(file string, data []byte) (out []Manifest, err error) {
	var problems Problems
	for _, d := range split(data) {
		p := place{file: file, line: d.line}
		manifests, wrong := p.document(d)
		out = append(out, manifests...)
		problems = append(problems, wrong...)
	}
	return out, byPlace(problems)
}

// Decode is Read for who wants all objects of a file or none.
func Decode(file string, data []byte) ([]store.Object, error) {
	ms, err := Read(file, data)
	if err != nil {
		return nil, err
	}
	var out []store.Object
	for _, m := range ms {
		out = append(out, m.Object)
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

// document reads one document; the place has its file and line.
func (p place) document(d document) (out []Manifest, problems Problems) {
	// Blank lines in front make the parser's line numbers those of the file.
	text := append(bytes.Repeat([]byte("\n"), d.line-1), d.text...)
	j, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		problems = p.syntax(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
		if j, err = yaml.YAMLToJSON(text); err != nil { // not only a key that is given twice
			return nil, problems
		}
	}
	dec := json.NewDecoder(bytes.NewReader(j))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, append(problems, p.problem("", err.Error()))
	}
	if v == nil {
		return nil, problems
	}
	p.root = nodeOf(text)
	out, wrong := p.value(v)
	return out, append(problems, wrong...)
}

// value turns one object, or a List, into objects; the place says where it stands.
func (p place) value(v any) (out []Manifest, problems Problems) {
	wrong := func(field, format string, args ...any) {
		problems = append(problems, p.problem(join(p.path, field), prefix(join(p.path, field))+fmt.Sprintf(format, args...)))
	}
	m, ok := v.(map[string]any)
	if !ok {
		wrong("", "expected an object, got %s", describe(v))
		return nil, problems
	}
	apiVersion, ok1 := m["apiVersion"].(string)
	kind, ok2 := m["kind"].(string)
	p.object = name(kind, m)
	if !ok1 || apiVersion == "" {
		wrong("apiVersion", "Required value: a string such as \"v1\"")
	}
	if !ok2 || kind == "" {
		wrong("kind", "Required value: a string such as \"PersistentVolumeClaim\"")
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if apiVersion == "v1" && kind == "List" {
		items, ok := m["items"].([]any)
		if !ok && m["items"] != nil {
			wrong("items", "expected a list, got %s", describe(m["items"]))
		}
		for i, it := range items {
			sub := p
			sub.path, sub.object = fmt.Sprintf("%s[%d]", join(p.path, "items"), i), ""
			ms, ps := sub.value(it)
			out, problems = append(out, ms...), append(problems, ps...)
		}
		return out, problems
	}
	o := store.NewObject(apiVersion, kind)
	if o == nil {
		problems = append(problems, p.problem(join(p.path, "kind"), fmt.Sprintf("no matches for kind %q in version %q; supported are %s", kind, apiVersion, strings.Join(store.Kinds(), ", "))))
		return nil, problems
	}
	for _, f := range check(m, typeOf(o), p.path) {
		problems = append(problems, p.problem(f.field, f.text))
		p.wrong = append(p.wrong, f.field)
	}
	j, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(j, o)
	}
	if err != nil {
		wrong("", "%v", err)
		return nil, problems
	}
	return []Manifest{{o, p}}, problems
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
	if ns, _ := md["namespace"].(string); ns != "" && n != "" {
		n = ns + "/" + n
	}
	if kind == "" || n == "" {
		return kind + n
	}
	return fmt.Sprintf("%s %q", kind, n)
}
