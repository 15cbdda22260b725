package ledger

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
)

// Canonical is the text of what happened, without what depends on time, order
// and chance: a line per call, below the call that it was made for; the calls
// of one cause sorted by hop, operation and subject; equal ones counted; ids
// renamed by first appearance in that order. Two runs of a flow with one seed
// have the same canonical text, and in a well-kept flow two seeds have it too.
//
// A call whose cause is not among the entries stands at the outermost level.
// Requests and texts of errors are left out: a code says what went wrong.
func Canonical(es []Entry) string {
	var top []*branch
	bySeq := make(map[uint64]*branch, len(es))
	all := make([]branch, len(es))
	for i, e := range es {
		b := &all[i]
		b.entry = e
		bySeq[e.Seq] = b
	}
	for i := range all {
		b := &all[i]
		if up := bySeq[b.entry.Cause]; up != nil && up != b {
			up.below = append(up.below, b)
		} else {
			top = append(top, b)
		}
	}
	signed := signatures(es)
	sortBranches(top, signed)
	var out strings.Builder
	names := naming{}
	print(&out, &names, top, 0)
	return out.String()
}

// branch is a call with the calls that were made for it.
type branch struct {
	entry Entry
	below []*branch
	key   string // with what is below, ids masked
	fine  string // likewise, ids by their signatures
}

// signatures tells ids apart by where they occur: by all lines that have one,
// with the others masked.
func signatures(es []Entry) map[string]string {
	sums := map[string]uint64{}
	for _, e := range es {
		line := fmt.Sprintf("%s|%s|%s%s", e.Hop, e.Op, subjects(e), tail(e, identity))
		for _, id := range slices.Compact(slices.Sorted(slices.Values(anID.FindAllString(line, -1)))) {
			h := fnv.New64a()
			h.Write([]byte(anID.ReplaceAllStringFunc(line, func(s string) string {
				if s == id {
					return "{*}"
				}
				return "{}"
			})))
			sums[strings.ToLower(id)] += h.Sum64() // of a multiset
		}
	}
	out := make(map[string]string, len(sums))
	for id, sum := range sums {
		out[id] = fmt.Sprintf("{%x}", sum)
	}
	return out
}

func identity(s string) string { return s }

func sortBranches(bs []*branch, signed map[string]string) {
	bySignature := func(s string) string {
		return anID.ReplaceAllStringFunc(s, func(id string) string { return signed[strings.ToLower(id)] })
	}
	for _, b := range bs {
		sortBranches(b.below, signed)
		b.key = b.text(masked, func(c *branch) string { return c.key })
		b.fine = b.text(bySignature, func(c *branch) string { return c.fine })
	}
	slices.SortStableFunc(bs, func(x, y *branch) int {
		return cmp.Or(cmp.Compare(x.key, y.key), cmp.Compare(x.fine, y.fine), cmp.Compare(x.entry.Seq, y.entry.Seq))
	})
}

// text is what a branch is sorted by.
func (b *branch) text(ids func(string) string, below func(*branch) string) string {
	var k strings.Builder
	e := b.entry
	fmt.Fprintf(&k, "%d|%s|%s|%s", slices.Index(Hops(), e.Hop), ids(e.Op), ids(subjects(e)), tail(e, ids))
	for _, c := range b.below {
		k.WriteString("\n(")
		k.WriteString(below(c))
		k.WriteByte(')')
	}
	return k.String()
}

// settle puts those of bs that only their ids tell apart in the order of the
// names that these have already.
func settle(bs []*branch, names *naming) {
	for len(bs) > 0 {
		n := 1
		for n < len(bs) && bs[n].key == bs[0].key && bs[n].fine == bs[0].fine {
			n++
		}
		if n > 1 {
			peek := map[*branch]string{}
			var known func(*branch) string
			known = func(b *branch) string { return b.text(names.known, known) }
			for _, b := range bs[:n] {
				peek[b] = known(b)
			}
			slices.SortStableFunc(bs[:n], func(x, y *branch) int { return cmp.Compare(peek[x], peek[y]) })
		}
		bs = bs[n:]
	}
}

// subjects are all that an entry is about.
func subjects(e Entry) string {
	var s []string
	for _, x := range [][2]string{{"volume", e.Volume}, {"snapshot", e.Snapshot}, {"node", e.Node}} {
		if x[1] != "" {
			s = append(s, x[0]+" "+x[1])
		}
	}
	return strings.Join(s, ", ")
}

// tail is what comes of a call.
func tail(e Entry, text func(string) string) string {
	s := fmt.Sprintf(" by %s: %s", e.Component, e.Outcome)
	if e.Code != "" {
		s += " " + text(e.Code)
	}
	if e.Fault != "" {
		s += " [" + text(e.Fault) + "]"
	}
	return s
}

// print writes branches in order. Those that read the same are one line with
// their number.
func print(out *strings.Builder, names *naming, bs []*branch, depth int) {
	indent := strings.Repeat("  ", depth)
	last, times := "", 0
	flush := func() {
		if times == 0 {
			return
		}
		if times > 1 {
			first, rest, _ := strings.Cut(last, "\n")
			last = fmt.Sprintf("%s (x%d)\n%s", first, times, rest)
		}
		out.WriteString(last)
		times = 0
	}
	settle(bs, names)
	for _, b := range bs {
		var one strings.Builder
		e := b.entry
		one.WriteString(indent)
		fmt.Fprintf(&one, "%s %s", e.Hop, names.of("id", e.Op))
		for _, x := range [][3]string{{"volume", "v", e.Volume}, {"snapshot", "s", e.Snapshot}, {"node", "n", e.Node}} {
			if x[2] != "" {
				fmt.Fprintf(&one, " %s %s", x[0], names.of(x[1], x[2]))
			}
		}
		one.WriteString(tail(e, func(s string) string { return names.of("id", s) }))
		one.WriteByte('\n')
		print(&one, names, b.below, depth+1)
		if s := one.String(); times == 0 || s != last {
			flush()
			last, times = s, 1
		} else {
			times++
		}
	}
	flush()
}

// anID is what systems number their objects by: UUIDs, also cut short; runs of
// hex digits (WWNs, digests); managed objects (task-12, session[52a8…]); ports.
var anID = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}(?:-[0-9a-f]{1,4}(?:-[0-9a-f]{1,12})?)?` +
	`|\b[0-9a-f]{12,}\b` +
	`|\b(?:task|vm|session|group|host|datastore|network|domain|resgroup|snapshot)-[a-z]?[0-9]+\b` +
	`|127\.0\.0\.1:[0-9]+`)

// masked is a text with all ids alike.
func masked(s string) string { return anID.ReplaceAllLiteralString(s, "{}") }

// naming renames ids by first appearance.
type naming struct {
	names map[string]string
	count map[string]int // by kind
}

// known renames the ids that have a name, and masks the others.
func (n *naming) known(s string) string {
	return anID.ReplaceAllStringFunc(s, func(id string) string {
		if name, ok := n.names[strings.ToLower(id)]; ok {
			return name
		}
		return "{}"
	})
}

func (n *naming) of(kind, s string) string {
	return anID.ReplaceAllStringFunc(s, func(id string) string {
		id = strings.ToLower(id)
		if n.names == nil {
			n.names, n.count = map[string]string{}, map[string]int{}
		}
		name, ok := n.names[id]
		if !ok {
			n.count[kind]++
			name = fmt.Sprintf("{%s%d}", kind, n.count[kind])
			n.names[id] = name
		}
		return name
	})
}
