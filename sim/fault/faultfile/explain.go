package faultfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
	"github.com/csilab/csilab/sim/yamlfile"
)

// Explain says what a field, a kind or a hop is; "" lists what there is. Errors:
// there is none of this name, with the nearest.
func Explain(name string, markdown bool) (string, error) {
	if k, ok := fault.Lookup(name); ok {
		if markdown {
			return KindPage(k), nil
		}
		return kindText(k), nil
	}
	if slices.Contains(fault.Hops, ledger.Hop(name)) {
		return hopText(ledger.Hop(name)), nil
	}
	t := reflect.TypeFor[Rule]()
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("yaml") == name {
			return fieldText(f), nil
		}
	}
	if name != "" {
		names := fault.KindNames()
		for i := range t.NumField() {
			names = append(names, t.Field(i).Tag.Get("yaml"))
		}
		for _, h := range fault.Hops {
			names = append(names, string(h))
		}
		return "", fmt.Errorf("there is no field, kind or hop %q%s", name, nearest.Name(name, names))
	}
	if markdown {
		return Fields() + "\n" + Index(), nil
	}
	var b strings.Builder
	b.WriteString("Fields of a rule:\n")
	for i := range t.NumField() {
		f := t.Field(i)
		fmt.Fprintf(&b, "  %-12s %s\n", f.Tag.Get("yaml"), f.Tag.Get("doc"))
	}
	b.WriteString("\nKinds, for do:\n")
	for _, k := range fault.Kinds() {
		if !k.Mutants {
			fmt.Fprintf(&b, "  %-18s %s\n", k.Name, firstSentence(k.Doc))
		}
	}
	b.WriteString("\nHops: ")
	for i, h := range fault.Hops {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(h))
	}
	b.WriteString("\n")
	return b.String(), nil
}

func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i+1]
	}
	return s
}

// details are what a field's line has no room for.
var details = map[string]string{
	"where": `Names:      hop, op, component, node, volume, snapshot, request (the text that the
            ledger shows), attempt (which call of its caller, operation and subject
            it is since the rule was armed, from 1), and request.FIELD where the
            request is JSON: request.name, request.capacity_range.required_bytes,
            request.createSpecs[0].name
Values:     texts in double quotes, numbers, true, false, lists: ["a", "b"]
Operators:  == != < <= > >= =~ (regular expression) contains in ! && || ( )
What a request does not have equals nothing.
Examples:   volume =~ "^pvc-" && attempt <= 2
            node in ["node-1", "node-2"] && !(component == "csi-attacher")
            request contains "-t xfs"
`,
	"phase": `before      the operation has not happened
task        the task that the operation started runs and has done nothing yet
            (hop vcenter)
result      likewise; what goes wrong is told in the volume's result, of a task that
            succeeds
after       the operation is done, its reply not sent
`,
}

func fieldText(f reflect.StructField) string {
	name := f.Tag.Get("yaml")
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n  %s\n", name, f.Tag.Get("doc"))
	need := f.Tag.Get("default")
	if f.Tag.Get("need") != "" {
		fmt.Fprintf(&b, "  takes %s, must be given\n", yamlfile.Words(f))
	} else {
		fmt.Fprintf(&b, "  takes %s, default: %s\n", yamlfile.Words(f), need)
	}
	if d := details[name]; d != "" {
		b.WriteString("\n" + d)
	}
	if name == "do" {
		b.WriteString("\nKinds: " + strings.Join(fault.KindNames(), ", ") + "\n")
	}
	return b.String()
}

func phases(k fault.Kind) string {
	var out []string
	for _, p := range k.Phases {
		out = append(out, string(p))
	}
	return strings.Join(out, ", ")
}

func hops(k fault.Kind) string {
	if len(k.Hops) == 0 {
		return "all"
	}
	var out []string
	for _, h := range k.Hops {
		out = append(out, string(h))
	}
	return strings.Join(out, ", ")
}

func indent(s, with string) string {
	return with + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n"+with) + "\n"
}

