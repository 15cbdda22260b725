package invariant

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Invariant{
		ID:       "I7",
		Sentence: "after faults stop, the system converges without a restart by hand, in bounded time and calls",
		Check: func(w *World) (out []string) {
			h := w.Healing
			if h == nil {
				return nil
			}
			if h.Took >= h.Bound {
				d := fmt.Sprintf("the lab is not quiet %v after the faults stopped, bound is %v", h.Took.Round(time.Millisecond), h.Bound)
				if h.Left != "" {
					d += ": " + h.Left
				}
				out = append(out, d)
			}
			if len(h.ByHand) > 0 {
				out = append(out, fmt.Sprintf("restarted by hand after the faults stopped: %s", strings.Join(h.ByHand, ", ")))
			}
			return out
		},
		OfCalls: func(w *World, calls Calls) (out []string) {
			h := w.Healing
			if h == nil || h.Calls == 0 {
				return nil
			}
			type kind struct {
				hop                    ledger.Hop
				op, component, subject string
			}
			count := map[kind]int{}
			for _, e := range calls.Entries(ledger.After(h.Seq)) {
				if e.Subject() == "" {
					continue // for many
				}
				count[kind{e.Hop, e.Op, e.Component, e.Subject()}]++
			}
			bound := h.Calls + int(float64(h.PerMinute)*h.Took.Minutes())
			var over []kind
			for k, n := range count {
				if n > bound {
					over = append(over, k)
				}
			}
			slices.SortFunc(over, func(a, b kind) int {
				return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.hop, b.hop), cmp.Compare(a.op, b.op), cmp.Compare(a.component, b.component), cmp.Compare(a.subject, b.subject))
			})
			for _, k := range over {
				about := ""
				if k.subject != "" {
					about = " about " + k.subject
				}
				out = append(out, fmt.Sprintf("%s made %d calls %s/%s%s in the %v after the faults stopped, bound is %d", k.component, count[k], k.hop, k.op, about, h.Took.Round(time.Second), bound))
			}
			return out
		},
	})
}
