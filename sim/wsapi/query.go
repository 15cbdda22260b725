package wsapi

import (
	"strings"

	"github.com/csilab/csilab/sim/array"
)

// maxTerms bounds a query.
const maxTerms = 1024

// term is a comparison: field EQ value. In a term of a list (FCPaths[wwn==…])
// list is its name.
type term struct{ list, field, value string }

// query is a disjunction of conjunctions of terms.
type query [][]term

// parseQuery reads the filter of a list: "volumeName EQ x", with == for EQ, OR
// and AND, and a filter in brackets for members of lists, as in
// "FCPaths[wwn==A OR wwn==B] OR iSCSIPaths[name==C]". The whole is in double
// quotes or not; values may be in single quotes. fields says which fields
// there are; those of lists are "list[field]".
//
// Unverified: the code for a query that can't be read.
func parseQuery(s string, fields ...string) (query, error) {
	if q, ok := strings.CutPrefix(s, `"`); ok {
		if s, ok = strings.CutSuffix(q, `"`); !ok {
			return nil, badQuery(s)
		}
	}
	known := map[string]bool{}
	for _, f := range fields {
		known[f] = true
	}
	var out query
	terms := 0
	add := func(t term) error {
		name := t.field
		if t.list != "" {
			name = t.list + "[" + t.field + "]"
		}
		if terms++; terms > maxTerms || !known[name] {
			return badQuery(name)
		}
		return nil
	}
	rest := strings.TrimSpace(s)
	join := "OR"
	for {
		var all [][]term // what this part stands for: alternatives
		name, after := word(rest)
		if name == "" {
			return nil, badQuery(rest)
		}
		if b, ok := strings.CutPrefix(after, "["); ok {
			inner, more, ok := strings.Cut(b, "]")
			if !ok {
				return nil, badQuery(rest)
			}
			for _, alt := range split(inner, " OR ") {
				var and []term
				for _, one := range split(alt, " AND ") {
					t, left, err := comparison(one)
					if err != nil || left != "" {
						return nil, badQuery(one)
					}
					t.list = name
					if err := add(t); err != nil {
						return nil, err
					}
					and = append(and, t)
				}
				all = append(all, and)
			}
			rest = strings.TrimSpace(more)
		} else {
			t, left, err := comparison(rest)
			if err != nil {
				return nil, err
			}
			if err := add(t); err != nil {
				return nil, err
			}
			all, rest = [][]term{{t}}, left
		}
		if join == "OR" {
			out = append(out, all...)
		} else { // AND binds to the last alternative
			if len(all) != 1 {
				return nil, badQuery(s)
			}
			out[len(out)-1] = append(out[len(out)-1], all[0]...)
		}
		if rest == "" {
			return out, nil
		}
		if join, rest = word(rest); join != "OR" && join != "AND" {
			return nil, badQuery(join)
		}
	}
}

func badQuery(what string) *failure {
	return refuse(array.InvalidInput, "query", "invalid query: "+clip(what))
}

func split(s, sep string) []string { return strings.Split(strings.TrimSpace(s), sep) }

// word takes letters and digits from the start.
func word(s string) (w, rest string) {
	i := 0
	for i < len(s) && (s[i] == '_' || s[i] >= '0' && s[i] <= '9' || s[i] >= 'A' && s[i] <= 'Z' || s[i] >= 'a' && s[i] <= 'z') {
		i++
	}
	return s[:i], strings.TrimLeft(s[i:], " ")
}

// comparison takes one from the start of s.
func comparison(s string) (term, string, error) {
	field, rest := word(strings.TrimSpace(s))
	if field == "" {
		return term{}, "", badQuery(s)
	}
	if r, ok := strings.CutPrefix(rest, "=="); ok {
		rest = r
	} else if r, ok := strings.CutPrefix(rest, "EQ "); ok {
		rest = r
	} else {
		return term{}, "", badQuery(s)
	}
	rest = strings.TrimLeft(rest, " ")
	var value string
	if q, ok := strings.CutPrefix(rest, "'"); ok {
		v, r, ok := strings.Cut(q, "'")
		if !ok {
			return term{}, "", badQuery(s)
		}
		value, rest = v, r
	} else {
		value, rest, _ = strings.Cut(rest, " ")
	}
	if value == "" {
		return term{}, "", badQuery(s)
	}
	return term{field: field, value: value}, strings.TrimSpace(rest), nil
}

// ask returns the parsed query of a request, nil without.
func (c *call) ask(fields ...string) (query, error) {
	s, ok := c.query["query"]
	if !ok {
		return nil, nil
	}
	return parseQuery(s[0], fields...)
}

// holds says whether an object passes: value gives those of a field, several in
// a list.
func (q query) holds(value func(term) bool) bool {
	if q == nil {
		return true
	}
	for _, and := range q {
		all := true
		for _, t := range and {
			all = all && value(t)
		}
		if all {
			return true
		}
	}
	return false
}

// only is the value that a query asks one field for and nothing else: then an
// index answers.
func (q query) only(field string) (string, bool) {
	if len(q) == 1 && len(q[0]) == 1 && q[0][0].list == "" && q[0][0].field == field {
		return q[0][0].value, true
	}
	return "", false
}
