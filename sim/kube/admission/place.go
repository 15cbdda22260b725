package admission

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/yamlfile"
)

// Problem is one thing that is wrong in a file of manifests. Its Path is the kind
// and name of the object, as far as they could be read; Text begins with the field.
type Problem = yamlfile.Problem

// Problems are all that is wrong, by place.
type Problems = yamlfile.Problems

// byPlace is the problems of one file as an error, or nil.
func byPlace(ps Problems) error {
	if len(ps) == 0 {
		return nil
	}
	ps.Sort()
	return ps
}

// place is where an object stands: in a document, or in the items of a List there.
type place struct {
	file   string
	line   int        // where the document begins
	root   *yaml.Node // of the document; nil where it is not known
	path   string     // of the object in it
	object string     // its kind and name
	wrong  []string   // paths of its fields that could not be read, in the document
}

// Refused says where an object's fields stand that an API server refuses: all of
// them, or for an error that is about none the object itself. Of an object that has
// fields which could not be read it leaves out what follows from those: what is said
// of them again, and what is missing, for that may be what they were meant for.
func (p place) Refused(err error) (out Problems) {
	status := apierrors.APIStatus(nil)
	about := false
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			if c.Field == "" {
				continue
			}
			about = true
			if path := join(p.path, c.Field); !p.follows(path, c.Type) {
				out = append(out, p.problem(path, c.Field+": "+c.Message))
			}
		}
	}
	if !about {
		out = append(out, p.problem(join(p.path, "metadata.name"), err.Error()))
	}
	return out
}

// follows says whether what is wrong at a path is so because of a field that could
// not be read.
func (p place) follows(path string, cause metav1.CauseType) bool {
	if len(p.wrong) > 0 && cause == metav1.CauseTypeFieldValueRequired {
		return true
	}
	return slices.ContainsFunc(p.wrong, func(w string) bool {
		// Both name the keys of a map, one with a dot and the other in brackets.
		a, b := strings.NewReplacer("[", ".", "]", "").Replace(path)+".", strings.NewReplacer("[", ".", "]", "").Replace(w)+"."
		return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
	})
}

// problem is about a field of the document, by its path.
func (p place) problem(field, text string) Problem {
	line, column := p.line, 1
	if n := find(p.root, field); n != nil {
		line, column = n.Line, n.Column
	}
	return Problem{File: p.file, Line: max(1, line), Column: max(1, column), Path: p.object, Text: text}
}

// inLine is how the parser says where it is.
var inLine = regexp.MustCompile(`^line (\d+): `)

// syntax makes problems of what the parser says of a document: of duplicate keys
// it has a line for each.
func (p place) syntax(text string) (out Problems) {
	lines := strings.Split(text, "\n")
	if len(lines) > 1 { // the first says that there are errors
		lines = lines[1:]
	}
	for _, l := range lines {
		at := p
		what, isYAML := strings.CutPrefix(strings.TrimSpace(l), "yaml: ")
		if m := inLine.FindStringSubmatch(what); m != nil {
			at.line, _ = strconv.Atoi(m[1])
			what = what[len(m[0]):]
		}
		if isYAML {
			what = "no YAML: " + what
		}
		out = append(out, at.problem("", what))
	}
	return out
}

// nodeOf is the content of a document, or nil.
func nodeOf(text []byte) *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) != 1 {
		return nil
	}
	return doc.Content[0]
}

// find is the node that names a field, or the nearest one above it that is there.
// Keys that have dots in them stand in brackets, or as they are.
func find(n *yaml.Node, path string) *yaml.Node {
	at := n
	for n != nil && path != "" {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
			continue
		}
		var next *yaml.Node
		rest := ""
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				key := n.Content[i]
				if r, ok := after(path, key.Value); ok && (next == nil || len(r) < len(rest)) {
					at, next, rest = key, n.Content[i+1], r
				}
			}
		case yaml.SequenceNode:
			index, r, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
			if i, err := strconv.Atoi(index); ok && err == nil && i >= 0 && i < len(n.Content) {
				at, next, rest = n.Content[i], n.Content[i], strings.TrimPrefix(r, ".")
			}
		}
		n, path = next, rest
	}
	return at
}

// after is what follows a key at the beginning of a path.
func after(path, key string) (rest string, ok bool) {
	if key == "" {
		return "", false
	}
	if rest, ok = strings.CutPrefix(path, "["+key+"]"); ok {
		return strings.TrimPrefix(rest, "."), true
	}
	rest, ok = strings.CutPrefix(path, key)
	if !ok || rest != "" && rest[0] != '.' && rest[0] != '[' {
		return "", false
	}
	return strings.TrimPrefix(rest, "."), true
}

func join(path, field string) string {
	if path == "" || field == "" {
		return path + field
	}
	return path + "." + field
}
