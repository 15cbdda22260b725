package fault

import (
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// Hops lists the hops of a lab in the order of a volume's life.
var Hops = []ledger.Hop{ledger.CSI, ledger.VCenter, ledger.CSP, ledger.WSAPI, ledger.Host, ledger.Registration, ledger.Kube}

var operations = map[ledger.Hop][]string{}

// RegisterOps names operations of a hop, at the start of the program, so that a
// fault file that names none of them is refused. A * stands for any text.
func RegisterOps(h ledger.Hop, ops ...string) {
	operations[h] = append(operations[h], ops...)
}

var accepted = map[ledger.Hop]func(op string) bool{}

// AcceptOps says which operations a hop has beside those that are listed: those
// of a protocol that has too many to list.
func AcceptOps(h ledger.Hop, has func(op string) bool) { accepted[h] = has }

// Ops lists the operations of a hop that are known; "" is all hops.
func Ops(h ledger.Hop) []string {
	var out []string
	for hop, ops := range operations {
		if h == "" || h == hop {
			out = append(out, ops...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// KnownOp says whether a hop has an operation, or with a * one that may match.
// A hop whose operations nobody registered has any.
func KnownOp(h ledger.Hop, op string) bool {
	ops := Ops(h)
	if len(ops) == 0 || slices.ContainsFunc(ops, func(o string) bool { return meets(o, op) }) {
		return true
	}
	for hop, has := range accepted {
		if (h == "" || h == hop) && !strings.Contains(op, "*") && has(op) {
			return true
		}
	}
	return false
}

// meets says whether two names with stars may be of one operation.
func meets(a, b string) bool {
	switch {
	case !strings.Contains(a, "*") && !strings.Contains(b, "*"):
		return a == b
	case !strings.Contains(b, "*"):
		return globbed(strings.Split(a, "*"), b)
	case !strings.Contains(a, "*"):
		return globbed(strings.Split(b, "*"), a)
	}
	// Both: what stands before the first star and behind the last decides.
	pa, pb := a[:strings.Index(a, "*")], b[:strings.Index(b, "*")]
	sa, sb := a[strings.LastIndex(a, "*")+1:], b[strings.LastIndex(b, "*")+1:]
	return (strings.HasPrefix(pa, pb) || strings.HasPrefix(pb, pa)) && (strings.HasSuffix(sa, sb) || strings.HasSuffix(sb, sa))
}
