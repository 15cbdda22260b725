package sweep

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteMatrix writes calls × kinds, all flows of a system together: how many
// cells healed, ✗ and how many failed, · and how many did not fire. A call is
// told by hop, operation and who makes it, on any node.
func (r *Report) WriteMatrix(w io.Writer) {
	for _, system := range r.systems() {
		type place struct{ row, kind string }
		type count struct{ healed, failed, idle int }
		counts := map[place]*count{}
		used := map[string]bool{}
		var rows []string
		for _, p := range r.Parts {
			if p.System != system {
				continue
			}
			for _, c := range p.Cells {
				for i, call := range c.Calls {
					at := place{rowOf(call), c.Kinds[i]}
					if counts[at] == nil {
						counts[at] = &count{}
					}
					if !slices.Contains(rows, at.row) {
						rows = append(rows, at.row)
					}
					used[at.kind] = true
					switch c.State {
					case Healed:
						counts[at].healed++
					case Failed:
						counts[at].failed++
					default:
						counts[at].idle++
					}
				}
			}
		}
		if len(rows) == 0 {
			continue
		}
		slices.Sort(rows)
		wide := 0
		for _, row := range rows {
			wide = max(wide, len(row))
		}
		var cols []Kind
		for _, k := range kinds {
			if used[k.Name] {
				cols = append(cols, k)
			}
		}
		fmt.Fprintf(w, "\n%-*s", wide, system)
		for _, k := range cols {
			fmt.Fprintf(w, " %6s", k.Short)
		}
		fmt.Fprintln(w)
		for _, row := range rows {
			line := fmt.Sprintf("%-*s", wide, row)
			for _, k := range cols {
				text := ""
				if c := counts[place{row, k.Name}]; c != nil {
					if c.healed > 0 || c.failed+c.idle == 0 {
						text = fmt.Sprint(c.healed)
					}
					if c.failed > 0 {
						text += fmt.Sprintf("✗%d", c.failed)
					}
					if c.idle > 0 {
						text += fmt.Sprintf("·%d", c.idle)
					}
				}
				line += fmt.Sprintf(" %6s", text)
			}
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
		fmt.Fprintln(w)
		for _, k := range cols {
			fmt.Fprintf(w, "  %-6s %s: %s\n", k.Short, k.Name, k.Doc)
		}
	}
	fmt.Fprintln(w, "\n  n: fired and healed   ✗n: failed   ·n: did not fire, no cell   empty: the kind does not fit the call")
}

// systems in the order of the parts.
func (r *Report) systems() (out []string) {
	for _, p := range r.Parts {
		if !slices.Contains(out, p.System) {
			out = append(out, p.System)
		}
	}
	return out
}

func rowOf(c Call) string {
	who, _, _ := strings.Cut(c.Component, "@")
	return fmt.Sprintf("%s/%s %s", c.Hop, c.Op, who)
}

// WriteMisfits writes which kinds were left out at how many calls, and why.
func (r *Report) WriteMisfits(w io.Writer) {
	type why struct{ kind, reason string }
	sum := map[why]int{}
	var order []why
	for _, p := range r.Parts {
		for _, m := range p.Misfits {
			at := why{m.Kind, m.Reason}
			if sum[at] == 0 {
				order = append(order, at)
			}
			sum[at] += m.Calls
		}
	}
	for _, at := range order {
		fmt.Fprintf(w, "  %s: not at %d calls: %s\n", at.kind, sum[at], at.reason)
	}
}