// example is a kind's rule as an item of a list.
func example(k fault.Kind) string {
	if k.Example == "" {
		return ""
	}
	return "- " + strings.TrimPrefix(indent(k.Example, "  "), "  ")
}

func kindText(k fault.Kind) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n  hops: %s\n  phases: %s\n", k.Name, indent(wrap(k.Doc, 76), "  "), hops(k), phases(k))
	if k.Params != nil {
		b.WriteString("  parameters:\n")
		t := reflect.TypeOf(k.Params)
		for i := range t.NumField() {
			f := t.Field(i)
			def := "default: " + f.Tag.Get("default")
			if f.Tag.Get("need") != "" {
				def = "must be given"
			}
			fmt.Fprintf(&b, "    %s (%s, %s)\n      %s\n", f.Tag.Get("yaml"), yamlfile.Words(f), def, f.Tag.Get("doc"))
		}
	}
	if k.Name == "error" {
		b.WriteString("  codes:\n")
		for _, h := range fault.ErrorHops() {
			p, _ := fault.ProtocolOf(h)
			fmt.Fprintf(&b, "    %s: %s\n%s", h, p.Doc, indent(wrap(strings.Join(p.Codes(), ", "), 72), "      "))
		}
	}
	if e := example(k); e != "" {
		b.WriteString("  example:\n" + indent(e, "    "))
	}
	return b.String()
}

func hopText(h ledger.Hop) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n  operations:\n", h)
	for _, op := range fault.Ops(h) {
		fmt.Fprintf(&b, "    %s\n", op)
	}
	if p, ok := fault.ProtocolOf(h); ok {
		fmt.Fprintf(&b, "  errors: %s\n", p.Doc)
	}
	var names []string
	for _, k := range fault.Kinds() {
		if k.OnHop(h) && !k.Mutants {
			names = append(names, k.Name)
		}
	}
	fmt.Fprintf(&b, "  kinds: %s\n", strings.Join(names, ", "))
	return b.String()
}

// wrap breaks a text into lines of up to so many characters.
func wrap(s string, width int) string {
	var b strings.Builder
	n := 0
	for i, w := range strings.Fields(s) {
		switch {
		case i == 0:
		case n+1+len(w) > width:
			b.WriteString("\n")
			n = 0
		default:
			b.WriteString(" ")
			n++
		}
		b.WriteString(w)
		n += len(w)
	}
	return b.String()
}

// KindPage is the documentation of a kind: docs/faults/NAME.md.
func KindPage(k fault.Kind) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\nHops: %s. Phases: %s; the first is the default.\n", k.Name, k.Doc, hops(k), phases(k))
	if k.Mutants {
		b.WriteString("\nFault files can't name it.\n")
	}
	if k.Params != nil {
		b.WriteString("\n" + yamlfile.FieldTable(k.Params))
	}
	if k.Name == "error" {
		b.WriteString("\n| hop | code | known by name |\n|---|---|---|\n")
		for _, h := range fault.ErrorHops() {
			p, _ := fault.ProtocolOf(h)
			codes := strings.Join(p.Codes(), ", ")
			if h == ledger.CSP {
				codes = "any status of an error"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", h, p.Doc, codes)
		}
	}
	if e := example(k); e != "" {
		fmt.Fprintf(&b, "\n```yaml\n%s```\n", e)
	}
	return b.String()
}

// Index is a table of the kinds, for docs/faults.md.
func Index() string {
	var b strings.Builder
	b.WriteString("| kind | hops | phases | |\n|---|---|---|---|\n")
	for _, k := range fault.Kinds() {
		fmt.Fprintf(&b, "| [%s](faults/%s.md) | %s | %s | %s |\n", k.Name, k.Name, hops(k), phases(k), firstSentence(k.Doc))
	}
	return b.String()
}

// Fields is a table of the fields of a rule, for docs/faults.md.
func Fields() string { return yamlfile.FieldTable(Rule{}) }
